//! Limits of kinds: the rules, one for each limited kind, and their parts in the ledgers.
//!
//! A rule is the field `limit app:module:biz` of `keyfall:meta`, `set jobs per-µs burst concurrency
//! by`, where 0 stands for none; behind a tab, the limit of each group if there are groups, `where
//! jobs per-µs burst concurrency name=weight …`. It outlives the ledgers of its kind: a kind that
//! begins anew is limited again. Each ledger has its part, which the claim enforces.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Cmd;

use crate::error::Result;
use crate::key::Kind;
#[cfg(feature = "worker")]
use crate::limit::GroupBy;
use crate::limit::{Limit, Terms};
use crate::store::ledger::number;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{ADMIT, HOLD, LIMIT};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Lane, Ledger, Server, Store, Word, from_value};
use crate::time::{UnixMs, UnixUs};

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

/// The limit of a ledger, and the jobs that wait for it.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The rule of which the ledger has a part.
    pub(crate) rule: LimitRule,
    /// How many due jobs may start now.
    pub(crate) room: u64,
    /// How many leases there are.
    pub(crate) leases: u64,
    /// How many jobs are due.
    pub(crate) due: u64,
    /// When the rate allows one more start than were announced; `None` if it stops none.
    pub(crate) next: Option<UnixUs>,
}

#[cfg(feature = "worker")]
impl Admission {
    /// Where the group of a job is found, if the limit has groups.
    pub(crate) fn group_by(&self) -> Option<&GroupBy> {
        self.rule.limit.as_ref()?.get_per()
    }
}

impl LimitRule {
    /// Reads a rule; `None` if another program wrote it.
    fn parse(text: &str) -> Option<Self> {
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
    fn text(&self) -> String {
        let none = Limit::new();
        let (kind, groups) = self.limit.as_ref().unwrap_or(&none).rule_text();
        let by = self.by.replace(char::is_whitespace, " ");
        let groups = groups.map(|it| format!("\t{it}")).unwrap_or_default();
        format!("{} {kind} {by}{groups}", self.set)
    }

    /// The limit as the scripts know it.
    ///
    /// # Errors
    ///
    /// If a value is out of range.
    pub(crate) fn terms(&self) -> Result<Terms> {
        self.limit.as_ref().map_or(Ok(Terms::NONE), Limit::terms)
    }
}

impl Store {
    /// The rule of a kind, of the servers that are there.
    pub(crate) async fn limit_rule(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Option<LimitRule>> {
        let known = self.on_each(until, |it, until| Box::pin(it.limit_rule(kind, until)));
        let known = known.await.of_those_there()?.into_iter().flatten();
        Ok(known.max_by_key(|rule| rule.set))
    }

    /// The kinds that have a rule, in order.
    pub(crate) async fn limited_kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        let known = self.on_each(until, |it, until| Box::pin(it.limited_kinds(until)));
        let mut kinds: Vec<Kind> = known
            .await
            .of_those_there()?
            .into_iter()
            .flatten()
            .collect();
        kinds.sort();
        kinds.dedup();
        Ok(kinds)
    }

    /// Stores the rule of a kind; one without a limit is removed.
    ///
    /// # Errors
    ///
    /// If one of the servers is away: each has to know all rules.
    pub(crate) async fn set_limit_rule(
        &self,
        kind: &Kind,
        rule: &LimitRule,
        until: Instant,
    ) -> Result<()> {
        let field = format!("{FIELD}{kind}");
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

    /// The limit that was declared last for a kind, in words; of the servers that are there.
    pub(crate) async fn declared_limit(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Option<String>> {
        let field = format!("{DECLARED}{kind}");
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
        kind: &Kind,
        words: &str,
        until: Instant,
    ) -> Result<()> {
        let field = format!("{DECLARED}{kind}");
        let noted = self.on_each(until, |it, until| {
            let mut set = redis::cmd("HSET");
            set.arg(it.names.meta()).arg(&field).arg(words);
            Box::pin(async move { it.command(&set, until).await })
        });
        noted.await.of_those_there().map(drop)
    }

    /// Limits the ledgers of a kind that was just registered, if it has a rule. Servers that are away
    /// are left out.
    pub(crate) async fn apply_limit_rule(&self, kind: &Kind, until: Instant) -> Result<()> {
        let known = self.on_rest(until, |it, until| {
            Box::pin(it.limit_rule(kind, it.patience_for_one(until)))
        });
        let known = match known.await.of_those_there() {
            // The node that has the rules is away, and must not keep kinds of other nodes from
            // beginning.
            Err(error) if self.is_cluster() && is_of_absence(&error) => return Ok(()),
            known => known?,
        };
        let Some(rule) = known.into_iter().flatten().max_by_key(|rule| rule.set) else {
            return Ok(());
        };
        let ledgers = self.layout_of(kind.as_str()).ledgers();
        let Ok(terms) = rule.terms().and_then(|terms| terms.split(ledgers)) else {
            tracing::warn!(%kind, ledgers, "the limit of this kind cannot be split over its shards");
            return Ok(());
        };
        let limits = self.servers.iter().map(|it| async {
            for shard in self.shards_at(it, kind) {
                let ledger = it.names.ledger(kind, shard);
                let keys = [
                    &*ledger.calls,
                    &ledger.lanes,
                    &ledger.history,
                    &ledger.due,
                    &ledger.shadow,
                    &ledger.lease,
                ];
                let mut cmd = it.call_on(&LIMIT, &keys, &ledger);
                let wake = it.names.wake(it.database);
                describe(
                    &mut cmd,
                    &mut Lane::new(),
                    (&wake, &ledger.subject),
                    &terms,
                    &rule,
                );
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

/// Adds the arguments of `lua/limit.lua`.
fn describe(
    cmd: &mut Cmd,
    lane: &mut Lane,
    (wake, subject): (&str, &str),
    terms: &Terms,
    rule: &LimitRule,
) {
    number(cmd, lane);
    cmd.arg(wake).arg(subject);
    cmd.arg(terms.gap).arg(terms.burst).arg(terms.most);
    cmd.arg(rule.text());
    match &terms.groups {
        Some(groups) => cmd
            .arg(&groups.by)
            .arg(groups.gap)
            .arg(groups.burst)
            .arg(groups.most)
            .arg(&groups.weights),
        None => cmd.arg("").arg(0).arg(0).arg(0).arg(""),
    };
}

impl Server {
    async fn limit_rule(&self, kind: &Kind, until: Instant) -> Result<Option<LimitRule>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.meta()).arg(format!("{FIELD}{kind}"));
        let text: Option<Vec<u8>> = from_value(self.command(&get, until).await?)?;
        Ok(text.and_then(|text| LimitRule::parse(std::str::from_utf8(&text).ok()?)))
    }

    async fn limited_kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        let mut get = redis::cmd("HKEYS");
        get.arg(self.names.meta());
        let fields: Vec<Vec<u8>> = from_value(self.command(&get, until).await?)?;
        let kind = |field: Vec<u8>| {
            let field = String::from_utf8(field).ok()?;
            Kind::parse(field.strip_prefix(FIELD)?).ok()
        };
        Ok(fields.into_iter().filter_map(kind).collect())
    }
}

impl Ledger {
    /// Limits the claims of this ledger to `terms`, its part of `rule`; `lua/limit.lua`. Returns
    /// `false`, and changes nothing, if it has a newer limit.
    ///
    /// # Errors
    ///
    /// A full server refuses the call.
    pub(crate) async fn limit(
        &self,
        lane: &mut Lane,
        terms: &Terms,
        rule: &LimitRule,
        until: Instant,
    ) -> Result<bool> {
        let n = &self.names;
        let keys: [&str; 6] = [&n.calls, &n.lanes, &n.history, &n.due, &n.shadow, &n.lease];
        let mut cmd = self.call(&LIMIT, &keys, [].into_iter());
        describe(
            &mut cmd,
            lane,
            (&self.wake, &self.names.subject),
            terms,
            rule,
        );
        let answers = self.eval_items(&LIMIT, &cmd, 1, until).await?;
        match answers[0].answer {
            Word::Limited => Ok(true),
            Word::Kept => Ok(false),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// Lets no job of this ledger start for a while; `lua/hold.lua`. Returns `false`, and changes
    /// nothing, if it has no limit.
    ///
    /// # Errors
    ///
    /// A full server refuses the call.
    pub(crate) async fn hold(&self, time: Duration, until: Instant) -> Result<bool> {
        let keys: [&str; 1] = [&self.names.calls];
        let mut cmd = self.call(&HOLD, &keys, [].into_iter());
        cmd.arg(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let answers = self.eval_items(&HOLD, &cmd, 1, until).await?;
        match answers[0].answer {
            Word::Held => Ok(true),
            Word::Absent => Ok(false),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// The limit of this ledger; `lua/admit.lua`. With `announces`, the due jobs that may start now
    /// are announced to all workers.
    pub(crate) async fn admit(&self, announces: bool, until: Instant) -> Result<Option<Admission>> {
        let n = &self.names;
        let keys: [&str; 3] = [&n.due, &n.leased, &n.calls];
        let mut cmd = self.call(&ADMIT, &keys, [].into_iter());
        cmd.arg(if announces { &*self.wake } else { "" })
            .arg(&n.subject);
        let mut reply = self.eval(&ADMIT, &cmd, until).await?.reply;
        let field = reply.text()?;
        // Behind the state of the ledger and its part of the limit; the state of the groups follows.
        let line = field.lines().next().unwrap_or_default();
        let rule = line.splitn(6, ' ').nth(5).and_then(LimitRule::parse);
        let (room, leases, due) = (reply.number()?, reply.number()?, reply.number()?);
        let next = reply.number()?;
        Ok(rule.map(|rule| Admission {
            rule,
            room,
            leases,
            due,
            next: (next > 0).then_some(UnixUs(next)),
        }))
    }
}

#[cfg(test)]
mod tests {
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
