//! Limits: the rules, one for each limited kind or prefix of kinds, and their parts in the ledgers.
//!
//! A rule is the field `limit app:module:biz`, or `limit app:module:`, of `keyfall:meta`, `set jobs
//! per-µs burst concurrency by`, where 0 stands for none; behind a tab, the limit of each group if
//! there are groups, `where jobs per-µs burst concurrency name=weight …`. It outlives the ledgers of
//! its kind: a kind that begins anew is limited again. Each ledger has its part, which the claim
//! enforces.

#[cfg(feature = "worker")]
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use crate::error::Result;
use crate::key::Kind;
use crate::limit::{Limit, LimitScope, Share, Terms};
use crate::shards::Layout;
use crate::store::ledger::limiting::{LimitPart, describe};
use crate::store::ledger::script::LIMIT;
use crate::store::servers::fan_out::is_of_absence;
#[cfg(feature = "worker")]
use crate::store::this_process;
use crate::store::{Server, Store, from_value};
use crate::time::UnixMs;

/// The beginning of the fields that hold rules.
const FIELD: &str = "limit ";

/// The beginning of the fields that hold the limits that programs have declared, in words.
const DECLARED: &str = "declared-limit ";

/// A limit, and who set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LimitRule {
    /// The limit; `None` for one that was removed.
    pub(crate) limit: Option<Limit>,
    /// The time at which it was set. The newest rule of a kind holds.
    pub(crate) set: UnixMs,
    /// The operator or process that set it.
    pub(crate) by: String,
}

impl LimitRule {
    /// Reads a rule; `None` if another program wrote it.
    pub(in crate::store) fn parse(text: &str) -> Option<Self> {
        let (text, groups) = match text.split_once('\t') {
            Some((text, groups)) => (text, Some(groups)),
            None => (text, None),
        };
        let (set, rest) = text.split_once(' ')?;
        let (blank, _) = rest.match_indices(' ').nth(3)?;
        let limit = Limit::of_rule(&rest[..blank], groups)?;
        Some(LimitRule {
            limit: (limit != Limit::new()).then_some(limit),
            set: UnixMs(set.parse().ok()?),
            by: rest[blank + 1..].to_owned(),
        })
    }

    /// The text that [`parse`](Self::parse) reads.
    pub(in crate::store) fn text(&self) -> String {
        let none = Limit::new();
        let (kind, groups) = self.limit.as_ref().unwrap_or(&none).rule_text();
        let by = self.by.replace(char::is_whitespace, " ");
        let groups = groups.map(|it| format!("\t{it}")).unwrap_or_default();
        format!("{} {kind} {by}{groups}", self.set)
    }

    /// What a ledger of a kind with this layout has of the limit. If several ledgers share it, this
    /// one begins without a share, and gets one when its jobs wait.
    ///
    /// # Errors
    ///
    /// If a value is out of range.
    pub(crate) fn part(&self, scope: &LimitScope, layout: Layout) -> Result<LimitPart> {
        let whole = self.limit.as_ref().map_or(Ok(Terms::NONE), Limit::terms)?;
        let is_alone = layout.ledgers() == 1 && !scope.is_prefix();
        Ok(match &self.limit {
            Some(_) if !is_alone => LimitPart::Shared {
                whole,
                share: Share::default(),
                rule: self.set,
            },
            _ => LimitPart::Own(whole),
        })
    }
}

impl Store {
    /// The rule of a scope, of the servers that are there.
    pub(crate) async fn limit_rule(
        &self,
        scope: &LimitScope,
        until: Instant,
    ) -> Result<Option<LimitRule>> {
        let rules = self.limit_rules(std::slice::from_ref(scope), until).await?;
        Ok(rules.into_iter().next().map(|(_, rule)| rule))
    }

    /// The rule that holds for a kind, and its scope: the narrowest.
    #[cfg(feature = "worker")]
    pub(crate) async fn limit_of(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Option<(LimitScope, LimitRule)>> {
        let rules = self.limit_rules(&LimitScope::all_of(kind), until).await?;
        Ok(rules.into_iter().next())
    }

    /// The rules of those of these scopes that have one, in this order.
    async fn limit_rules(
        &self,
        scopes: &[LimitScope],
        until: Instant,
    ) -> Result<Vec<(LimitScope, LimitRule)>> {
        let known = self.on_each(until, |it, until| Box::pin(it.limit_rules(scopes, until)));
        Ok(newest_of(scopes, &known.await.of_those_there()?))
    }

    /// The scopes that have a rule, in order.
    pub(crate) async fn limit_scopes(&self, until: Instant) -> Result<Vec<LimitScope>> {
        let known = self.on_each(until, |it, until| Box::pin(it.limit_scopes(until)));
        let mut scopes = known.await.of_those_there()?.concat();
        scopes.sort();
        scopes.dedup();
        Ok(scopes)
    }

    /// Stores the rule of a scope; one without a limit is removed.
    ///
    /// # Errors
    ///
    /// If one of the servers is away: each has to know all rules.
    pub(crate) async fn set_limit_rule(
        &self,
        scope: &LimitScope,
        rule: &LimitRule,
        until: Instant,
    ) -> Result<()> {
        let field = format!("{FIELD}{scope}");
        let set = self.on_each(until, |it, until| {
            let mut cmd = redis::cmd(if rule.limit.is_some() { "HSET" } else { "HDEL" });
            cmd.arg(it.names.meta()).arg(&field);
            if rule.limit.is_some() {
                cmd.arg(rule.text());
            }
            Box::pin(async move { it.command(&cmd, until).await })
        });
        match set.await.there()?.1.pop() {
            Some(away) => Err(away.error),
            None => Ok(()),
        }
    }

    /// The limit that was declared last for a scope, in words; of the servers that are there.
    pub(crate) async fn declared_limit(
        &self,
        scope: &LimitScope,
        until: Instant,
    ) -> Result<Option<String>> {
        let field = format!("{DECLARED}{scope}");
        let known = self.on_each(until, |it, until| {
            let mut get = redis::cmd("HGET");
            get.arg(it.names.meta()).arg(&field);
            Box::pin(async move { from_value(it.command(&get, until).await?) })
        });
        let known: Vec<Option<String>> = known.await.of_those_there()?;
        Ok(known.into_iter().flatten().next())
    }

    /// Notes that a limit was declared.
    pub(crate) async fn declare_limit(
        &self,
        scope: &LimitScope,
        words: &str,
        until: Instant,
    ) -> Result<()> {
        let field = format!("{DECLARED}{scope}");
        let noted = self.on_each(until, |it, until| {
            let mut set = redis::cmd("HSET");
            set.arg(it.names.meta()).arg(&field).arg(words);
            Box::pin(async move { it.command(&set, until).await })
        });
        noted.await.of_those_there().map(drop)
    }

    /// Removes the limit of the ledgers of a kind that no rule covers.
    #[cfg(feature = "worker")]
    pub(crate) async fn free_of_limit(self: &Arc<Self>, kind: &Kind, until: Instant) -> Result<()> {
        let removed = LimitRule {
            limit: None,
            set: self.time(until).await?.floor_ms(),
            by: this_process().to_owned(),
        };
        let layout = self.look_up(kind, until).await?;
        for shard in 0..layout.ledgers() {
            let ledger = self.ledger(kind, layout.place(shard));
            let none = LimitPart::Own(Terms::NONE);
            self.insist_on_limit(&ledger, &none, &removed, until)
                .await?;
        }
        Ok(())
    }

    /// Limits the ledgers of a kind that was just registered, if a rule covers it. Servers that are
    /// away are left out.
    pub(crate) async fn apply_limit_rule(&self, kind: &Kind, until: Instant) -> Result<()> {
        let scopes = &LimitScope::all_of(kind);
        let known = self.on_rest(until, |it, until| {
            Box::pin(it.limit_rules(scopes, it.patience_for_one(until)))
        });
        let known = match known.await.of_those_there() {
            // The node that has the rules is away, and must not keep kinds of other nodes from
            // beginning.
            Err(error) if self.is_cluster() && is_of_absence(&error) => return Ok(()),
            known => known?,
        };
        let Some((scope, rule)) = newest_of(scopes, &known).into_iter().next() else {
            return Ok(());
        };
        let part = rule.part(&scope, self.layout_of(kind.as_str()))?;
        let limits = self.servers.iter().map(|it| async {
            for shard in self.shards_at(it, kind) {
                let ledger = it.names.ledger(kind, shard);
                let mut cmd = it.call_on(&LIMIT, &ledger.of_limit(), &ledger);
                let wake = it.names.wake(it.database);
                let subject = (&*wake, &*ledger.subject);
                describe(&mut cmd, None, subject, &part, &rule);
                it.eval(&LIMIT, &cmd, &it.clock, &ledger.subject, until)
                    .await?;
            }
            Ok(())
        });
        for limited in join_all(limits).await {
            match limited {
                Err(error) if self.has_parts() && is_of_absence(&error) => {}
                limited => limited?,
            }
        }
        Ok(())
    }
}

/// The newest rule of each of these scopes that has one, in their order. `known` has what each
/// server knows.
fn newest_of(
    scopes: &[LimitScope],
    known: &[Vec<Option<LimitRule>>],
) -> Vec<(LimitScope, LimitRule)> {
    let newest = |at: usize| {
        let rules = known.iter().filter_map(|rules| rules[at].as_ref());
        rules.max_by_key(|rule| rule.set).cloned()
    };
    let scopes = scopes.iter().enumerate();
    scopes
        .filter_map(|(at, scope)| Some((scope.clone(), newest(at)?)))
        .collect()
}

impl Server {
    /// The rules of these scopes, in their order.
    async fn limit_rules(
        &self,
        scopes: &[LimitScope],
        until: Instant,
    ) -> Result<Vec<Option<LimitRule>>> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.names.meta());
        for scope in scopes {
            get.arg(format!("{FIELD}{scope}"));
        }
        let texts: Vec<Option<Vec<u8>>> = from_value(self.command(&get, until).await?)?;
        let rule = |text: Option<Vec<u8>>| LimitRule::parse(std::str::from_utf8(&text?).ok()?);
        Ok(texts.into_iter().map(rule).collect())
    }

    async fn limit_scopes(&self, until: Instant) -> Result<Vec<LimitScope>> {
        let mut get = redis::cmd("HKEYS");
        get.arg(self.names.meta());
        let told = self.command(&get, until).await;
        #[cfg(feature = "worker")]
        self.note("the limits", "read", told.as_ref().err());
        let fields: Vec<Vec<u8>> = from_value(told?)?;
        let scope = |field: Vec<u8>| {
            let field = String::from_utf8(field).ok()?;
            LimitScope::parse(field.strip_prefix(FIELD)?).ok()
        };
        Ok(fields.into_iter().filter_map(scope).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::GroupBy;

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let second = Duration::from_secs(1);
        for limit in [
            Limit::new().rate(10, second),
            Limit::new().rate(3, 60 * second).burst(7).concurrency(9),
            Limit::new().concurrency(5),
            Limit::new().per(GroupBy::id_part(2)),
            Limit::new()
                .per(GroupBy::header("tenant of"))
                .rate(10, second)
                .burst(3)
                .total_concurrency(50)
                .weight("", 0.001)
                .weight("acme & co", 2.5),
        ] {
            let rule = LimitRule {
                limit: Some(limit),
                set: UnixMs(1_795_000_000_000),
                by: "anna of the night shift".into(),
            };
            let text = rule.text();
            assert_eq!(LimitRule::parse(&text), Some(rule));
        }
        let removed = LimitRule {
            limit: None,
            set: UnixMs(7),
            by: "worker:1".into(),
        };
        let text = removed.text();
        assert_eq!(LimitRule::parse(&text), Some(removed));
        for damaged in [
            "",
            "7",
            "7 1 2 3",
            "soon 1 1000000 0 0 anna",
            "7 1 1000000 0 0",
            "7 1 1000000 0 0 anna\t",
            "7 1 1000000 0 0 anna\tid/1",
            "7 1 1000000 0 0 anna\tid/1 0 0 0",
            "7 1 1000000 0 0 anna\tid/x 0 0 0 0",
            "7 1 1000000 0 0 anna\tid/1 0 0 0 0 acme",
        ] {
            assert_eq!(LimitRule::parse(damaged), None, "{damaged}");
        }
    }
}
