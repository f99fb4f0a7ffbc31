//! Limits of kinds, shared by all workers: set, removed, listed.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use super::partial::PartialView;
use crate::client::{Client, Pending, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::limit::{Limit, Terms};
use crate::store::{Admission, Lane, LimitRule, this_process};
use crate::time::UnixMs;

/// A call to [`Client::limit`] or [`Client::unlimit`]; sent when it is awaited.
#[must_use = "nothing is limited until it is awaited"]
pub struct SetLimit<'a> {
    client: &'a Client,
    kind: Result<Kind>,
    limit: Option<Limit>,
    by: Option<String>,
    is_declared: bool,
}

/// The limit of a kind, and the jobs that wait for it; from [`Client::limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindLimit {
    /// The kind.
    pub kind: Kind,
    /// The limit.
    pub limit: Limit,
    /// The time at which it was set, by Redis' clock.
    pub since: SystemTime,
    /// The operator or process that [set](SetLimit::by) it.
    pub by: String,
    /// How many of the due jobs may start now.
    pub room: u64,
    /// How many jobs have a lease.
    pub leased: u64,
    /// How many jobs are due.
    pub due: u64,
    /// When the rate, or a [hold](Client::hold), allows the next start, if it holds jobs back.
    pub next_start: Option<SystemTime>,
}

/// The limits in force; from [`Client::limits`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The limited kinds, in order.
    pub kinds: Vec<KindLimit>,
    /// The shards that could not be read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl Client {
    /// Limits how many jobs of a kind, `app:module:biz`, start in a time, and run at the same time,
    /// over all workers together. It holds from the acknowledgement on, without a restart, also for
    /// jobs of targets and for jobs that are pulled, retried or taken over. Jobs that wait for it
    /// stay pending, and start in the order of their due times; no attempt is counted. The newest
    /// limit of a kind holds, and outlives a [drop](Client::drop_kind) of the kind.
    ///
    /// A kind with several shards splits the limit evenly: give each shard a job at once, and one at
    /// the same time. Such a kind cannot be resharded while it is limited.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// use keyfall::Limit;
    /// use std::time::Duration;
    ///
    /// let provider = Limit::new().rate(10, Duration::from_secs(1)).concurrency(5);
    /// client.limit("app1:mail:send", provider).by("anna").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: if the kind or the limit is not valid, the kind is being resharded, or has
    /// more shards than the limit can be split over; if Redis does not answer in time or is full, or
    /// one of several servers is away.
    pub fn limit(&self, kind: &str, limit: Limit) -> SetLimit<'_> {
        SetLimit {
            client: self,
            kind: Kind::parse(kind),
            limit: Some(limit),
            by: None,
            is_declared: false,
        }
    }

    /// Removes the limit of a kind. Jobs that wait for it start at once. Answers `true` if the kind
    /// had a limit.
    ///
    /// # Errors
    /// When it is awaited: as [`limit`](Self::limit).
    pub fn unlimit(&self, kind: &str) -> SetLimit<'_> {
        SetLimit {
            client: self,
            kind: Kind::parse(kind),
            limit: None,
            by: None,
            is_declared: false,
        }
    }

    /// Lets no job of a limited kind start for this long, an hour at the most, whatever its limit
    /// allows: for handlers whose receiver asks all callers to wait. No attempt is counted, and runs
    /// in progress go on. A shorter hold leaves a longer one as it is; setting the limit anew ends
    /// it. Answers `false`, and does nothing, for a kind without a limit.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// use std::time::Duration;
    ///
    /// client.hold("app1:mail:send", Duration::from_secs(30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the kind is not valid, Redis does not answer in time or is full, or one of several servers
    /// is away.
    pub async fn hold(&self, kind: &str, time: Duration) -> Result<bool> {
        let until = self.deadline();
        let kind = Kind::parse(kind)?;
        if !self.store().knows(&kind, until).await? {
            return Ok(false);
        }
        let kind_shards = self.kind_shards_now(&kind, until).await?;
        let ledgers = kind_shards.all().map(|shard_client| &shard_client.ledger);
        let mut held = false;
        for answer in join_all(ledgers.map(|ledger| ledger.hold(time, until))).await {
            held |= answer?;
        }
        Ok(held)
    }

    /// The limits of all kinds, with the jobs that wait for them.
    ///
    /// # Errors
    /// If Redis does not answer in time; if there are several servers, only if none of them answers.
    pub async fn limits(&self) -> Result<Limits> {
        let until = self.deadline();
        let kinds = self.store().limited_kinds(until).await?;
        let mut view = PartialView::now(self.store());
        let mut limits = Vec::new();
        for kind in kinds {
            limits.extend(self.limit_of(&kind, &mut view).await?);
        }
        Ok(Limits {
            kinds: limits,
            unseen: view.unseen(),
        })
    }

    /// The limit of a kind, if it has one.
    ///
    /// # Errors
    /// If the kind is not valid, or Redis does not answer in time.
    pub async fn get_limit(&self, kind: &str) -> Result<Option<KindLimit>> {
        let kind = Kind::parse(kind)?;
        self.limit_of(&kind, &mut PartialView::now(self.store()))
            .await
    }

    /// The limit of a kind, with the sum of its shards that are there.
    async fn limit_of(&self, kind: &Kind, view: &mut PartialView) -> Result<Option<KindLimit>> {
        let until = self.deadline();
        let Some(rule) = self.store().limit_rule(kind, until).await? else {
            return Ok(None);
        };
        if !self.store().knows(kind, until).await? {
            return Ok(KindLimit::of(kind, rule, &[]));
        }
        let kind_shards = self.kind_shards_now(kind, until).await?;
        let ledgers = kind_shards.all().map(|shard_client| &shard_client.ledger);
        let ledgers: Vec<_> = ledgers.filter(|ledger| !view.misses(ledger)).collect();
        let answers = join_all(ledgers.iter().map(|ledger| ledger.admit(false, until))).await;
        let mut admissions = Vec::new();
        for (ledger, answer) in ledgers.into_iter().zip(answers) {
            admissions.extend(view.take(ledger, answer)?.flatten());
        }
        Ok(KindLimit::of(kind, rule, &admissions))
    }
}

impl KindLimit {
    /// `None` for a limit that was removed. A ledger knows the newest rule.
    fn of(kind: &Kind, stored: LimitRule, admissions: &[Admission]) -> Option<Self> {
        let told = admissions.iter().map(|it| it.rule.clone());
        let rule = told.chain([stored]).max_by_key(|rule| rule.set)?;
        let sum = |part: fn(&Admission) -> u64| admissions.iter().map(part).sum();
        let waits = admissions.iter().filter(|it| it.due > it.room);
        Some(KindLimit {
            kind: kind.clone(),
            limit: rule.limit?,
            since: rule.set.to_system(),
            by: rule.by,
            room: sum(|it| it.room),
            leased: sum(|it| it.leases),
            due: sum(|it| it.due),
            next_start: waits
                .filter_map(|it| it.next)
                .min()
                .map(|next| next.floor_ms().to_system()),
        })
    }

    /// How many due jobs wait for the limit.
    pub fn held(&self) -> u64 {
        self.due.saturating_sub(self.room)
    }
}

impl SetLimit<'_> {
    /// The operator who sets the limit, for [`KindLimit::by`]. Defaults to this process, as
    /// `host:process`.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    /// Declares the limit instead, as programs do when they start: it is set if it differs from the
    /// one that was declared last for this kind. So a limit that an operator has set meanwhile stays
    /// until a program declares another one.
    pub fn declared(mut self) -> Self {
        self.is_declared = true;
        self
    }

    async fn send(self) -> Result<bool> {
        let (client, store, until) = (self.client, self.client.store(), self.client.deadline());
        let kind = self.kind?;
        let terms = self.limit.as_ref().map_or(Ok(Terms::NONE), Limit::terms)?;
        let declared = self
            .limit
            .as_ref()
            .map(Limit::to_string)
            .unwrap_or_default();
        if self.is_declared && store.declared_limit(&kind, until).await? == Some(declared.clone()) {
            return Ok(store.limit_rule(&kind, until).await?.is_some());
        }
        let kind_shards = client.kind_shards_now(&kind, until).await?;
        let layout = store.layout_of(kind.as_str());
        if layout.from.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{kind} is being resharded, and its limit cannot be split meanwhile: wait until \
                     that has ended"
                ),
            ));
        }
        let terms = terms.split(layout.ledgers())?;
        let before = store.limit_rule(&kind, until).await?;
        let had = before.as_ref().is_some_and(|rule| rule.limit.is_some());
        let after = before.map_or(UnixMs(0), |rule| rule.set.plus(Duration::from_millis(1)));
        let rule = LimitRule {
            limit: self.limit,
            set: store.time(until).await?.floor_ms().max(after),
            by: self.by.unwrap_or_else(|| this_process().to_owned()),
        };
        // A kind that begins from now on reads the rule, so it is stored first, and removed last: a
        // limit that holds is always listed, whatever becomes of this process.
        if rule.limit.is_some() {
            store.set_limit_rule(&kind, &rule, until).await?;
        }
        let is_known = store.knows(&kind, until).await?;
        let ledgers = kind_shards.all().map(|shard_client| &shard_client.ledger);
        for ledger in ledgers.filter(|_| is_known) {
            if !ledger.limit(&mut Lane::new(), &terms, &rule, until).await? {
                return Err(Error::new(
                    ErrorKind::InvalidSetting,
                    format!("somebody else has just changed the limit of {kind}: look at it again"),
                ));
            }
        }
        if rule.limit.is_none() {
            store.set_limit_rule(&kind, &rule, until).await?;
        }
        // Noted when all ledgers have it: a declaration that was cut off is made again.
        if self.is_declared {
            store.declare_limit(&kind, &declared, until).await?;
        }
        Ok(had)
    }
}

impl<'a> IntoFuture for SetLimit<'a> {
    type Output = Result<bool>;
    type IntoFuture = Pending<'a, bool>;

    /// Whether the kind had a limit before.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
