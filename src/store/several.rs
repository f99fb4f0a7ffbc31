//! Several independent servers, each with a store of its own.
//!
//! A ledger is on one of them, with its triggers, and is there as on a single server. What concerns
//! more than one ledger is kept on each: the list of kinds, pauses, instances. So it is known as long
//! as one of them is there; and one that is away takes along what its own ledgers hold, and nothing
//! else.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, Either, join_all, select, select_ok};
use tokio::time::timeout;

use super::Store;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::server_of;

/// How long one of several servers is waited for beside the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// The same of one that did not answer the last time.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// How long a node of a cluster is waited for by those who can do without.
const OF_A_NODE: Duration = Duration::from_secs(1);

/// How often it is waited for all the same: it may only be slow.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// What one of several servers did not answer.
#[derive(Debug)]
pub(crate) struct Away {
    /// Which one.
    pub(crate) place: usize,
    pub(crate) error: Error,
}

/// What each of the servers has answered, by their places.
pub(super) struct MemberReplies<T>(Vec<Result<T>>);

/// Which of several servers one is, if there are several.
#[derive(Default)]
pub(super) struct MemberStatus {
    number: Option<usize>,
    /// Since when, and why, it does not answer when it is asked beside the others.
    away: Mutex<Option<(Instant, Error)>>,
}

impl MemberStatus {
    pub(super) fn new(number: usize) -> Self {
        MemberStatus {
            number: Some(number),
            away: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.away.lock().expect("no panic while held")
    }

    /// It has answered so when it was asked beside the others.
    fn note<T>(&self, answer: &Result<T>) {
        let mut away = self.lock();
        *away = match answer {
            Err(error) if is_of_absence(error) => {
                let before = away.as_ref().map(|(since, _)| *since);
                let since = before.filter(|since| since.elapsed() < SECOND_LOOK);
                Some((since.unwrap_or_else(Instant::now), error.duplicate()))
            }
            _ => None,
        };
    }

    /// How long it is waited for.
    fn patience(&self) -> Duration {
        match &*self.lock() {
            Some((since, _)) if since.elapsed() < SECOND_LOOK => IMPATIENCE,
            _ => PATIENCE,
        }
    }

    /// The same, for another store on it.
    pub(super) fn again(&self) -> Self {
        MemberStatus {
            number: self.number,
            away: Mutex::default(),
        }
    }
}

impl Store {
    /// Whether it is more than one server.
    pub(crate) fn is_several(&self) -> bool {
        !self.members.is_empty()
    }

    /// The servers, each as a store; this one, if it is one.
    #[cfg(feature = "worker")]
    pub(crate) fn members(self: &Arc<Self>) -> Vec<Arc<Store>> {
        match self.is_several() {
            true => self.members.clone(),
            false => vec![self.clone()],
        }
    }

    /// The servers, each as a store; this one, if it is one.
    pub(super) fn parts(&self) -> Vec<&Store> {
        match self.is_several() {
            true => self.members.iter().map(|member| &**member).collect(),
            false => vec![self],
        }
    }

    /// Whether it is one of several.
    pub(super) fn is_member(&self) -> bool {
        self.place.number.is_some()
    }

    /// Which of several servers it is; 0 if there is one.
    pub(crate) fn place(&self) -> usize {
        self.place.number.unwrap_or(0)
    }

    /// Where one of several servers is; without credentials.
    pub(crate) fn address_of_member(&self, place: usize) -> String {
        match self.members.get(place) {
            Some(member) => member.address(),
            None => self.address(),
        }
    }

    /// Which of the servers has the ledger of this shard.
    pub(crate) fn place_of(&self, kind: &Kind, shard: u16) -> usize {
        match u16::try_from(self.members.len()) {
            Ok(servers @ 1..) => usize::from(server_of(kind.as_str(), shard, servers)),
            _ => 0,
        }
    }

    /// The one that has the ledger of this shard.
    pub(super) fn home_of(&self, kind: &Kind, shard: u16) -> &Store {
        match self.members.get(self.place_of(kind, shard)) {
            Some(member) => member,
            None => self,
        }
    }

    /// The same, to be kept.
    pub(super) fn home(self: &Arc<Self>, kind: &Kind, shard: u16) -> Arc<Store> {
        match self.members.get(self.place_of(kind, shard)) {
            Some(member) => member.clone(),
            None => self.clone(),
        }
    }

    /// Asks each of the servers at the same time. One of several that is away is not waited for as
    /// long as a single one would be.
    pub(super) async fn on_each<'a, T: 'a>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Store, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> MemberReplies<T> {
        self.ask(|it| {
            let asking = ask(it, it.patience(until));
            Box::pin(async move {
                let answer = asking.await;
                it.note_presence(&answer);
                answer
            })
        })
        .await
    }

    /// Asks those that were there when all were asked the last time, by the same call.
    pub(super) async fn on_rest<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Store, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> MemberReplies<T> {
        let mut rest = self.parts();
        let is_there = |it: &&Store| it.place.lock().is_none();
        if rest.iter().any(is_there) {
            rest.retain(is_there);
        }
        let asked = rest.into_iter().map(|it| ask(it, it.patience(until)));
        MemberReplies(join_all(asked).await)
    }

    /// Asks each of the servers at the same time, and waits for all of them. The error is the first
    /// one, when all have been asked.
    pub(super) async fn on_all<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Store, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> Result<Vec<T>> {
        self.ask(|it| ask(it, until)).await.0.into_iter().collect()
    }

    /// Returns the first answer that one of the servers gives.
    pub(super) async fn on_any<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Store, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let asked = self.parts().into_iter().map(|it| ask(it, until));
        Ok(select_ok(asked).await?.0)
    }

    async fn ask<'a, T>(
        &'a self,
        ask: impl Fn(&'a Store) -> BoxFuture<'a, Result<T>>,
    ) -> MemberReplies<T> {
        MemberReplies(join_all(self.parts().into_iter().map(ask)).await)
    }

    /// Which of the servers were away when all were asked the last time.
    pub(crate) fn away(&self) -> Vec<Away> {
        let members = self.members.iter().enumerate();
        let away = members.filter_map(|(place, member)| {
            let error = member.place.lock().as_ref()?.1.duplicate();
            Some(Away { place, error })
        });
        away.collect()
    }

    /// It has answered so when it was asked beside the others.
    pub(super) fn note_presence<T>(&self, answer: &Result<T>) {
        self.place.note(answer);
    }

    /// Whether a part of the ledgers may be away, while others are there.
    pub(super) fn has_parts(&self) -> bool {
        self.is_several() || self.is_cluster()
    }

    /// Asks two that may be on different nodes of a cluster. When one of them has answered there, the
    /// other one is not waited for for long. Returns their answers, and whether these are both.
    pub(super) async fn one_suffices<T>(
        &self,
        one: impl Future<Output = Result<T>>,
        other: impl Future<Output = Result<T>>,
    ) -> Result<(Vec<T>, bool)> {
        let (mut one, mut other) = (pin!(one), pin!(other));
        if !self.is_cluster() {
            return Ok((vec![one.await?, other.await?], true));
        }
        let (first, second) = match select(one.as_mut(), other.as_mut()).await {
            Either::Left((Ok(first), _)) => (first, timeout(OF_A_NODE, other).await),
            Either::Right((Ok(first), _)) => (first, timeout(OF_A_NODE, one).await),
            Either::Left((Err(error), _)) if is_of_absence(&error) => {
                return Ok((vec![other.await?], false));
            }
            Either::Right((Err(error), _)) if is_of_absence(&error) => {
                return Ok((vec![one.await?], false));
            }
            Either::Left((Err(error), _)) | Either::Right((Err(error), _)) => return Err(error),
        };
        match second {
            Ok(Ok(second)) => Ok((vec![first, second], true)),
            Ok(Err(error)) if !is_of_absence(&error) => Err(error),
            Ok(Err(_)) | Err(_) => Ok((vec![first], false)),
        }
    }

    /// Until when all are waited for by those who can do without some of them.
    pub(super) fn patience_for_all(&self, until: Instant) -> Instant {
        match (self.has_parts(), self.away().is_empty()) {
            (false, _) => until,
            (true, true) => until.min(Instant::now() + PATIENCE),
            (true, false) => until.min(Instant::now() + IMPATIENCE),
        }
    }

    /// Until when a ledger is waited for by those who can do without: one of several servers, or one
    /// on a node of a cluster.
    pub(super) fn patience_for_one(&self, until: Instant) -> Instant {
        match self.is_cluster() {
            true => until.min(Instant::now() + OF_A_NODE),
            false => self.patience(until),
        }
    }

    /// Until when one of several servers is waited for by those who can do without.
    pub(super) fn patience(&self, until: Instant) -> Instant {
        if !self.is_member() {
            return until;
        }
        let patience = self.place.patience();
        until.min(Instant::now() + patience)
    }
}

impl<T> MemberReplies<T> {
    /// What those answered that are there, and who is away. One that refuses keeps nobody from the
    /// others: it counts as away.
    ///
    /// # Errors
    /// If none of them has answered.
    pub(super) fn there(self) -> Result<(Vec<T>, Vec<Away>)> {
        let (mut there, mut away) = (Vec::new(), Vec::new());
        for (place, answer) in self.0.into_iter().enumerate() {
            match answer {
                Ok(answer) => there.push(answer),
                Err(error) => away.push(Away { place, error }),
            }
        }
        if !there.is_empty() {
            return Ok((there, away));
        }
        // One that refuses says more than one that does not answer.
        let refused = away.iter().position(|it| !is_of_absence(&it.error));
        Err(away.swap_remove(refused.unwrap_or(0)).error)
    }

    /// The same, for what has to be mended before anything is done.
    ///
    /// # Errors
    /// If none of them has answered, or one of them refuses.
    pub(super) fn unless_refused(self) -> Result<(Vec<T>, Vec<Away>)> {
        let (there, mut away) = self.there()?;
        let refused = away.iter().position(|it| !is_of_absence(&it.error));
        match refused {
            Some(place) => Err(away.swap_remove(place).error),
            None => Ok((there, away)),
        }
    }

    /// What those answered that are there.
    pub(super) fn of_those_there(self) -> Result<Vec<T>> {
        Ok(self.there()?.0)
    }
}

/// Whether a server that answers so is away, and not one that refuses.
pub(crate) fn is_of_absence(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
    )
}
