//! Limits of kinds and of prefixes of kinds, shared by all workers: set, removed, listed.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::partial::PartialView;
use crate::client::{Client, Pending, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::limit::{Limit, LimitScope};
use crate::store::{
    Admission, Away, Balance, Lane, Ledger, LimitRule, Store, this_process, unique_id,
};
use crate::time::UnixMs;

/// How often the shares of a new limit are looked at, if others do the same.
const LOOKS: usize = 5;

/// A call to [`Client::limit`] or [`Client::unlimit`]; sent when it is awaited.
#[must_use = "nothing is limited until it is awaited"]
pub struct SetLimit<'a> {
    client: &'a Client,
    scope: Result<LimitScope>,
    limit: Option<Limit>,
    by: Option<String>,
    is_declared: bool,
}

/// The limit of a kind or of a prefix of kinds, and the jobs that wait for it; from
/// [`Client::limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindLimit {
    /// The kind, or the prefix.
    pub scope: LimitScope,
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
    /// The limits of kinds and prefixes, in their order.
    pub kinds: Vec<KindLimit>,
    /// The shards that could not be read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl Client {
    /// Limits how many jobs of a kind, `app:module:biz`, start in a time, and run at the same time,
    /// over all workers together; or of all kinds with a prefix together, `app:module:` or `app:`. Of
    /// the limits that cover a kind, the narrowest holds. It holds from the acknowledgement on,
    /// without a restart, also for jobs of targets and for jobs that are pulled, retried or taken
    /// over. Jobs that wait for it stay pending, and start in the order of their due times; no
    /// attempt is counted. The newest limit of a kind or prefix holds, and outlives a
    /// [drop](Client::drop_kind) of the kind.
    ///
    /// Several kinds, and the shards of a kind, share the limit: each has a part, and workers move
    /// parts to where jobs wait. The parts together never exceed the limit, nor that of a group.
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
    /// When it is awaited: if the kind, the prefix or the limit is not valid; if Redis does not answer
    /// in time or is full, or one of several servers is away.
    pub fn limit(&self, kind_or_prefix: &str, limit: Limit) -> SetLimit<'_> {
        SetLimit {
            client: self,
            scope: LimitScope::parse(kind_or_prefix),
            limit: Some(limit),
            by: None,
            is_declared: false,
        }
    }

    /// Removes the limit of a kind or a prefix. Jobs that wait for it start at once, or wait for the
    /// limit of a wider prefix from now on. Answers `true` if there was a limit.
    ///
    /// # Errors
    /// When it is awaited: as [`limit`](Self::limit).
    pub fn unlimit(&self, kind_or_prefix: &str) -> SetLimit<'_> {
        SetLimit {
            client: self,
            scope: LimitScope::parse(kind_or_prefix),
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

    /// All limits, with the jobs that wait for them.
    ///
    /// # Errors
    /// If Redis does not answer in time; if there are several servers, only if none of them answers.
    pub async fn limits(&self) -> Result<Limits> {
        let scopes = self.store().limit_scopes(self.deadline()).await?;
        let mut view = PartialView::now(self.store());
        let mut limits = Vec::new();
        for scope in scopes {
            limits.extend(self.limit_of(&scope, &mut view).await?);
        }
        Ok(Limits {
            kinds: limits,
            unseen: view.unseen(),
        })
    }

    /// The limit that was set for a kind or for a prefix, if there is one. A kind may have none, and
    /// still be covered by that of a prefix.
    ///
    /// # Errors
    /// If the kind or prefix is not valid, or Redis does not answer in time.
    pub async fn get_limit(&self, kind_or_prefix: &str) -> Result<Option<KindLimit>> {
        let scope = LimitScope::parse(kind_or_prefix)?;
        self.limit_of(&scope, &mut PartialView::now(self.store()))
            .await
    }

    /// The limit of a scope, with the sum of its ledgers that are there.
    async fn limit_of(
        &self,
        scope: &LimitScope,
        view: &mut PartialView,
    ) -> Result<Option<KindLimit>> {
        let until = self.deadline();
        let Some(rule) = self.store().limit_rule(scope, until).await? else {
            return Ok(None);
        };
        let (ledgers, _) = self.store().limited_ledgers(scope, until).await?;
        let ledgers: Vec<_> = ledgers.iter().filter(|it| !view.misses(it)).collect();
        let answers = join_all(ledgers.iter().map(|ledger| ledger.admit(false, until))).await;
        let mut admissions = Vec::new();
        for (ledger, answer) in ledgers.into_iter().zip(answers) {
            admissions.extend(view.take(ledger, answer)?.flatten());
        }
        Ok(KindLimit::of(scope, rule, &admissions))
    }
}

impl KindLimit {
    /// `None` for a limit that was removed. The ledger of a kind knows the newest rule.
    fn of(scope: &LimitScope, stored: LimitRule, admissions: &[Admission]) -> Option<Self> {
        let told = admissions.iter().filter(|_| !scope.is_prefix());
        let told = told.map(|it| it.rule.clone());
        let rule = told.chain([stored]).max_by_key(|rule| rule.set)?;
        let sum = |part: fn(&Admission) -> u64| admissions.iter().map(part).sum();
        let waits = admissions.iter().filter(|it| it.due > it.room);
        Some(KindLimit {
            scope: scope.clone(),
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
    /// one that was declared last for this kind or prefix. So a limit that an operator has set
    /// meanwhile stays until a program declares another one.
    pub fn declared(mut self) -> Self {
        self.is_declared = true;
        self
    }

    async fn send(self) -> Result<bool> {
        let (store, until) = (self.client.store(), self.client.deadline());
        let scope = self.scope?;
        if let Some(limit) = &self.limit {
            limit.check()?;
        }
        let declared = self
            .limit
            .as_ref()
            .map(Limit::to_string)
            .unwrap_or_default();
        if self.is_declared && store.declared_limit(&scope, until).await? == Some(declared.clone())
        {
            return Ok(store.limit_rule(&scope, until).await?.is_some());
        }
        // Each server has to know all rules, so nothing is begun while one is away.
        if let Some(Away { error, .. }) = store.kinds_seen(until).await?.1.pop() {
            return Err(error);
        }
        let before = store.limit_rule(&scope, until).await?;
        let had = before.as_ref().is_some_and(|rule| rule.limit.is_some());
        let after = before.map_or(UnixMs(0), |rule| rule.set.plus(Duration::from_millis(1)));
        let rule = LimitRule {
            limit: self.limit,
            set: store.time(until).await?.floor_ms().max(after),
            by: self.by.unwrap_or_else(|| this_process().to_owned()),
        };
        // The kinds leave the limit that has covered them, with what they have used of it.
        for wider in scope.wider() {
            if store.limit_rule(&wider, until).await?.is_some() {
                store.note_left(&wider, until).await?;
            }
        }
        // A kind that begins from now on reads the rule, so it is stored first, and removed last: a
        // limit that holds is always listed, whatever becomes of this process.
        if rule.limit.is_some() {
            store.set_limit_rule(&scope, &rule, until).await?;
        }
        let (ledgers, _) = store.limited_ledgers(&scope, until).await?;
        let mut failed = None;
        for ledger in &ledgers {
            let set = match &rule.limit {
                Some(_) => set(store, ledger, &scope, &rule, until).await,
                None => fall_back(store, ledger, &scope, &rule, until).await,
            };
            match set {
                Ok(()) => {}
                // A program that declares a limit accepts a newer one.
                Err(error) if self.is_declared && error.kind() == ErrorKind::InvalidSetting => {}
                // The other ledgers must not be left with another limit.
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if rule.limit.is_some() {
            share_out(store, &scope, until).await;
        } else {
            store.set_limit_rule(&scope, &rule, until).await?;
        }
        // Noted when all ledgers have it: a declaration that was cut off is made again.
        if self.is_declared {
            store.declare_limit(&scope, &declared, until).await?;
        }
        Ok(had)
    }
}

/// Sets the limit of a ledger.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if somebody else has set a newer one.
async fn set(
    store: &Store,
    ledger: &Ledger,
    scope: &LimitScope,
    rule: &LimitRule,
    until: Instant,
) -> Result<()> {
    let part = rule.part(scope, store.layout_of(ledger.kind().as_str()))?;
    if ledger.limit(&mut Lane::new(), &part, rule, until).await? {
        return Ok(());
    }
    // Or the clock of another server was ahead, when a limit of another scope was set.
    if store.limit_rule(scope, until).await?.as_ref() == Some(rule) {
        return store.insist_on_limit(ledger, &part, rule, until).await;
    }
    Err(Error::new(
        ErrorKind::InvalidSetting,
        format!("somebody else has just changed the limit of {scope}: look at it again"),
    ))
}

/// Gives the ledgers their shares of a limit that was just set. If that fails, a worker does it when
/// jobs wait.
async fn share_out(store: &Arc<Store>, scope: &LimitScope, until: Instant) {
    let (by, mut after) = (unique_id(), 0);
    for _ in 0..LOOKS {
        match store.balance_limit(scope, &by, after, until).await {
            Ok(Balance::Overtaken(faster)) => after = faster,
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%scope, %error, "the limit is not shared out yet");
                return;
            }
        }
    }
}

/// Removes the limit of a scope from a ledger, which comes under that of a wider scope, if there is
/// one.
async fn fall_back(
    store: &Store,
    ledger: &Ledger,
    scope: &LimitScope,
    removed: &LimitRule,
    until: Instant,
) -> Result<()> {
    let layout = store.layout_of(ledger.kind().as_str());
    for wider in scope.wider() {
        let Some(rule) = store.limit_rule(&wider, until).await? else {
            continue;
        };
        let part = rule.part(&wider, layout)?;
        // It holds from now on.
        let rule = LimitRule {
            set: removed.set,
            ..rule
        };
        return store.insist_on_limit(ledger, &part, &rule, until).await;
    }
    let none = removed.part(scope, layout)?;
    store.insist_on_limit(ledger, &none, removed, until).await
}

impl<'a> IntoFuture for SetLimit<'a> {
    type Output = Result<bool>;
    type IntoFuture = Pending<'a, bool>;

    /// Whether the kind or prefix had a limit before.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
