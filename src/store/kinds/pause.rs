//! Pauses of kinds, and their end.
//!
//! Each ledger knows whether its kind is paused, so a claim and a pause cannot cross. In addition,
//! the rule of a pause is stored, for kinds that do not exist yet; `switches.rs` compares and
//! merges these rules.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::future::join_all;

use crate::error::Result;
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::kinds::switches::{self, Switches};
use crate::store::ledger::number;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{CURE, PAUSE, RESUME, Script};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Away, Lane, Ledger, Server, Store, Word, from_value, texts};
use crate::time::UnixMs;

/// The number of a pause or a resume, where several servers keep the rules; `None` on a single
/// server. See [`switches`](crate::store::kinds::switches).
pub(crate) type SwitchNumber = Option<UnixMs>;

impl Store {
    /// The number of the next pause or resume: the time, or one more than the largest known number.
    /// `None` on a single server, which needs no numbers.
    pub(crate) async fn next_turn(&self, until: Instant) -> Result<SwitchNumber> {
        if !self.is_several() {
            return Ok(None);
        }
        let known = self.on_each(until, |it, until| Box::pin(it.switches(until)));
        let known = Switches::together(known.await.of_those_there()?);
        let now = self.time(until).await?.floor_ms();
        Ok(Some(now.max(UnixMs(known.newest().0 + 1))))
    }

    /// Stores the rule that kinds with this prefix are paused, and who paused them. On a single
    /// server an existing rule keeps its time. Returns the servers that are away, which learn of
    /// the rule when they are back.
    pub(crate) async fn add_pause_rule(
        &self,
        prefix: &Prefix,
        turn: SwitchNumber,
        by: &str,
        until: Instant,
    ) -> Result<Vec<Away>> {
        let added = self.on_each(until, |it, until| {
            Box::pin(it.add_pause_rule(prefix, turn, by, until))
        });
        Ok(added.await.there()?.1)
    }

    /// For each of these rules, who made it; rules of which that is unknown are left out.
    pub(crate) async fn paused_by(
        &self,
        rules: &[(String, UnixMs)],
        until: Instant,
    ) -> Result<BTreeMap<String, String>> {
        let known = self.on_each(until, |it, until| Box::pin(it.paused_by(rules, until)));
        let known = known.await.of_those_there()?;
        Ok(known.into_iter().flatten().collect())
    }

    /// Removes all rules whose prefixes begin with this one. Returns the servers that are away.
    pub(crate) async fn remove_pause_rules(
        &self,
        prefix: &Prefix,
        turn: SwitchNumber,
        until: Instant,
    ) -> Result<Vec<Away>> {
        let removed = self.on_each(until, |it, until| {
            Box::pin(it.remove_pause_rules(prefix, turn, until))
        });
        Ok(removed.await.there()?.1)
    }

    /// The rules with the time of each pause, in the order of their prefixes. Servers that are away
    /// are left out.
    pub(crate) async fn pause_rules(&self, until: Instant) -> Result<Vec<(String, UnixMs)>> {
        let known = self.on_each(until, |it, until| Box::pin(it.switches(until)));
        let known = Switches::together(known.await.of_those_there()?);
        let rules = known.rules();
        Ok(rules
            .map(|(rule, since)| (rule.to_owned(), since))
            .collect())
    }

    /// The time of the pause that covers a new kind, if a rule does.
    pub(crate) async fn pause_rule_of(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Option<UnixMs>> {
        let known = self.on_each(until, |it, until| Box::pin(it.switches(until)));
        let known = Switches::together(known.await.of_those_there()?);
        Ok(known.rule_of(kind))
    }

    /// Pauses a kind that was just registered, if a rule covers it. A kind that was paused or
    /// resumed by name stays as it is, so a resume that comes in between is not undone.
    pub(crate) async fn apply_pause_rules(&self, kind: &Kind, until: Instant) -> Result<()> {
        let known = self.on_rest(until, |it, until| {
            Box::pin(it.switches(it.patience_for_one(until)))
        });
        let known = match known.await.of_those_there() {
            // The node that has the rules is away. Then no kind begins, and other callers have been
            // told so.
            Err(error) if self.is_cluster() && is_of_absence(&error) => return Ok(()),
            known => &Switches::together(known?),
        };
        let applied = self.on_rest(until, |it, until| {
            Box::pin(it.apply_pause_rules(known, kind, self, until))
        });
        applied.await.of_those_there().map(drop)
    }

    /// The shards of a kind whose ledgers are on this server.
    pub(in crate::store) fn shards_at(&self, server: &Server, kind: &Kind) -> Vec<u16> {
        let is_there = |shard: &u16| self.place_of(kind, *shard) == server.place();
        let shards = 0..self.layout_of(kind.as_str()).ledgers();
        shards.filter(is_there).collect()
    }
}

/// The field of `meta` that names who paused the kinds with this prefix.
fn named(prefix: &str) -> String {
    format!("paused-by {prefix}")
}

impl Server {
    /// As [`Store::add_pause_rule`], on one server.
    async fn add_pause_rule(
        &self,
        prefix: &Prefix,
        turn: SwitchNumber,
        by: &str,
        until: Instant,
    ) -> Result<()> {
        let (add, at) = match turn {
            Some(turn) => ("HSET", turn),
            None => ("HSETNX", self.time(until).await?.floor_ms()),
        };
        let mut add = redis::cmd(add);
        add.arg(self.names.paused()).arg(prefix.as_str()).arg(at.0);
        let is_new: u64 = from_value(self.command(&add, until).await?)?;
        if is_new == 1 || turn.is_some() {
            // An older version would take another field of the rules for a rule.
            let mut name = redis::cmd("HSET");
            name.arg(self.names.meta()).arg(named(prefix.as_str()));
            name.arg(format!("{at} {by}"));
            self.command(&name, until).await?;
        }
        Ok(())
    }

    /// As [`Store::paused_by`], on one server.
    async fn paused_by(
        &self,
        rules: &[(String, UnixMs)],
        until: Instant,
    ) -> Result<Vec<(String, String)>> {
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(self.names.meta());
        get.arg(Vec::from_iter(
            rules.iter().map(|(prefix, _)| named(prefix)),
        ));
        let names: Vec<Option<Vec<u8>>> = from_value(self.command(&get, until).await?)?;
        let by = rules
            .iter()
            .zip(names)
            .filter_map(|((prefix, since), name)| {
                let name = String::from_utf8(name?).ok()?;
                // The name of an earlier pause, which an older version has ended, is left out.
                let (at, by) = name.split_once(' ')?;
                (at == since.to_string()).then(|| (prefix.clone(), by.to_owned()))
            });
        Ok(by.collect())
    }

    /// As [`Store::remove_pause_rules`], on one server. With a number, the resume is stored first,
    /// so that a server that was away learns of it.
    async fn remove_pause_rules(
        &self,
        prefix: &Prefix,
        turn: SwitchNumber,
        until: Instant,
    ) -> Result<()> {
        let ended = self.switches(until).await?.ended_by(prefix.as_str());
        if let Some(turn) = turn {
            let mut resume = redis::cmd("HSET");
            resume.arg(self.names.paused());
            resume.arg(switches::resumed(prefix.as_str())).arg(turn.0);
            self.command(&resume, until).await?;
        }
        self.forget_switches(&ended, until).await
    }

    /// Deletes these fields of the rules.
    async fn forget_switches(&self, fields: &[String], until: Instant) -> Result<()> {
        if fields.is_empty() {
            return Ok(());
        }
        let mut remove = redis::cmd("HDEL");
        remove.arg(self.names.paused()).arg(fields);
        self.command(&remove, until).await?;
        let mut forget = redis::cmd("HDEL");
        forget.arg(self.names.meta());
        forget.arg(Vec::from_iter(fields.iter().map(|prefix| named(prefix))));
        self.command(&forget, until).await?;
        Ok(())
    }

    /// The pause rules that this server stores.
    pub(in crate::store) async fn switches(&self, until: Instant) -> Result<Switches> {
        let mut get = redis::cmd("HGETALL");
        get.arg(self.names.paused());
        Ok(Switches::read(texts(self.command(&get, until).await?)?))
    }

    /// As [`Store::apply_pause_rules`], on one server. Its ledgers also note the newest number of
    /// the rules as their turn, so that a pause or resume with an older number does not change them
    /// any more.
    pub(in crate::store) async fn apply_pause_rules(
        &self,
        known: &Switches,
        kind: &Kind,
        store: &Store,
        until: Instant,
    ) -> Result<()> {
        let Some(since) = known.rule_of(kind) else {
            return Ok(());
        };
        let until = self.patience_for_one(until);
        let marks = store
            .shards_at(self, kind)
            .into_iter()
            .map(|shard| async move {
                let ledger = self.names.ledger(kind, shard);
                let newest = self.is_member().then(|| ("turn", known.newest()));
                for (field, at) in [("paused", since)].into_iter().chain(newest) {
                    let mut mark = self.call_on(&CURE, &[&ledger.calls], &ledger);
                    // The empty value stands for none: a field that is there stays.
                    mark.arg(field).arg("").arg(at.0);
                    self.eval(&CURE, &mark, &self.clock, &ledger.subject, until)
                        .await?;
                }
                Ok(())
            });
        for marked in join_all(marks).await {
            match marked {
                Err(error) if self.is_cluster() && is_of_absence(&error) => {}
                marked => marked?,
            }
        }
        Ok(())
    }

    /// Brings the rules of this server from `old` to `known`. It writes the new fields before it
    /// deletes the old ones.
    pub(in crate::store) async fn keep_switches(
        &self,
        known: &Switches,
        old: &Switches,
        until: Instant,
    ) -> Result<()> {
        let (write, delete) = known.change(old);
        if !write.is_empty() {
            let mut set = redis::cmd("HSET");
            set.arg(self.names.paused());
            for (field, at) in write {
                set.arg(field).arg(at.0);
            }
            self.command(&set, until).await?;
        }
        self.forget_switches(&delete, until).await
    }
}

impl Ledger {
    /// Stops claims from this ledger, unless it was resumed with a larger number; `lua/pause.lua`.
    /// Jobs that are running go on. A ledger that is paused already keeps the time of its pause.
    ///
    /// # Errors
    ///
    /// A full server refuses the call, except for one of several servers.
    pub(crate) async fn pause(
        &self,
        lane: &mut Lane,
        turn: SwitchNumber,
        until: Instant,
    ) -> Result<()> {
        self.switch(&PAUSE, Word::Paused, lane, turn, until).await
    }

    /// Ends a pause, unless it was paused with a larger number; `lua/resume.lua`. It works while
    /// Redis is full. A kind that was resumed by name is not paused by an older rule.
    pub(crate) async fn resume(
        &self,
        lane: &mut Lane,
        turn: SwitchNumber,
        until: Instant,
    ) -> Result<()> {
        self.switch(&RESUME, Word::Resumed, lane, turn, until).await
    }

    /// The time of the pause, if the ledger is paused.
    pub(crate) async fn paused_since(&self, until: Instant) -> Result<Option<UnixMs>> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.calls).arg("paused");
        let since: Option<u64> = from_value(self.server.command(&get, until).await?)?;
        Ok(since.filter(|since| *since > 0).map(UnixMs))
    }

    /// Calls `lua/pause.lua` or `lua/resume.lua`, which take the same arguments.
    async fn switch(
        &self,
        script: &'static Script,
        expected: Word,
        lane: &mut Lane,
        turn: SwitchNumber,
        until: Instant,
    ) -> Result<()> {
        let keys: [&str; 3] = [&self.names.calls, &self.names.lanes, &self.names.history];
        let mut cmd = self.call(script, &keys, [].into_iter());
        number(&mut cmd, lane);
        cmd.arg(&self.wake).arg(self.kind().as_str());
        cmd.arg(turn.unwrap_or_default().0);
        let answers = self.eval_items(script, &cmd, 1, until).await?;
        if answers[0].answer != expected {
            return Err(unexpected(format!("{:?}", answers[0].answer)));
        }
        Ok(())
    }
}
