//! Pause rules: the prefixes of kinds that are paused, and the prefixes that were resumed.
//!
//! Each of several servers keeps all rules, and a server that was away has missed the latest
//! changes. So with several servers pauses and resumes are numbered: the number is the time in Unix
//! milliseconds, or one more than the largest known number, whichever is higher. A comparison of
//! two servers then shows which of them is behind. This file does no I/O; `pause.rs` reads and
//! writes the rules.

use std::collections::BTreeMap;

use crate::key::Kind;
use crate::time::UnixMs;

/// The first character of a field that holds the time of a resume. No prefix of a kind begins with
/// it.
pub(in crate::store) const RESUMED: char = '=';

/// The number that stands in for a value that is not a number. Not zero, because a pause with the
/// number 0 counts as resumed.
const LONG_AGO: u64 = 1;

/// The pauses and resumes that one server keeps, or several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::store) struct Switches {
    /// The time of each pause, by prefix.
    paused: BTreeMap<String, UnixMs>,
    /// The time of the last resume, by prefix. Empty on a single server, which deletes the pause
    /// instead.
    resumed: BTreeMap<String, UnixMs>,
}

/// The two changes that a rule makes. The order matters: if a pause and a resume have the same
/// number, the pause holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum PauseSwitch {
    Resumed,
    Paused,
}

/// The field that holds the time at which the kinds with this prefix were resumed.
pub(in crate::store) fn resumed(prefix: &str) -> String {
    format!("{RESUMED}{prefix}")
}

impl Switches {
    /// Reads the fields of the hash. A value that is not a number counts as a very old time: a
    /// pause with such a value still holds.
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

    /// Merges the rules of several servers: the newer number wins, and pauses that a later resume
    /// covers are dropped.
    pub(in crate::store) fn together(all: impl IntoIterator<Item = Switches>) -> Self {
        let mut together = Switches::default();
        for one in all {
            take_newer(&mut together.paused, one.paused);
            take_newer(&mut together.resumed, one.resumed);
        }
        together.forget_what_is_over();
        together
    }

    /// Drops each pause and resume that a later resume of the same prefix, or of a shorter one,
    /// covers.
    fn forget_what_is_over(&mut self) {
        let resumed = self.resumed.clone();
        let ended = |prefix: &str, at: UnixMs| {
            let covers = |(shorter, _): &(&String, _)| prefix.starts_with(&***shorter);
            resumed.iter().filter(covers).any(|(_, since)| *since > at)
        };
        self.paused.retain(|prefix, at| !ended(prefix, *at));
        self.resumed.retain(|prefix, at| !ended(prefix, *at));
    }

    /// The largest number of all pauses and resumes; 0 if there is none.
    pub(in crate::store) fn newest(&self) -> UnixMs {
        let all = self.paused.values().chain(self.resumed.values());
        all.copied().max().unwrap_or(UnixMs(0))
    }

    /// The paused prefixes with the time of each pause, in the order of the prefixes.
    pub(in crate::store) fn rules(&self) -> impl Iterator<Item = (&str, UnixMs)> {
        self.paused
            .iter()
            .map(|(prefix, since)| (&**prefix, *since))
    }

    /// The time of the pause that covers a kind which is used for the first time, if one does.
    pub(in crate::store) fn rule_of(&self, kind: &Kind) -> Option<UnixMs> {
        let mut rules = self.rules();
        Some(rules.find(|(prefix, _)| covers(prefix, kind))?.1)
    }

    /// The last change that covers this kind, with its number.
    pub(in crate::store) fn last_of(&self, kind: &Kind) -> Option<(UnixMs, PauseSwitch)> {
        let of = |switches: &BTreeMap<String, UnixMs>, what| {
            let about = switches.iter().filter(|(prefix, _)| covers(prefix, kind));
            about.map(|(_, at)| (*at, what)).max()
        };
        of(&self.paused, PauseSwitch::Paused).max(of(&self.resumed, PauseSwitch::Resumed))
    }

    /// The difference to a server that keeps `old`: the fields that it has to write, and the fields
    /// that it has to delete.
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

    /// All rules as fields of the hash.
    fn fields(&self) -> BTreeMap<String, UnixMs> {
        let paused = self.paused.iter().map(|(prefix, at)| (prefix.clone(), *at));
        let resumed = self
            .resumed
            .iter()
            .map(|(prefix, at)| (resumed(prefix), *at));
        paused.chain(resumed).collect()
    }

    /// The fields that a resume of `prefix` makes useless: all pauses, and all older resumes of
    /// longer prefixes, that begin with it.
    pub(in crate::store) fn ended_by(&self, prefix: &str) -> Vec<String> {
        let paused = self.paused.keys().filter(|it| it.starts_with(prefix));
        let older = self
            .resumed
            .keys()
            .filter(|it| it.starts_with(prefix) && *it != prefix);
        paused.cloned().chain(older.map(|it| resumed(it))).collect()
    }
}

/// Whether a prefix covers a kind. The full name of a kind covers it with and without a colon at
/// the end.
fn covers(prefix: &str, kind: &Kind) -> bool {
    let kind = kind.as_str();
    kind.starts_with(prefix) || prefix.strip_suffix(':') == Some(kind)
}

/// Merges `from` into `into`; the larger number wins.
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
    fn the_last_rule_for_a_kind_counts() {
        let all = switches(&[("a:", 10), ("a:b:", 30), ("=a:b:c:", 20), ("=", 5)]);
        assert_eq!(all.newest(), UnixMs(30));
        let last = |name| all.last_of(&kind(name));
        assert_eq!(last("a:b:c"), Some((UnixMs(30), PauseSwitch::Paused)));
        assert_eq!(last("a:x:c"), Some((UnixMs(10), PauseSwitch::Paused)));
        assert_eq!(last("z:b:c"), Some((UnixMs(5), PauseSwitch::Resumed)));
        assert_eq!(Switches::default().last_of(&kind("a:b:c")), None);
        // Also by its full name, with or without the colon at the end.
        for prefix in ["a:b:c", "a:b:c:"] {
            let one = switches(&[(prefix, 7)]);
            assert_eq!(one.rule_of(&kind("a:b:c")), Some(UnixMs(7)), "{prefix}");
            assert_eq!(one.rule_of(&kind("a:b:d")), None, "{prefix}");
        }
        // Of a pause and a resume at the same time the pause holds.
        let both = switches(&[("a:", 10), ("=a:", 10)]);
        assert_eq!(
            both.last_of(&kind("a:b:c")),
            Some((UnixMs(10), PauseSwitch::Paused))
        );
        assert_eq!(both.rule_of(&kind("a:b:c")), Some(UnixMs(10)));
    }

    #[test]
    fn a_server_that_was_away_learns_the_missed_rules() {
        // The server has missed the resume of `a:` and the pause of `b:`.
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
    fn a_kind_that_is_paused_again_is_paused() {
        let old = switches(&[("a:", 10)]);
        let other = switches(&[("a:", 30), ("=a:", 20)]);
        let together = Switches::together([old.clone(), other]);
        assert_eq!(together.rule_of(&kind("a:b:c")), Some(UnixMs(30)));
        let (write, delete) = together.change(&old);
        assert_eq!(write.len(), 2, "{write:?}");
        assert!(delete.is_empty(), "{delete:?}");
    }

    #[test]
    fn a_rule_that_a_resume_covers_is_dropped() {
        let all = switches(&[("a:b:", 10), ("=a:b:", 5), ("=a:", 3), ("b:", 1)]);
        assert_eq!(all.ended_by("a:"), ["a:b:", "=a:b:"]);
        assert_eq!(all.ended_by(""), ["a:b:", "b:", "=a:", "=a:b:"]);
    }
}
