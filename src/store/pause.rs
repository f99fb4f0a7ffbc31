//! Pausing kinds, and resuming them.
//!
//! A ledger knows whether its kind is paused, so that a claim and a pause cannot cross. Beside
//! that a rule is kept for the kinds that are still to come.

use std::time::Instant;

use super::ledger::number;
use super::reply::unexpected;
use super::script::{PAUSE, RESUME, Script};
use super::{Away, Lane, Ledger, Store, Word, from_value};
use crate::error::Result;
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::time::UnixMs;

impl Store {
    /// Keeps in mind that what begins so is paused. The time of an older rule stays.
    /// Returns which of several servers are away.
    pub(crate) async fn add_pause_rule(
        &self,
        prefix: &Prefix,
        until: Instant,
    ) -> Result<Vec<Away>> {
        let added = self.on_each(until, |it, until| {
            Box::pin(it.add_pause_rule_here(prefix, until))
        });
        Ok(added.await.there()?.1)
    }

    async fn add_pause_rule_here(&self, prefix: &Prefix, until: Instant) -> Result<()> {
        let now = self.time(until).await?;
        let mut add = redis::cmd("HSETNX");
        add.arg(self.names.paused())
            .arg(prefix.as_str())
            .arg(now.floor_ms().0);
        self.command(&add, until).await?;
        Ok(())
    }

    /// Forgets the rules that begin so. Returns which of several servers are away.
    pub(crate) async fn remove_pause_rules(
        &self,
        prefix: &Prefix,
        until: Instant,
    ) -> Result<Vec<Away>> {
        let removed = self.on_each(until, |it, until| {
            Box::pin(it.remove_pause_rules_here(prefix, until))
        });
        Ok(removed.await.there()?.1)
    }

    async fn remove_pause_rules_here(&self, prefix: &Prefix, until: Instant) -> Result<()> {
        let rules = self.pause_rules_here(until).await?;
        let ended: Vec<String> = rules
            .into_iter()
            .map(|(rule, _)| rule)
            .filter(|rule| rule.starts_with(prefix.as_str()))
            .collect();
        if ended.is_empty() {
            return Ok(());
        }
        let mut remove = redis::cmd("HDEL");
        remove.arg(self.names.paused()).arg(ended);
        self.command(&remove, until).await?;
        Ok(())
    }

    /// The rules, and since when each holds; in order.
    pub(crate) async fn pause_rules(&self, until: Instant) -> Result<Vec<(String, UnixMs)>> {
        let rules = self.on_each(until, |it, until| Box::pin(it.pause_rules_here(until)));
        Ok(oldest(rules.await.of_those_there()?.concat()))
    }

    async fn pause_rules_here(&self, until: Instant) -> Result<Vec<(String, UnixMs)>> {
        let mut get = redis::cmd("HGETALL");
        get.arg(self.names.paused());
        let rules: Vec<(String, u64)> = from_value(self.command(&get, until).await?)?;
        let rules = rules.into_iter();
        Ok(rules.map(|(rule, since)| (rule, UnixMs(since))).collect())
    }

    /// Pauses a kind that has just become known, if a rule says so. A kind that was paused or
    /// resumed by name is left as it is, so a resume that comes in between is not undone.
    pub(crate) async fn apply_pause_rules(&self, kind: &Kind, until: Instant) -> Result<()> {
        let rules = self.on_rest(until, |it, until| Box::pin(it.pause_rules_here(until)));
        let rules = &oldest(rules.await.of_those_there()?.concat());
        let ledgers = self.layout_of(kind.as_str()).ledgers();
        let applied = self.on_rest(until, |it, until| {
            Box::pin(it.apply_here(rules, kind, ledgers, self, until))
        });
        applied.await.of_those_there().map(drop)
    }

    async fn apply_here(
        &self,
        rules: &[(String, UnixMs)],
        kind: &Kind,
        ledgers: u16,
        whole: &Store,
        until: Instant,
    ) -> Result<()> {
        let begins = |(rule, _): &&(String, UnixMs)| format!("{kind}:").starts_with(rule.as_str());
        let Some((_, since)) = rules.iter().find(begins) else {
            return Ok(());
        };
        let is_here = |shard: &u16| whole.place_of(kind, *shard) == self.place();
        for shard in (0..ledgers).filter(is_here) {
            let mut mark = redis::cmd("HSETNX");
            mark.arg(self.names.ledger(kind, shard).calls)
                .arg("paused")
                .arg(since.0);
            self.command(&mark, until).await?;
        }
        Ok(())
    }
}

/// In order, and of a rule that several servers have the oldest.
fn oldest(mut rules: Vec<(String, UnixMs)>) -> Vec<(String, UnixMs)> {
    rules.sort_unstable();
    rules.dedup_by(|one, before| one.0 == before.0);
    rules
}

impl Ledger {
    /// Nothing of this kind is claimed from now on; `lua/pause.lua`.
    pub(crate) async fn pause(&self, lane: &mut Lane, until: Instant) -> Result<()> {
        self.switch(&PAUSE, Word::Paused, lane, until).await
    }

    /// Ends a pause; `lua/resume.lua`.
    pub(crate) async fn resume(&self, lane: &mut Lane, until: Instant) -> Result<()> {
        self.switch(&RESUME, Word::Resumed, lane, until).await
    }

    /// Since when the kind is paused, if it is.
    pub(crate) async fn paused_since(&self, until: Instant) -> Result<Option<UnixMs>> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.calls).arg("paused");
        let since: Option<u64> = from_value(self.store.command(&get, until).await?)?;
        Ok(since.filter(|since| *since > 0).map(UnixMs))
    }

    async fn switch(
        &self,
        script: &'static Script,
        expected: Word,
        lane: &mut Lane,
        until: Instant,
    ) -> Result<()> {
        let keys: [&str; 3] = [&self.names.calls, &self.names.lanes, &self.names.history];
        let mut cmd = self.call(script, &keys, [].into_iter());
        number(&mut cmd, lane);
        cmd.arg(&self.wake).arg(self.kind().as_str());
        let answers = self.eval_items(script, &cmd, 1, until).await?;
        if answers[0].answer != expected {
            return Err(unexpected(format!("{:?}", answers[0].answer)));
        }
        Ok(())
    }
}
