//! Asking several independent servers, of which some may be away.
//!
//! A ledger is on one of them, with its triggers, and is there as on a single server. What concerns
//! more than one ledger is kept on each: the list of kinds, pauses, instances. So it is known as long
//! as one of them is there; and one that is away takes along what its own ledgers hold, and nothing
//! else.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all, select_ok};

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::server_of;
use crate::store::{Server, Store};

/// How long one of several servers is waited for beside the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// The same of one that did not answer the last time.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// How long a node of a cluster is waited for by those who can do without.
pub(in crate::store) const OF_A_NODE: Duration = Duration::from_secs(1);

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
pub(in crate::store) struct MemberReplies<T>(Vec<Result<T>>);

/// Which of several servers one is, if there are several.
#[derive(Default)]
pub(in crate::store) struct MemberStatus {
    pub(in crate::store) number: Option<usize>,
    /// Since when, and why, it does not answer when it is asked beside the others.
    away: Mutex<Option<(Instant, Error)>>,
}

impl MemberStatus {
    pub(in crate::store) fn new(number: usize) -> Self {
        MemberStatus {
            number: Some(number),
            away: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.away.lock().expect("no panic while held")
    }

    /// It has answered so when it was asked beside the others.
    pub(in crate::store) fn note<T>(&self, answer: &Result<T>) {
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
    pub(in crate::store) fn patience(&self) -> Duration {
        match &*self.lock() {
            Some((since, _)) if since.elapsed() < SECOND_LOOK => IMPATIENCE,
            _ => PATIENCE,
        }
    }

    /// The same, for other connections to that server.
    pub(in crate::store) fn again(&self) -> Self {
        MemberStatus {
            number: self.number,
            away: Mutex::default(),
        }
    }
}

impl Store {
    /// Whether it is more than one server.
    pub(crate) fn is_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// Where one of several servers is; without credentials.
    pub(crate) fn address_of_member(&self, place: usize) -> String {
        match self.servers.get(place) {
            Some(server) => server.address(),
            None => self.address(),
        }
    }

    /// Which of the servers has the ledger of this shard.
    pub(crate) fn place_of(&self, kind: &Kind, shard: u16) -> usize {
        match u16::try_from(self.servers.len()) {
            Ok(servers @ 2..) => usize::from(server_of(kind.as_str(), shard, servers)),
            _ => 0,
        }
    }

    /// The server that has the ledger of this shard.
    pub(in crate::store) fn home_of(&self, kind: &Kind, shard: u16) -> &Arc<Server> {
        &self.servers[self.place_of(kind, shard)]
    }

    /// Asks each of the servers at the same time. One of several that is away is not waited for as
    /// long as a single one would be.
    pub(in crate::store) async fn on_each<'a, T: 'a>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Server, Instant) -> BoxFuture<'a, Result<T>>,
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
    pub(in crate::store) async fn on_rest<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Server, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> MemberReplies<T> {
        let mut rest: Vec<&Server> = self.servers.iter().map(Arc::as_ref).collect();
        let is_there = |it: &&Server| it.place.lock().is_none();
        if rest.iter().any(is_there) {
            rest.retain(is_there);
        }
        let asked = rest.into_iter().map(|it| ask(it, it.patience(until)));
        MemberReplies(join_all(asked).await)
    }

    /// Asks each of the servers at the same time, and waits for all of them. The error is the first
    /// one, when all have been asked.
    pub(in crate::store) async fn on_all<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Server, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> Result<Vec<T>> {
        self.ask(|it| ask(it, until)).await.0.into_iter().collect()
    }

    /// Returns the first answer that one of the servers gives.
    pub(in crate::store) async fn on_any<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Server, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let asked = self.servers.iter().map(|it| ask(it, until));
        Ok(select_ok(asked).await?.0)
    }

    async fn ask<'a, T>(
        &'a self,
        ask: impl Fn(&'a Server) -> BoxFuture<'a, Result<T>>,
    ) -> MemberReplies<T> {
        MemberReplies(join_all(self.servers.iter().map(|it| ask(it))).await)
    }

    /// Which of the servers were away when all were asked the last time.
    pub(crate) fn away(&self) -> Vec<Away> {
        // A single server is there, or nothing is.
        let several = self.servers.iter().filter(|it| it.is_member());
        let away = several.enumerate().filter_map(|(place, server)| {
            let error = server.place.lock().as_ref()?.1.duplicate();
            Some(Away { place, error })
        });
        away.collect()
    }

    /// Whether a part of the ledgers may be away, while others are there.
    pub(in crate::store) fn has_parts(&self) -> bool {
        self.is_several() || self.is_cluster()
    }

    /// Until when a ledger, or the list of kinds, is waited for by those who can do without, where it
    /// may be on a node of a cluster that is away.
    pub(in crate::store) fn patience_for_one(&self, until: Instant) -> Instant {
        self.cluster()
            .map_or(until, |cluster| cluster.patience_for_one(until))
    }

    /// Until when all are waited for by those who can do without some of them.
    pub(in crate::store) fn patience_for_all(&self, until: Instant) -> Instant {
        match (self.has_parts(), self.away().is_empty()) {
            (false, _) => until,
            (true, true) => until.min(Instant::now() + PATIENCE),
            (true, false) => until.min(Instant::now() + IMPATIENCE),
        }
    }
}

impl<T> MemberReplies<T> {
    /// What those answered that are there, and who is away. One that refuses keeps nobody from the
    /// others: it counts as away.
    ///
    /// # Errors
    /// If none of them has answered.
    pub(in crate::store) fn there(self) -> Result<(Vec<T>, Vec<Away>)> {
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
    pub(in crate::store) fn unless_refused(self) -> Result<(Vec<T>, Vec<Away>)> {
        let (there, mut away) = self.there()?;
        let refused = away.iter().position(|it| !is_of_absence(&it.error));
        match refused {
            Some(place) => Err(away.swap_remove(place).error),
            None => Ok((there, away)),
        }
    }

    /// What those answered that are there.
    pub(in crate::store) fn of_those_there(self) -> Result<Vec<T>> {
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
