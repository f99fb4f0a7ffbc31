//! The calls of whoever holds a lease: extend it, and end it.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::{
    Client, Durably, DyingJob, KindShards, LeaseEvent, Listeners, Pending, ShardClient,
    out_of_place,
};
use crate::durable::{Durable, Reached};
use crate::ended::Ended;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::lease::Lease;
use crate::outcome::Outcome;
use crate::record::{Header, Record};
use crate::retry::RetryPolicy;
use crate::settings::{BATCH, LEASES};
use crate::store::{Claimed, Extent, Found, Settlement, Verb, Word};

/// A call to [`Client::settle`]; sent when it is awaited.
#[must_use = "nothing is settled until it is awaited"]
pub struct SettleLease<'a> {
    client: &'a Client,
    lease: &'a Lease,
    outcome: Outcome,
    policy: RetryPolicy,
}

/// A call to [`SettleLease::durable`]; sent when it is awaited.
#[must_use = "nothing is settled until it is awaited"]
pub struct SettleDurably<'a> {
    call: SettleLease<'a>,
    durable: Durable,
}

/// A call to [`Client::extend`]; sent when it is awaited.
#[must_use = "nothing is extended until it is awaited"]
pub struct ExtendLease<'a> {
    client: &'a Client,
    lease: &'a Lease,
    length: Duration,
}

/// What became of a [`Client::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The job is done.
    Done,
    /// The job is pending again, and due at this time.
    Pending(SystemTime),
    /// The job is not run again: what was scheduled while it ran took its place.
    Replaced,
    /// The job is not run again: somebody cancelled it while it ran.
    Cancelled,
    /// The job is a dead letter with this number.
    Buried(u64),
    /// Nothing was done: the job has no lease. It was settled before, or lost with the data set.
    Gone,
    /// Nothing was done: the lease had lapsed, and somebody else has the job now.
    Taken,
}

/// What became of a [`Client::extend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Extended {
    /// The lease runs as long as was asked for, or longer.
    Extended,
    /// It does, but somebody has cancelled the job: it is to be ended soon.
    Cancelled,
    /// The job has no lease: it was settled before, or lost with the data set.
    Gone,
    /// The lease had lapsed, and somebody else has the job now.
    Taken,
}

impl Client {
    /// Ends a lease that was [pulled](crate::target::Pull), with this outcome of its run. What
    /// then becomes of the job is as after a handler; of a failed one, the job's own policy
    /// decides, or else that of [`retry`](SettleLease::retry).
    ///
    /// A lease that has lapsed can be settled as long as nobody else has claimed the job.
    /// Settling twice answers [`Settled::Gone`] the second time.
    ///
    /// # Errors
    /// When it is awaited: if Redis does not answer in time, or the record is damaged.
    pub fn settle<'a>(&'a self, lease: &'a Lease, outcome: Outcome) -> SettleLease<'a> {
        SettleLease {
            client: self,
            lease,
            outcome,
            policy: RetryPolicy::default(),
        }
    }

    /// Lets a lease run for `length` from now, or longer if it does already: a call that arrives
    /// late cuts nothing short. One that has lapsed is revived, unless somebody else has claimed
    /// the job.
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
    /// A job that was handed over here is in nobody's hands any more, as far as is known: the room
    /// that its route has for it is free. Its lease stands until it lapses.
    pub(crate) fn let_go(&self, lease: &Lease) {
        self.lease_subscribers()
            .tell(&LeaseEvent::Ended(lease.clone()));
    }

    /// Extends many, each as [`extend`](Self::extend) does. The answers are in their order.
    pub(crate) async fn extend_all(&self, leases: &[(&Lease, Duration)]) -> Result<Vec<Extended>> {
        let until = self.deadline();
        let mut extended = Vec::with_capacity(leases.len());
        let is_alike = |(a, of_a): &(&Lease, Duration), (b, of_b): &(&Lease, Duration)| {
            a.key().kind() == b.key().kind() && of_a == of_b
        };
        for alike in leases.chunk_by(is_alike) {
            for batch in alike.chunks(BATCH) {
                let leases: Vec<&Lease> = batch.iter().map(|(lease, _)| *lease).collect();
                extended.extend(self.extend_of_kind(&leases, batch[0].1, until).await?);
            }
        }
        Ok(extended)
    }

    /// Renews leases of one kind in the ledgers where they are held.
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
                        (lease.key().id().to_owned(), lease.token().to_owned())
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

    /// Whether a kind goes by another layout than this registry entry, which is known then.
    async fn is_outdated(&self, kind_shards: &KindShards, until: Instant) -> Result<bool> {
        Ok(self.store().look_up(&kind_shards.kind, until).await? != kind_shards.layout)
    }

    /// Extends leases of the same kind, of which there is one at least.
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
    /// Tells whoever asked to be told of dead letters, while the lease is held. `Err` if the job
    /// is none that could become one.
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
        // For as long as the hooks and the settlement may take.
        let length = longest + self.settings().call_timeout;
        let length = length.clamp(*LEASES.start(), *LEASES.end());
        match self.extend_of_kind(&[lease], length, *until).await?[0] {
            Extended::Extended => {
                let began = Instant::now();
                Listeners::tell(&hooks, letter).await;
                // Their time is not that of the call.
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

impl<'a> SettleLease<'a> {
    /// The policy of a job that has none of its own. Defaults to [`RetryPolicy::default`].
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How far the settlement is to get before it is answered, such as `1`, on one replica; the
    /// answer says how far it got, unless nothing was done.
    pub fn durable(self, how: impl Into<Durable>) -> SettleDurably<'a> {
        SettleDurably {
            call: self,
            durable: how.into(),
        }
    }

    /// The settlement, from the record as it is now: whoever holds the lease is the only one
    /// who changes attempts and terms. `Err` if the lease is nobody's, or somebody else's.
    ///
    /// If the job is to be a dead letter, whoever asked to be told is told by now.
    async fn verb(
        &self,
        shard_client: &ShardClient,
        until: &mut Instant,
    ) -> Result<Result<(Verb, usize), Settled>> {
        if self.outcome == Outcome::Done {
            return Ok(Ok((Verb::Done, 0)));
        }
        let key = self.lease.key();
        let found = shard_client.ledger.get(key.id(), *until).await?;
        let Found::Leased { lease, record, .. } = found else {
            return Ok(Err(Settled::Gone));
        };
        let damaged = || Error::new(ErrorKind::Damaged, format!("{key}: its lease is damaged"));
        let bytes = record.len();
        let claimed =
            Claimed::parse(key.id().to_owned(), &lease, Vec::new()).ok_or_else(damaged)?;
        if claimed.token != self.lease.token() {
            return Ok(Err(Settled::Taken));
        }
        let record = Record::parse(record).map_err(|fault| fault.of(key))?;
        let ended = Ended {
            header: &record.header,
            attempt: record.header.attempts.saturating_add(claimed.claims),
            policy: &record.header.terms.policy(&self.policy),
        };
        let verb = ended
            .verb(self.outcome.clone(), rand::random())
            .ok_or_else(|| {
                let rule =
                    "`HandedOver` ends no lease: give the lease to whoever goes on with the job";
                Error::new(ErrorKind::InvalidSetting, format!("{key}: {rule}"))
            })?;
        if let Verb::Bury { header } = &verb {
            let letter = DyingJob {
                key,
                header,
                due: claimed.due,
                lag: None,
                record: Some(&record),
            };
            let told = self.client.tell_dead(self.lease, letter, until).await?;
            if let Err(nothing_to_do) = told {
                return Ok(Err(nothing_to_do));
            }
        }
        Ok(Ok((verb, bytes)))
    }
}

impl SettleLease<'_> {
    /// Settles it where it is held.
    async fn settle(&self, durable: Option<Durable>) -> Result<(Settled, Option<Reached>)> {
        let (client, id, kind) = (self.client, self.lease.key().id(), self.lease.key().kind());
        let mut until = client.deadline_for(durable);
        if !client.may_find(kind, until).await? {
            return Ok((Settled::Gone, None));
        }
        loop {
            let kind_shards = client.kind_shards(kind)?;
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
        }
    }

    async fn settle_in(
        &self,
        shard_client: &ShardClient,
        durable: Option<Durable>,
        until: &mut Instant,
    ) -> Result<(Settled, Option<Reached>)> {
        let (client, lease) = (self.client, self.lease);
        let (verb, payload_bytes) = match self.verb(shard_client, until).await? {
            Ok(verb) => verb,
            Err(nothing_to_do) => return Ok((nothing_to_do, None)),
        };
        let reason = match &verb {
            Verb::Bury { header } => Header::reason(header),
            _ => None,
        };
        let item = Settlement {
            key: lease.key().clone(),
            token: lease.token().to_owned(),
            verb,
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
            Word::Gone => return Ok((Settled::Gone, None)),
            Word::Foreign => return Ok((Settled::Taken, None)),
            other => return Err(out_of_place(other)),
        };
        Ok((settled, reached.transpose()?))
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
