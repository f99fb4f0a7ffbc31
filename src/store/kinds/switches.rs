//! What is paused, and what was resumed, by the beginnings of the names of kinds.
//!
//! Several servers each keep all of it, and one that was away has missed what was done meanwhile. So
//! there the pauses and resumes are numbered, with the time, or one more than the largest number that
//! is known: whoever compares two servers sees which of them is behind.

use std::collections::BTreeMap;

use crate::key::Kind;
use crate::time::UnixMs;

/// What a field begins with that says when something was resumed. No prefix of a kind does.
pub(in crate::store) const RESUMED: char = '=';

/// Zero would say that it was resumed.
const LONG_AGO: u64 = 1;

/// What one server keeps of it, or several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::store) struct Switches {
    /// By prefix: since when.
    paused: BTreeMap<String, UnixMs>,
    /// By prefix: when last. On several servers only.
    resumed: BTreeMap<String, UnixMs>,
}

/// What was last done to a kind by its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum PauseSwitch {
    Resumed,
    Paused,
}

/// The field that says when what begins so was resumed.
pub(in crate::store) fn resumed(prefix: &str) -> String {
    format!("{RESUMED}{prefix}")
}

impl Switches {
    /// By the fields of the hash. What is no number counts as done long ago: a pause holds, for all
    /// that is known of it.
    pub(in crate::store) fn read(fields: Vec<(String, String)>) -> Self {
        let mut switches = Switches::default();
        for (field, at) in fields {
            let at = at.parse().unwrap_or(LONG_AGO);
            match field.strip_prefix(RESUMED) {
                Some(prefix) => switches.resumed.insert(prefix.to_owned(), UnixMs(at)),
                None => switches.paused.insert(field, UnixMs(at)),
            };
        }
        switches
    }

    /// What several servers know together.
    pub(in crate::store) fn together(all: impl IntoIterator<Item = Switches>) -> Self {
        let mut together = Switches::default();
        for one in all {
            take_newer(&mut together.paused, one.paused);
            take_newer(&mut together.resumed, one.resumed);
        }
        together.forget_what_is_over();
        together
    }

    /// What was resumed by the same prefix or a shorter one since.
    fn forget_what_is_over(&mut self) {
        let resumed = self.resumed.clone();
        let ended = |prefix: &str, at: UnixMs| {
            let covers = |(shorter, _): &(&String, _)| prefix.starts_with(&***shorter);
            resumed.iter().filter(covers).any(|(_, since)| *since > at)
        };
        self.paused.retain(|prefix, at| !ended(prefix, *at));
        self.resumed.retain(|prefix, at| !ended(prefix, *at));
    }

    /// The largest number.
    pub(in crate::store) fn newest(&self) -> UnixMs {
        let all = self.paused.values().chain(self.resumed.values());
        all.copied().max().unwrap_or(UnixMs(0))
    }

    /// What is paused, and since when; in order.
    pub(in crate::store) fn rules(&self) -> impl Iterator<Item = (&str, UnixMs)> {
        self.paused
            .iter()
            .map(|(prefix, since)| (&**prefix, *since))
    }

    /// Since when a kind is paused that is used for the first time.
    pub(in crate::store) fn rule_of(&self, kind: &Kind) -> Option<UnixMs> {
        let mut rules = self.rules();
        Some(rules.find(|(prefix, _)| covers(prefix, kind))?.1)
    }

    /// What was last done to this kind, and its number.
    pub(in crate::store) fn last_of(&self, kind: &Kind) -> Option<(UnixMs, PauseSwitch)> {
        let of = |switches: &BTreeMap<String, UnixMs>, what| {
            let about = switches.iter().filter(|(prefix, _)| covers(prefix, kind));
            about.map(|(_, at)| (*at, what)).max()
        };
        of(&self.paused, PauseSwitch::Paused).max(of(&self.resumed, PauseSwitch::Resumed))
    }

    /// The fields that a server has to write that keeps `old`, and those that it has to delete.
    pub(in crate::store) fn change(&self, old: &Switches) -> (Vec<(String, UnixMs)>, Vec<String>) {
        let (known, old) = (self.fields(), old.fields());
        let over = old
            .keys()
            .filter(|field| !known.contains_key(*field))
            .cloned()
            .collect();
        let mut news = known;
        news.retain(|field, at| old.get(field) != Some(at));
        (news.into_iter().collect(), over)
    }

    fn fields(&self) -> BTreeMap<String, UnixMs> {
        let paused = self.paused.iter().map(|(prefix, at)| (prefix.clone(), *at));
        let resumed = self
            .resumed
            .iter()
            .map(|(prefix, at)| (resumed(prefix), *at));
        paused.chain(resumed).collect()
    }

    /// The fields that are of no use once all was resumed that begins so.
    pub(in crate::store) fn ended_by(&self, prefix: &str) -> Vec<String> {
        let paused = self.paused.keys().filter(|it| it.starts_with(prefix));
        let older = self
            .resumed
            .keys()
            .filter(|it| it.starts_with(prefix) && *it != prefix);
        paused.cloned().chain(older.map(|it| resumed(it))).collect()
    }
}

fn covers(prefix: &str, kind: &Kind) -> bool {
    let kind = kind.as_str();
    kind.starts_with(prefix) || prefix.strip_suffix(':') == Some(kind)
}

fn take_newer(into: &mut BTreeMap<String, UnixMs>, from: BTreeMap<String, UnixMs>) {
    for (prefix, at) in from {
        let known = into.entry(prefix).or_insert(at);
        *known = at.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(fields: &[(&str, u64)]) -> Switches {
        let fields = fields.iter();
        let fields = fields.map(|(field, at)| ((*field).to_owned(), at.to_string()));
        Switches::read(fields.collect())
    }

    fn kind(name: &str) -> Kind {
        Kind::parse(name).unwrap()
    }

    #[test]
    fn the_last_that_is_about_a_kind_counts() {
        let all = switches(&[("a:", 10), ("a:b:", 30), ("=a:b:c:", 20), ("=", 5)]);
        assert_eq!(all.newest(), UnixMs(30));
        let last = |name| all.last_of(&kind(name));
        assert_eq!(last("a:b:c"), Some((UnixMs(30), PauseSwitch::Paused)));
        assert_eq!(last("a:x:c"), Some((UnixMs(10), PauseSwitch::Paused)));
        assert_eq!(last("z:b:c"), Some((UnixMs(5), PauseSwitch::Resumed)));
        assert_eq!(Switches::default().last_of(&kind("a:b:c")), None);
        // By its name as well, with or without the colon behind it.
        for prefix in ["a:b:c", "a:b:c:"] {
            let one = switches(&[(prefix, 7)]);
            assert_eq!(one.rule_of(&kind("a:b:c")), Some(UnixMs(7)), "{prefix}");
            assert_eq!(one.rule_of(&kind("a:b:d")), None, "{prefix}");
        }
        // Of two at the same time the pause.
        let both = switches(&[("a:", 10), ("=a:", 10)]);
        assert_eq!(
            both.last_of(&kind("a:b:c")),
            Some((UnixMs(10), PauseSwitch::Paused))
        );
        assert_eq!(both.rule_of(&kind("a:b:c")), Some(UnixMs(10)));
    }

    #[test]
    fn one_that_was_away_learns_what_it_has_missed() {
        // It has missed that `a:` was resumed, and `b:` paused.
        let old = switches(&[("a:x:", 10), ("c:", 12), ("=d:", 1)]);
        let other = switches(&[("b:", 30), ("=a:", 20), ("c:", 12), ("=d:", 1)]);
        let together = Switches::together([old.clone(), other.clone()]);
        let rules: Vec<_> = together.rules().map(|(prefix, _)| prefix).collect();
        assert_eq!(rules, ["b:", "c:"]);
        let (write, delete) = together.change(&old);
        let write: Vec<_> = write.iter().map(|(field, at)| (&**field, at.0)).collect();
        assert_eq!(write, [("=a:", 20), ("b:", 30)]);
        assert_eq!(delete, ["a:x:"]);
        assert_eq!(together.change(&other), Default::default());
    }

    #[test]
    fn what_was_paused_anew_is_paused() {
        let old = switches(&[("a:", 10)]);
        let other = switches(&[("a:", 30), ("=a:", 20)]);
        let together = Switches::together([old.clone(), other]);
        assert_eq!(together.rule_of(&kind("a:b:c")), Some(UnixMs(30)));
        let (write, delete) = together.change(&old);
        assert_eq!(write.len(), 2, "{write:?}");
        assert!(delete.is_empty(), "{delete:?}");
    }

    #[test]
    fn what_is_covered_by_a_resume_is_kept_no_longer() {
        let all = switches(&[("a:b:", 10), ("=a:b:", 5), ("=a:", 3), ("b:", 1)]);
        assert_eq!(all.ended_by("a:"), ["a:b:", "=a:b:"]);
        assert_eq!(all.ended_by(""), ["a:b:", "b:", "=a:", "=a:b:"]);
    }
}
