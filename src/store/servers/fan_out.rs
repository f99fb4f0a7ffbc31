//! Asks several independent servers, of which some may be away.
//!
//! A ledger is on one of them, with its triggers, as it would be on a single server. Data about
//! more than one ledger is kept on each server: the list of kinds, pauses, instances. So this data
//! is known as long as one server is there; a server that is away takes only its own ledgers along.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all, select_ok};

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::server_of;
use crate::store::{Server, Store};

/// The longest that one of several servers is waited for beside the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// The same for a server that did not answer the last question.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// The longest that a node of a cluster is waited for by a caller that can do without it.
pub(in crate::store) const OF_A_NODE: Duration = Duration::from_secs(1);

/// After this long, a server that was away is waited for longer again: it may only be slow.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// A server that did not answer, or refused.
#[derive(Debug)]
pub(crate) struct Away {
    /// Its index, from 0.
    pub(crate) place: usize,
    /// The reason.
    pub(crate) error: Error,
}

/// The answers of all servers that were asked, in their order.
pub(in crate::store) struct MemberReplies<T>(Vec<Result<T>>);

/// The number of a server among several, and whether it was away when all were asked.
#[derive(Default)]
pub(in crate::store) struct MemberStatus {
    /// Its index, from 0; `None` for a single server.
    pub(in crate::store) number: Option<usize>,
    /// Since when it does not answer, and the latest error; nothing if it answers.
    away: Mutex<Option<(Instant, Error)>>,
}

impl MemberStatus {
    /// The server at this index, from 0.
    pub(in crate::store) fn new(number: usize) -> Self {
        MemberStatus {
            number: Some(number),
            away: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.away.lock().expect("no panic while held")
    }

    /// Takes in the answer to a question that all servers were asked. A refusal does not count as
    /// away.
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

    /// How long to wait for it: shorter if it was away a short time ago.
    pub(in crate::store) fn patience(&self) -> Duration {
        match &*self.lock() {
            Some((since, _)) if since.elapsed() < SECOND_LOOK => IMPATIENCE,
            _ => PATIENCE,
        }
    }

    /// The status of the same server for another `Server` value, which does not know yet whether
    /// the server is away.
    pub(in crate::store) fn again(&self) -> Self {
        MemberStatus {
            number: self.number,
            away: Mutex::default(),
        }
    }
}

impl Store {
    /// True if there is more than one server. A cluster is one.
    pub(crate) fn is_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// The address of the server at this index; without credentials.
    pub(crate) fn address_of_member(&self, place: usize) -> String {
        match self.servers.get(place) {
            Some(server) => server.address(),
            None => self.address(),
        }
    }

    /// The index of the server that has the ledger of this shard.
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

    /// Asks all servers at the same time, and notes which are away. A server that is away is not
    /// waited for as long as a single server would be.
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

    /// Asks the servers that were there at the last [`on_each`](Self::on_each); all if none was.
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

    /// Asks all servers at the same time, and waits for all answers until `until`. If some fail,
    /// the result is the error of the first of them.
    pub(in crate::store) async fn on_all<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Server, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> Result<Vec<T>> {
        self.ask(|it| ask(it, until)).await.0.into_iter().collect()
    }

    /// Asks all servers at the same time, and returns the first answer. If all servers fail, the
    /// last error is returned.
    pub(in crate::store) async fn on_any<'a, T>(
        &'a self,
        until: Instant,
        ask: impl Fn(&'a Server, Instant) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let asked = self.servers.iter().map(|it| ask(it, until));
        Ok(select_ok(asked).await?.0)
    }

    /// Asks all servers at the same time, and waits for all answers.
    async fn ask<'a, T>(
        &'a self,
        ask: impl Fn(&'a Server) -> BoxFuture<'a, Result<T>>,
    ) -> MemberReplies<T> {
        MemberReplies(join_all(self.servers.iter().map(|it| ask(it))).await)
    }

    /// The servers that were away when all were asked the last time; none for a single server.
    pub(crate) fn away(&self) -> Vec<Away> {
        // If a single server is away, each call fails by itself.
        let several = self.servers.iter().filter(|it| it.is_member());
        let away = several.enumerate().filter_map(|(place, server)| {
            let error = server.place.lock().as_ref()?.1.duplicate();
            Some(Away { place, error })
        });
        away.collect()
    }

    /// True if some ledgers can be away while others are there: on several servers, or a cluster.
    pub(in crate::store) fn has_parts(&self) -> bool {
        self.is_several() || self.is_cluster()
    }

    /// The deadline of a caller that can do without one ledger, or the list of kinds; earlier than
    /// `until` on a cluster, where its node may be away.
    pub(in crate::store) fn patience_for_one(&self, until: Instant) -> Instant {
        self.cluster()
            .map_or(until, |cluster| cluster.patience_for_one(until))
    }
}

impl<T> MemberReplies<T> {
    /// The answers of the servers that are there, and the servers that are away. A refusal must not
    /// keep a caller from the other servers, so it counts as away.
    ///
    /// # Errors
    /// If no server has answered: a refusal before a failure to answer.
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
        // A refusal says more than silence.
        let refused = away.iter().position(|it| !is_of_absence(&it.error));
        Err(away.swap_remove(refused.unwrap_or(0)).error)
    }

    /// The same for checks, after which an operator must mend each refusal.
    ///
    /// # Errors
    /// If no server has answered, or one refuses.
    pub(in crate::store) fn unless_refused(self) -> Result<(Vec<T>, Vec<Away>)> {
        let (there, mut away) = self.there()?;
        let refused = away.iter().position(|it| !is_of_absence(&it.error));
        match refused {
            Some(place) => Err(away.swap_remove(place).error),
            None => Ok((there, away)),
        }
    }

    /// The answers of the servers that are there.
    pub(in crate::store) fn of_those_there(self) -> Result<Vec<T>> {
        Ok(self.there()?.0)
    }
}

/// True if this error means that the server is away; false if it refuses the call.
pub(crate) fn is_of_absence(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
    )
}
