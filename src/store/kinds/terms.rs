//! Terms of kinds: by which jobs leave records for an archive when they end, or changes for a copy.
//!
//! A rule is the field `archive app1:mail:` of `keyfall:meta`, its terms and `set who`; `archive `
//! alone is for all kinds. A rule that was removed stays as `off set who`, so that a server that was
//! away, and a ledger that missed it, learn of it. Each ledger has the rule that covers its kind, the
//! one of the longest prefix, in its `calls`, with the time of the newest rule that covers the kind. A
//! kind that begins gets it before its first job is acknowledged.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::future::{join_all, try_join};

use crate::error::{Error, Result};
use crate::keeping::{ArchiveTerms, CopyTerms, KindTerms};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::shards::Layout;
use crate::store::ledger::script::TERMS;
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Server, Store, from_value};
use crate::time::UnixMs;

/// The terms of a prefix, and who set them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TermsRule<T> {
    /// The terms; `None` if they were removed.
    pub(crate) terms: Option<T>,
    /// The time at which they were set. The newest rule holds.
    pub(crate) set: UnixMs,
    /// The operator or process that set them.
    pub(crate) by: String,
}

impl<T: KindTerms> TermsRule<T> {
    /// The text that [`parse`](Self::parse) reads.
    pub(in crate::store) fn text(&self) -> String {
        let by = self.by.replace(char::is_control, " ");
        let terms = self.terms.as_ref();
        let terms = terms.map_or_else(|| "off".to_owned(), T::rule_text);
        format!("{terms} {} {by}", self.set)
    }

    /// Reads a rule; `None` if another program wrote it.
    pub(in crate::store) fn parse(text: &str) -> Option<Self> {
        let (terms, rest) = match text.strip_prefix("off ") {
            Some(rest) => (None, rest),
            None => {
                let (terms, rest) = T::of_rule(text)?;
                (Some(terms), rest)
            }
        };
        let (set, by) = rest.split_once(' ')?;
        Some(TermsRule {
            terms,
            set: UnixMs(set.parse().ok()?),
            by: by.to_owned(),
        })
    }
}

/// The prefixes that can have a rule for a kind, the longest first.
fn prefixes_of(kind: &Kind) -> Vec<String> {
    let text = format!("{kind}:");
    let ends = text.match_indices(':').map(|(at, _)| at + 1).rev();
    ends.chain([0]).map(|end| text[..end].to_owned()).collect()
}

impl Store {
    /// The rules by prefix, in order, those that were removed as well; of the servers that are there.
    pub(crate) async fn terms_rules<T: KindTerms>(
        &self,
        until: Instant,
    ) -> Result<Vec<(String, TermsRule<T>)>> {
        let known = self.on_each(until, |it, until| {
            Box::pin(it.prefixes_with_terms(T::FIELD, until))
        });
        let mut prefixes = known.await.of_those_there()?.concat();
        prefixes.sort();
        prefixes.dedup();
        if prefixes.is_empty() {
            return Ok(Vec::new());
        }
        let known = self.on_each(until, |it, until| {
            Box::pin(it.terms_rules::<T>(&prefixes, until))
        });
        let known = known.await.of_those_there()?;
        let newest = |at: usize| {
            let rules = known.iter().filter_map(|rules| rules[at].as_ref());
            rules.max_by_key(|rule| rule.set).cloned()
        };
        let rules = prefixes.into_iter().enumerate();
        Ok(rules
            .filter_map(|(at, prefix)| Some((prefix, newest(at)?)))
            .collect())
    }

    /// Stores the rule of a prefix.
    ///
    /// # Errors
    /// If one of the servers is away: each has to know all rules.
    pub(crate) async fn set_terms_rule<T: KindTerms>(
        &self,
        prefix: &Prefix,
        rule: &TermsRule<T>,
        until: Instant,
    ) -> Result<()> {
        let field = format!("{} {}", T::FIELD, prefix.as_str());
        let set = self.on_each(until, |it, until| {
            let mut cmd = redis::cmd("HSET");
            cmd.arg(it.names.meta()).arg(&field).arg(rule.text());
            Box::pin(async move { it.command(&cmd, until).await })
        });
        match set.await.there()?.1.pop() {
            Some(away) => Err(away.error),
            None => Ok(()),
        }
    }

    /// Gives the ledgers of this layout of a kind the terms of its archive and of its copy. Returns the
    /// error of a server that is away.
    pub(crate) async fn apply_kept_terms(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<Option<Error>> {
        let of_archive = self.apply_terms_rule::<ArchiveTerms>(kind, layout, until);
        let of_copy = self.apply_terms_rule::<CopyTerms>(kind, layout, until);
        let (of_archive, of_copy) = try_join(of_archive, of_copy).await?;
        Ok(of_archive.or(of_copy))
    }

    /// Gives the ledgers of this layout of a kind the rule that covers it, if there is or was one.
    /// Returns the error of a server that is away: its ledgers have not heard of the rule.
    pub(crate) async fn apply_terms_rule<T: KindTerms>(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<Option<Error>> {
        let prefixes = &prefixes_of(kind);
        let known = self.on_rest(until, |it, until| {
            Box::pin(it.terms_rules::<T>(prefixes, it.patience_for_one(until)))
        });
        let known = match known.await.of_those_there() {
            // The node that has the rules is away, and must not keep kinds of other nodes from
            // beginning.
            Err(error) if self.is_cluster() && is_of_absence(&error) => return Ok(Some(error)),
            known => known?,
        };
        let covering = (0..prefixes.len()).filter_map(|at| {
            let rules = known.iter().filter_map(|rules| rules[at].as_ref());
            rules.max_by_key(|rule| rule.set)
        });
        let covering: Vec<&TermsRule<T>> = covering.collect();
        // The longest prefix with terms holds, since the last change of any of them.
        let holds = covering.iter().find(|rule| rule.terms.is_some());
        let (Some(newest), Some(holds)) = (
            covering.iter().map(|rule| rule.set).max(),
            holds.or(covering.first()),
        ) else {
            return Ok(None);
        };
        let rule = TermsRule {
            set: newest,
            ..(*holds).clone()
        };
        self.give_terms(kind, layout, &rule, until).await
    }

    /// Gives the ledgers of this layout of a kind this rule. One that has a newer rule keeps it.
    /// Returns the error of a server that is away.
    pub(in crate::store) async fn give_terms<T: KindTerms>(
        &self,
        kind: &Kind,
        layout: Layout,
        rule: &TermsRule<T>,
        until: Instant,
    ) -> Result<Option<Error>> {
        let text = &rule.text();
        let ledgers = self.servers.iter().map(|it| async {
            let is_here = |shard: &u16| self.place_of(kind, *shard) == it.place();
            for shard in (0..layout.ledgers()).filter(is_here) {
                let ledger = it.names.ledger(kind, shard);
                let keys = [&*ledger.calls, &ledger.lanes];
                let mut cmd = it.call_on(&TERMS, &keys, &ledger);
                cmd.arg(T::FIELD).arg(text).arg(rule.set.0);
                it.eval(&TERMS, &cmd, &it.clock, &ledger.subject, until)
                    .await?;
            }
            Ok(())
        });
        let mut away = None;
        for told in join_all(ledgers).await {
            match told {
                Err(error) if self.has_parts() && is_of_absence(&error) => away = Some(error),
                told => told?,
            }
        }
        Ok(away)
    }
}

/// The first words of the fields of rules that kinds keep.
const RULES: [&str; 3] = [ArchiveTerms::FIELD, CopyTerms::FIELD, "limit"];

impl Store {
    /// The rules of archives, copies and limits as they are stored, of the servers that are there.
    pub(crate) async fn stored_rules(&self, until: Instant) -> Result<BTreeMap<String, String>> {
        let known = self.on_each(until, |it, until| Box::pin(it.stored_rules(until)));
        Ok(known
            .await
            .of_those_there()?
            .into_iter()
            .flatten()
            .collect())
    }

    /// Stores these rules again, where there is none for the same kinds.
    ///
    /// # Errors
    /// If one of the servers is away. Repeat the call.
    pub(crate) async fn restore_rules(
        &self,
        rules: &BTreeMap<String, String>,
        until: Instant,
    ) -> Result<()> {
        for (field, rule) in rules {
            let set = self.on_each(until, |it, until| {
                let mut cmd = redis::cmd("HSETNX");
                cmd.arg(it.names.meta()).arg(field).arg(rule);
                Box::pin(async move { it.command(&cmd, until).await })
            });
            if let Some(away) = set.await.there()?.1.pop() {
                return Err(away.error);
            }
        }
        Ok(())
    }
}

impl Server {
    async fn stored_rules(&self, until: Instant) -> Result<Vec<(String, String)>> {
        let mut get = redis::cmd("HGETALL");
        get.arg(self.names.meta());
        let fields: Vec<(Vec<u8>, Vec<u8>)> = from_value(self.command(&get, until).await?)?;
        let rule = |(field, rule): (Vec<u8>, Vec<u8>)| {
            let (field, rule) = (
                String::from_utf8(field).ok()?,
                String::from_utf8(rule).ok()?,
            );
            let what = field.split(' ').next()?;
            (RULES.contains(&what) && field.contains(' ')).then_some((field, rule))
        };
        Ok(fields.into_iter().filter_map(rule).collect())
    }

    /// The rules of these prefixes, in their order.
    async fn terms_rules<T: KindTerms>(
        &self,
        prefixes: &[String],
        until: Instant,
    ) -> Result<Vec<Option<TermsRule<T>>>> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.names.meta());
        for prefix in prefixes {
            get.arg(format!("{} {prefix}", T::FIELD));
        }
        let texts: Vec<Option<Vec<u8>>> = from_value(self.command(&get, until).await?)?;
        let rule = |text: Option<Vec<u8>>| TermsRule::parse(std::str::from_utf8(&text?).ok()?);
        Ok(texts.into_iter().map(rule).collect())
    }

    async fn prefixes_with_terms(&self, what: &str, until: Instant) -> Result<Vec<String>> {
        let mut get = redis::cmd("HKEYS");
        get.arg(self.names.meta());
        let fields: Vec<Vec<u8>> = from_value(self.command(&get, until).await?)?;
        let prefix = |field: Vec<u8>| {
            let field = String::from_utf8(field).ok()?;
            field
                .strip_prefix(what)?
                .strip_prefix(' ')
                .map(str::to_owned)
        };
        Ok(fields.into_iter().filter_map(prefix).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_of_a_kind_comes_first() {
        let kind = Kind::parse("app1:mail:send").unwrap();
        let prefixes = prefixes_of(&kind);
        assert_eq!(prefixes, ["app1:mail:send:", "app1:mail:", "app1:", ""]);
    }

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let rule = TermsRule {
            terms: Some(ArchiveTerms::new().keep_months(3)),
            set: UnixMs(1_795_000_000_000),
            by: "anna of the night shift".into(),
        };
        assert_eq!(
            TermsRule::<ArchiveTerms>::parse(&rule.text()),
            Some(rule.clone())
        );
        let removed = TermsRule {
            terms: None,
            ..rule
        };
        assert_eq!(removed.text(), "off 1795000000000 anna of the night shift");
        assert_eq!(
            TermsRule::<ArchiveTerms>::parse(&removed.text()),
            Some(removed)
        );
        assert_eq!(TermsRule::<ArchiveTerms>::parse("0 1 2 3 soon anna"), None);
        assert_eq!(TermsRule::<ArchiveTerms>::parse("0 1 2 3 7"), None);
    }
}
