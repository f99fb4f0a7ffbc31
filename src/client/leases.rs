//! Calls on leases outside of a worker: extend and settle.
//!
//! The holder of a lease is a consumer that pulled the job, or another process that the job was
//! handed to. A settlement that buries a job runs the hooks for dead letters first.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::{
    Client, Durably, DyingJob, KindShards, LeaseEvent, Listeners, Pending, ShardClient,
    out_of_place,
};
use crate::durable::{Durable, Reached};
use crate::ended::{self, Ended};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::lease::Lease;
use crate::outcome::Outcome;
use crate::record::{Header, Record};
use crate::recurrence::RunEnd;
use crate::retry::RetryPolicy;
use crate::settings::{BATCH, LEASES};
use crate::store::{Extent, Found, LeaseTerms, Next, Settlement, Verb, Word};
use crate::time::{UnixMs, UnixUs};

/// A call to [`Client::settle`]; sent when it is awaited. Answers [`Settled`].
#[must_use = "nothing is settled until it is awaited"]
pub struct SettleLease<'a> {
    client: &'a Client,
    lease: &'a Lease,
    outcome: Outcome,
    policy: RetryPolicy,
}

/// A call to [`SettleLease::durable`]; sent when it is awaited. Answers [`Settled`], and how
/// durable the settlement is (`None` if nothing was done).
#[must_use = "nothing is settled until it is awaited"]
pub struct SettleDurably<'a> {
    call: SettleLease<'a>,
    durable: Durable,
}

/// A call to [`Client::extend`]; sent when it is awaited. Answers [`Extended`].
#[must_use = "nothing is extended until it is awaited"]
pub struct ExtendLease<'a> {
    client: &'a Client,
    lease: &'a Lease,
    length: Duration,
}

/// The answer of [`Client::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The job is done.
    Done,
    /// The job is pending again, due at this time by Redis' clock.
    Pending(SystemTime),
    /// The job does not run again: the successor that was scheduled during its run took its place.
    Replaced,
    /// The job does not run again: it was cancelled during its run.
    Cancelled,
    /// The job is a dead letter with this number.
    Buried(u64),
    /// Nothing was done: the job has no lease. The lease was settled before, or lost with the data
    /// of Redis.
    Gone,
    /// Nothing was done: the lease had lapsed, and another worker has claimed the job.
    Taken,
}

/// The answer of [`Client::extend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Extended {
    /// The lease runs for the requested time, or longer.
    Extended,
    /// The lease was extended, but the job was cancelled: end the run soon.
    Cancelled,
    /// The job has no lease. The lease was settled before, or lost with the data of Redis.
    Gone,
    /// The lease had lapsed, and another worker has claimed the job.
    Taken,
}

impl Client {
    /// Ends a lease that was [pulled](crate::target::Pull), with the outcome of its run. The job
    /// goes on as it does after a handler. If the outcome is a failure, the retry policy of the job
    /// decides; a job without one follows the policy of [`retry`](SettleLease::retry).
    ///
    /// A lapsed lease can be settled until another worker claims the job. A second settlement of
    /// the same lease answers [`Settled::Gone`].
    ///
    /// # Errors
    /// When it is awaited: if Redis does not answer in time, the record is damaged, or the outcome
    /// is `HandedOver`, which ends no lease.
    pub fn settle<'a>(&'a self, lease: &'a Lease, outcome: Outcome) -> SettleLease<'a> {
        SettleLease {
            client: self,
            lease,
            outcome,
            policy: RetryPolicy::default(),
        }
    }

    /// Extends a lease to `length` from now. A lease that already runs longer stays as it is, so a
    /// late call shortens nothing. A lapsed lease is revived, unless another worker has claimed the
    /// job.
    ///
    /// # Errors
    /// When it is awaited: if `length` is not from 1 s to 1 day, or Redis does not answer in
    /// time.
    pub fn extend<'a>(&'a self, lease: &'a Lease, length: Duration) -> ExtendLease<'a> {
        ExtendLease {
            client: self,
            lease,
            length,
        }
    }
}

impl Client {
    /// Frees the place of a handed-over job in the limit of its route, because no consumer is known
    /// to hold the job. The lease stays until it lapses.
    pub(crate) fn let_go(&self, lease: &Lease) {
        self.lease_subscribers()
            .tell(&LeaseEvent::Ended(lease.clone()));
    }

    /// Extends many leases, each as [`extend`](Self::extend) does, until `until`. A ledger that is
    /// away or damaged holds up no other. The answers are in the order of the leases, `None` where
    /// the call failed, with the last error.
    pub(crate) async fn extend_all(
        &self,
        leases: &[(&Lease, Duration)],
        until: Instant,
    ) -> (Vec<Option<Extended>>, Option<Error>) {
        let shard_of = |lease: &Lease| {
            let kind_shards = self.kind_shards_to_look(lease.key().kind()).ok()?;
            let shard_client = kind_shards.new_shard_client(lease.key().id())?;
            Some(shard_client.ledger.place().shard)
        };
        let calls = batches(leases, shard_of).into_iter().map(|batch| async {
            let alike: Vec<&Lease> = batch.iter().map(|at| leases[*at].0).collect();
            let length = leases[batch[0]].1;
            let extended = self.extend_of_kind(&alike, length, until).await;
            (batch, extended)
        });
        let (mut answers, mut fault) = (vec![None; leases.len()], None);
        for (batch, extended) in join_all(calls).await {
            match extended {
                Ok(extended) => {
                    for (at, extended) in batch.into_iter().zip(extended) {
                        answers[at] = Some(extended);
                    }
                }
                Err(error) => fault = Some(error),
            }
        }
        (answers, fault)
    }

    /// Renews leases of one kind, in the shards that hold them. The answers are in the order of the
    /// leases.
    async fn renew_where_held(
        &self,
        leases: &[&Lease],
        length: Duration,
        until: Instant,
    ) -> Result<Vec<Word>> {
        let kind = Kind::parse(leases[0].key().kind())?;
        let mut answers = vec![Word::Gone; leases.len()];
        loop {
            let kind_shards = self.kind_shards_to_look(kind.as_str())?;
            for round in [KindShards::old_shard_client, KindShards::new_shard_client] {
                let mut by_shard: BTreeMap<u16, (&Arc<ShardClient>, Vec<usize>)> = BTreeMap::new();
                for (at, lease) in leases.iter().enumerate() {
                    if answers[at] == Word::Gone
                        && let Some(shard_client) = round(&kind_shards, lease.key().id())
                    {
                        let shard = shard_client.ledger.place().shard;
                        let (_, held) = by_shard.entry(shard).or_insert((shard_client, Vec::new()));
                        held.push(at);
                    }
                }
                for (shard_client, held) in by_shard.into_values() {
                    let pair = |at: &usize| {
                        let lease = leases[*at];
                        (lease.key().id().to_owned(), lease.token().into())
                    };
                    let pairs: Vec<_> = held.iter().map(pair).collect();
                    let extent = Extent::AtLeast(length);
                    let (renewed, _) = shard_client.ledger.renew(&pairs, extent, until).await?;
                    for (at, answered) in held.into_iter().zip(renewed) {
                        answers[at] = answered.answer;
                    }
                }
            }
            if !answers.contains(&Word::Gone) || !self.is_outdated(&kind_shards, until).await? {
                return Ok(answers);
            }
        }
    }

    /// Extends leases of one kind; at least one. Tells the workers of this client.
    async fn extend_of_kind(
        &self,
        leases: &[&Lease],
        length: Duration,
        until: Instant,
    ) -> Result<Vec<Extended>> {
        let answers = self.renew_where_held(leases, length, until).await?;
        let extended = leases.iter().zip(answers).map(|(lease, answer)| {
            let extended = match answer {
                Word::Renewed => Extended::Extended,
                Word::Cancelled => Extended::Cancelled,
                Word::Gone => return Ok(Extended::Gone),
                Word::Foreign => return Ok(Extended::Taken),
                other => return Err(out_of_place(other)),
            };
            let news = LeaseEvent::Extended((*lease).clone(), length);
            self.lease_subscribers().tell(&news);
            Ok(extended)
        });
        extended.collect()
    }
}

impl Client {
    /// Runs the hooks for dead letters while the lease is held, and moves `until` by the time that
    /// they take. `Err` with the answer if the lease is gone, so that the job cannot become a dead
    /// letter.
    async fn tell_dead(
        &self,
        lease: &Lease,
        letter: DyingJob<'_>,
        until: &mut Instant,
    ) -> Result<Result<(), Settled>> {
        let hooks = self.listeners().of_dead();
        let Some(longest) = hooks.iter().map(|hooks| hooks.limit()).max() else {
            return Ok(Ok(()));
        };
        let length = length_for_hooks(longest, self.settings().call_timeout);
        match self.extend_of_kind(&[lease], length, *until).await?[0] {
            Extended::Extended => {
                let began = Instant::now();
                Listeners::tell(&hooks, letter).await;
                // The time of the hooks does not count for the call.
                *until += began.elapsed();
                Ok(Ok(()))
            }
            // The settlement will say so.
            Extended::Cancelled => Ok(Ok(())),
            Extended::Gone => Ok(Err(Settled::Gone)),
            Extended::Taken => Ok(Err(Settled::Taken)),
        }
    }
}

/// The places of leases that are extended together: of one kind, one shard and one length, at most
/// [`BATCH`].
fn batches(
    leases: &[(&Lease, Duration)],
    shard_of: impl Fn(&Lease) -> Option<u16>,
) -> Vec<Vec<usize>> {
    let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, (lease, length)) in leases.iter().enumerate() {
        let ledger = (lease.key().kind(), shard_of(lease), *length);
        alike.entry(ledger).or_default().push(at);
    }
    let alike = alike.into_values();
    alike
        .flat_map(|alike| {
            alike
                .chunks(BATCH)
                .map(<[usize]>::to_vec)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The length of a lease whose holder runs hooks for up to `longest`, and settles after that for up
/// to `call_timeout`.
fn length_for_hooks(longest: Duration, call_timeout: Duration) -> Duration {
    (longest + call_timeout).clamp(*LEASES.start(), *LEASES.end())
}

impl<'a> SettleLease<'a> {
    /// The retry policy for a job without one of its own. Defaults to [`RetryPolicy::default`].
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The durability that the answer waits for, such as `1` for one replica. The answer tells the
    /// durability that was reached, unless nothing was done.
    pub fn durable(self, how: impl Into<Durable>) -> SettleDurably<'a> {
        SettleDurably {
            call: self,
            durable: how.into(),
        }
    }

    /// Builds the settlement from the stored record: only the holder of the lease changes attempts
    /// and terms. `Err` with the answer if the lease is gone or belongs to another holder.
    ///
    /// If the job becomes a dead letter, the hooks have run when this returns. `recurs` says that
    /// the job is known to recur; otherwise the record of a job that is done is not read.
    async fn verb(
        &self,
        shard_client: &ShardClient,
        recurs: bool,
        until: &mut Instant,
    ) -> Result<Result<(Verb, Next, usize), Settled>> {
        if self.outcome == Outcome::Done && !recurs {
            return Ok(Ok((Verb::Done, Next::Unknown, 0)));
        }
        let key = self.lease.key();
        let found = shard_client.ledger.get(key.id(), *until).await?;
        let Found::Leased { lease, record, .. } = found else {
            return Ok(Err(Settled::Gone));
        };
        let damaged = || Error::new(ErrorKind::Damaged, format!("{key}: its lease is damaged"));
        let bytes = record.len();
        let terms = LeaseTerms::parse(&lease).ok_or_else(damaged)?;
        if *terms.token != *self.lease.token() {
            return Ok(Err(Settled::Taken));
        }
        let record = Record::parse(record).map_err(|fault| fault.of(key))?;
        let ended = Ended {
            header: &record.header,
            attempt: record.header.attempts.saturating_add(terms.claims),
            policy: &record.header.terms.policy(&self.policy),
        };
        let verb = ended
            .verb(self.outcome.clone(), rand::random())
            .ok_or_else(|| {
                let rule =
                    "`HandedOver` ends no lease: pass it to the program that goes on with the job";
                Error::new(ErrorKind::InvalidSetting, format!("{key}: {rule}"))
            })?;
        if let Verb::Bury { header } = &verb {
            let letter = DyingJob {
                key,
                header,
                due: terms.due,
                lag: None,
                record: Some(&record),
            };
            let told = self.client.tell_dead(self.lease, letter, until).await?;
            if let Err(nothing_to_do) = told {
                return Ok(Err(nothing_to_do));
            }
        }
        let clock = shard_client.ledger.clock();
        let end = RunEnd {
            now: clock.now().map_or_else(UnixMs::now, UnixUs::floor_ms),
            // The fencing number is the time of the claim, or just above it.
            claimed: UnixUs(terms.fence).floor_ms(),
            due: terms.due,
            random: rand::random(),
        };
        let next = ended::next(&record.header, &verb, end);
        Ok(Ok((verb, next, bytes)))
    }
}

impl SettleLease<'_> {
    /// Settles the lease in the shard that holds it.
    async fn settle(&self, durable: Option<Durable>) -> Result<(Settled, Option<Reached>)> {
        let (client, id, kind) = (self.client, self.lease.key().id(), self.lease.key().kind());
        let mut until = client.deadline_for(durable);
        let Some(mut kind_shards) = client.kind_shards_for(kind, false, until).await? else {
            return Ok((Settled::Gone, None));
        };
        loop {
            for shard_client in [
                kind_shards.old_shard_client(id),
                kind_shards.new_shard_client(id),
            ]
            .into_iter()
            .flatten()
            {
                match self.settle_in(shard_client, durable, &mut until).await? {
                    (Settled::Gone, _) => {}
                    settled => return Ok(settled),
                }
            }
            if !client.is_outdated(&kind_shards, until).await? {
                return Ok((Settled::Gone, None));
            }
            kind_shards = client.kind_shards(kind)?;
        }
    }

    /// Settles the lease in one shard, and tells the workers of this client.
    async fn settle_in(
        &self,
        shard_client: &ShardClient,
        durable: Option<Durable>,
        until: &mut Instant,
    ) -> Result<(Settled, Option<Reached>)> {
        match self.try_in(shard_client, false, durable, until).await? {
            Some(settled) => Ok(settled),
            None => {
                let again = self.try_in(shard_client, true, durable, until).await?;
                again.ok_or_else(|| out_of_place(Word::Recurs))
            }
        }
    }

    /// Settles the lease in one shard. `None` if the job recurs, and the call did not know.
    async fn try_in(
        &self,
        shard_client: &ShardClient,
        recurs: bool,
        durable: Option<Durable>,
        until: &mut Instant,
    ) -> Result<Option<(Settled, Option<Reached>)>> {
        let (client, lease) = (self.client, self.lease);
        let (verb, next, payload_bytes) = match self.verb(shard_client, recurs, until).await? {
            Ok(verb) => verb,
            Err(nothing_to_do) => return Ok(Some((nothing_to_do, None))),
        };
        let reason = match &verb {
            Verb::Bury { header } => Header::reason(header),
            _ => None,
        };
        let item = Settlement {
            key: lease.key().clone(),
            token: lease.token().into(),
            verb,
            next,
            payload_bytes,
        };
        let (answered, reached) = match durable {
            None => (shard_client.settles.send(item, *until).await?, None),
            Some(durable) => {
                let durably = Durably { item, durable };
                let sent = shard_client.durable_settles.send(durably, *until);
                let (answered, reached) = sent.await?;
                (answered, Some(reached))
            }
        };
        if answered.answer == Word::Recurs {
            return Ok(None);
        }
        client
            .lease_subscribers()
            .tell(&LeaseEvent::Ended(lease.clone()));
        let settled = match answered.answer {
            Word::Done => Settled::Done,
            Word::Later(due) => Settled::Pending(due.to_system()),
            Word::Superseded => Settled::Replaced,
            Word::Cancelled => Settled::Cancelled,
            Word::Buried(letter) => {
                tracing::warn!(key = %lease.key(), letter, reason, "a job ended as a dead letter");
                Settled::Buried(letter)
            }
            Word::Gone => return Ok(Some((Settled::Gone, None))),
            Word::Foreign => return Ok(Some((Settled::Taken, None))),
            other => return Err(out_of_place(other)),
        };
        Ok(Some((settled, reached.transpose()?)))
    }
}

impl<'a> IntoFuture for SettleLease<'a> {
    type Output = Result<Settled>;
    type IntoFuture = Pending<'a, Settled>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.settle(None).await.map(|(settled, _)| settled) })
    }
}

impl<'a> IntoFuture for SettleDurably<'a> {
    type Output = Result<(Settled, Option<Reached>)>;
    type IntoFuture = Pending<'a, (Settled, Option<Reached>)>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.durable.check()?;
            self.call.settle(Some(self.durable)).await
        })
    }
}

impl<'a> IntoFuture for ExtendLease<'a> {
    type Output = Result<Extended>;
    type IntoFuture = Pending<'a, Extended>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if !LEASES.contains(&self.length) {
                return Err(Error::new(
                    ErrorKind::InvalidTime,
                    format!("a lease of {:?} must be from 1 s to 1 day", self.length),
                ));
            }
            let (leases, until) = ([self.lease], self.client.deadline());
            let extended = self
                .client
                .extend_of_kind(&leases, self.length, until)
                .await?;
            Ok(extended[0])
        })
    }
}

#[cfg(all(test, feature = "embedded", unix))]
mod tests;
