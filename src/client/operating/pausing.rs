//! Pausing and resuming kinds.
//!
//! A pause sets a rule for the prefix first, which every new kind reads, and then pauses each
//! existing ledger.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::{Instant, SystemTime};

use futures_util::future::join_all;

use super::partial::PartialView;
use crate::client::{Client, Pending, Selection, Unseen};
use crate::error::Result;
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::{Lane, this_process};
use crate::time::UnixMs;

/// A call to [`Selection::pause`]; sent when it is awaited. Answers the kinds that it covers, in
/// order.
#[must_use = "nothing is paused until it is awaited"]
pub struct Pause<'a> {
    call: PauseCall<'a>,
    by: Option<String>,
}

/// A call to [`Selection::resume`]; sent when it is awaited. Answers the kinds that were paused, in
/// order.
#[must_use = "nothing is resumed until it is awaited"]
pub struct Resume<'a>(PauseCall<'a>);

struct PauseCall<'a> {
    selection: Selection<'a>,
    dry_run: bool,
}

/// The pauses in force; from [`Client::paused`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// The paused prefixes, each with the time of its pause, by Redis' clock. A kind with such a
    /// prefix is paused from its first use. The empty prefix stands for everything.
    pub rules: Vec<(String, SystemTime)>,
    /// The kinds that are paused now, each with the time of its pause, by Redis' clock.
    pub kinds: Vec<(Kind, SystemTime)>,
    /// For paused prefixes, who [paused](Pause::by) them, if that is known.
    pub by: BTreeMap<String, String>,
    /// The shards that could not be read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl<'a> Selection<'a> {
    /// Pauses the kinds with this prefix, including kinds that are used for the first time later.
    /// Once the call is acknowledged, none of their jobs starts until the kinds are resumed.
    /// Returns the kinds that exist now.
    ///
    /// Runs in progress continue and end normally; retries wait. Jobs can be scheduled, moved and
    /// cancelled. A prefix that extends into the id is refused.
    ///
    /// Refused while Redis is full. If one of several servers is away, the jobs on the other
    /// servers are paused, and the call fails: repeat it when the server is back.
    ///
    /// # Errors
    /// When it is awaited: if the prefix is not valid or extends into the id, Redis does not answer
    /// in time or is full, or one of several servers is away.
    pub fn pause(self) -> Pause<'a> {
        Pause {
            call: PauseCall::of(self),
            by: None,
        }
    }

    /// Resumes the kinds with this prefix, and removes the pauses of prefixes that begin with it.
    /// Overdue jobs start at once. Returns the kinds that were paused.
    ///
    /// The pause of a shorter prefix stays in force for kinds that are used for the first time
    /// later; see [`Client::paused`].
    ///
    /// # Errors
    /// When it is awaited: if the prefix is not valid or extends into the id, Redis does not answer
    /// in time, or one of several servers is away.
    pub fn resume(self) -> Resume<'a> {
        Resume(PauseCall::of(self))
    }
}

impl Client {
    /// Returns the paused prefixes and kinds, with the times of their pauses.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn paused(&self) -> Result<Paused> {
        let until = self.deadline();
        let rules = self.0.store.pause_rules(until).await?;
        let by = self.0.store.paused_by(&rules, until).await?;
        let (kinds, mut view) = self.kinds_in_view(&Prefix::everything(), until).await?;
        let kinds = self.paused_among(&kinds, &mut view, until).await?;
        Ok(Paused {
            unseen: view.unseen(),
            rules: rules
                .into_iter()
                .map(|(rule, since)| (rule, since.to_system()))
                .collect(),
            by,
            kinds,
        })
    }

    /// The paused kinds among these, without the kinds of servers that are away.
    async fn paused_of(&self, kinds: &[Kind]) -> Result<Vec<Kind>> {
        let mut view = PartialView::new(self.store(), Vec::new());
        let paused = self.paused_among(kinds, &mut view, self.deadline());
        Ok(paused.await?.into_iter().map(|(kind, _)| kind).collect())
    }

    /// The paused kinds among these, with the times of their pauses.
    async fn paused_among(
        &self,
        kinds: &[Kind],
        view: &mut PartialView,
        until: Instant,
    ) -> Result<Vec<(Kind, SystemTime)>> {
        let mut asked = Vec::new();
        for kind in kinds {
            // The shards of one kind are paused one after the other, the first shard last: it
            // stands for all.
            let kind_shards = self.kind_shards_to_look(kind.as_str())?;
            let mut ledgers = kind_shards
                .shard_clients()
                .iter()
                .map(|shard_client| shard_client.ledger.clone());
            asked.extend(ledgers.find(|ledger| !view.misses(ledger)));
        }
        let since = join_all(asked.iter().map(|ledger| ledger.paused_since(until))).await;
        let mut paused = Vec::new();
        for (ledger, since) in asked.iter().zip(since) {
            let since: Option<Option<UnixMs>> = view.take(ledger, since)?;
            let since = since.flatten().map(UnixMs::to_system);
            paused.extend(since.map(|since| (ledger.kind().clone(), since)));
        }
        Ok(paused)
    }
}

impl Pause<'_> {
    /// Changes nothing, and returns the kinds that the call would affect.
    pub fn dry_run(mut self) -> Self {
        self.call.dry_run = true;
        self
    }

    /// The operator who pauses, for [`Paused::by`]. Defaults to this process, as `host:process`.
    /// A prefix that is paused already keeps its operator.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }
}

impl Resume<'_> {
    /// Changes nothing, and returns the kinds that the call would affect.
    pub fn dry_run(mut self) -> Self {
        self.0.dry_run = true;
        self
    }
}

impl<'a> PauseCall<'a> {
    fn of(selection: Selection<'a>) -> Self {
        PauseCall {
            selection,
            dry_run: false,
        }
    }

    /// The client, the checked prefix, and whether this is a dry run.
    ///
    /// # Errors
    /// If the prefix is not valid or extends into the id.
    fn begin(self) -> Result<(&'a Client, Prefix, bool)> {
        let prefix = self.selection.prefix?.of_kinds("paused and resumed")?;
        Ok((self.selection.client, prefix, self.dry_run))
    }
}

impl<'a> IntoFuture for Pause<'a> {
    type Output = Result<Vec<Kind>>;
    type IntoFuture = Pending<'a, Vec<Kind>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, prefix, dry_run) = self.call.begin()?;
            if dry_run {
                return client.kinds_of(&prefix).await;
            }
            let store = client.store();
            let turn = store.next_turn(client.deadline()).await?;
            let by = self.by.as_deref().unwrap_or(this_process());
            // The rule first: a kind that is used for the first time from now on reads it.
            let away = store
                .add_pause_rule(&prefix, turn, by, client.deadline())
                .await?;
            let mut view = PartialView::new(store, away);
            let kinds = client.kinds_of(&prefix).await?;
            for kind in &kinds {
                let kind_shards = client.kind_shards_to_look(kind.as_str())?;
                let ledgers: Vec<_> = kind_shards
                    .all()
                    .map(|shard_client| &shard_client.ledger)
                    .collect();
                for ledger in ledgers.into_iter().rev() {
                    let mut lane = Lane::new();
                    let pause = ledger.pause(&mut lane, turn, client.deadline());
                    view.see(ledger, pause).await?;
                }
            }
            view.all_done()?;
            Ok(kinds)
        })
    }
}

impl<'a> IntoFuture for Resume<'a> {
    type Output = Result<Vec<Kind>>;
    type IntoFuture = Pending<'a, Vec<Kind>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, prefix, dry_run) = self.0.begin()?;
            let store = client.store();
            if dry_run {
                let kinds = client.kinds_of(&prefix).await?;
                return client.paused_of(&kinds).await;
            }
            let turn = store.next_turn(client.deadline()).await?;
            let away = store
                .remove_pause_rules(&prefix, turn, client.deadline())
                .await?;
            let mut view = PartialView::new(store, away);
            let kinds = client.kinds_of(&prefix).await?;
            let paused = client.paused_of(&kinds).await?;
            for kind in &kinds {
                let kind_shards = client.kind_shards_to_look(kind.as_str())?;
                let ledgers: Vec<_> = kind_shards
                    .all()
                    .map(|shard_client| &shard_client.ledger)
                    .collect();
                for ledger in ledgers.into_iter().rev() {
                    let mut lane = Lane::new();
                    let resume = ledger.resume(&mut lane, turn, client.deadline());
                    view.see(ledger, resume).await?;
                }
            }
            view.all_done()?;
            Ok(paused)
        })
    }
}
