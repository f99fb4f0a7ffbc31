//! The Redis of a target: a list or a stream that consumers outside of Keyfall read, on the Redis
//! of the jobs or any other.
//!
//! Errors name the list or stream, and its server.

mod entry_id;
mod list;
mod script;
mod stream;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, Pipeline, Value};

use super::connections::cluster::Cluster;
use super::connections::fault::Fault;
use super::connections::link::{Link, Request};
use super::connections::origin::Origin;
use super::connections::url;
use super::from_value;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::ClientSettings;

pub(crate) use entry_id::EntryId;
pub(crate) use stream::{EntryQuery, EntryStatus};

/// A Redis that holds lists and streams. Calls that are made at the same time share a connection.
pub(crate) struct TargetRedis {
    link: Link,
    /// The longest that one call may take.
    patience: Duration,
    /// The groups of the stream, as the latest entry found them: the next entry trims the stream if
    /// there are no other groups.
    groups: Mutex<Vec<Vec<u8>>>,
}

impl TargetRedis {
    /// A target on the server that `url` names. Opens no connection yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the URL is not valid, or names several servers.
    pub(crate) fn new(url: &str, settings: &ClientSettings) -> Result<Self> {
        let [url] = url::all(url)?[..] else {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                "several servers have the jobs, but the list or stream of a target is on one \
                 server: give the target a Redis URL of its own",
            ));
        };
        let origin = Origin::parse(url, &settings.link)?;
        Ok(TargetRedis {
            link: Link::new(origin, &settings.link),
            patience: settings.call_timeout,
            groups: Mutex::default(),
        })
    }

    /// True if these keys are on one server at all times, so that a fail-over loses them together
    /// or not at all.
    pub(crate) fn keeps_together(&self, keys: &[&str]) -> bool {
        let mut slots = keys.iter().map(|key| Cluster::slot(key));
        let first = slots.next();
        self.link.origin().cluster().is_none() || slots.all(|slot| Some(slot) == first)
    }

    /// The address of the server; without credentials.
    pub(crate) fn address(&self) -> String {
        self.link.address()
    }

    /// Sends one command.
    async fn ask<T: FromRedisValue>(&self, place: &KeyContext<'_>, cmd: &Cmd) -> Result<T> {
        self.send(place, Request::One(cmd)).await
    }

    /// Sends several commands, all on the key of `place`.
    async fn ask_many<T: FromRedisValue>(
        &self,
        place: &KeyContext<'_>,
        pipeline: &Pipeline,
    ) -> Result<T> {
        self.send(place, Request::Together(pipeline)).await
    }

    /// Sends a request until it is answered or `patience` has passed.
    async fn send<T: FromRedisValue>(
        &self,
        place: &KeyContext<'_>,
        request: Request<'_>,
    ) -> Result<T> {
        let until = Instant::now() + self.patience;
        let answer = self.link.send(request, until).await;
        self.answer(place, answer.map(|answer| answer.value))
    }

    /// Adds to a list or a stream. With [`WriteRetry::Once`] it fails with
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if the entry may be there already.
    async fn write<T: FromRedisValue>(
        &self,
        place: &KeyContext<'_>,
        cmd: &Cmd,
        writes: WriteRetry,
    ) -> Result<T> {
        let answer = self.try_write(cmd, writes).await;
        self.answer(place, answer)
    }

    /// Sends a command that writes, with repeats as `writes` says.
    async fn try_write(&self, cmd: &Cmd, writes: WriteRetry) -> Result<Value, Fault> {
        let until = Instant::now() + self.patience;
        let answer = match writes {
            WriteRetry::Again => self.link.send(Request::One(cmd), until).await,
            WriteRetry::Once => self.link.send_once(Request::One(cmd), until).await,
        };
        Ok(answer?.value)
    }

    /// Decodes an answer; a fault becomes an error that names the key.
    fn answer<T: FromRedisValue>(
        &self,
        place: &KeyContext<'_>,
        answer: Result<Value, Fault>,
    ) -> Result<T> {
        from_value(answer.map_err(|fault| self.explained(place, fault))?)
    }

    /// The error of a fault, with the name of the key.
    fn explained(&self, place: &KeyContext<'_>, fault: Fault) -> Error {
        let KeyContext { what, key } = place;
        if fault.is_wrong_type() {
            let address = self.address();
            return Error::new(
                ErrorKind::Damaged,
                format!(
                    "`{key}` in the Redis at {address} is not a {what}: name another key, or \
                     delete this one"
                ),
            );
        }
        let error = Error::from(fault);
        Error::new(error.kind(), format!("{what} `{key}`: {error}"))
    }
}

/// Whether a write is repeated if its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteRetry {
    /// It is repeated, and the entry may be there twice.
    Again,
    /// It is not repeated, and the entry may be there or not.
    Once,
}

/// The key of a call, for its errors.
struct KeyContext<'a> {
    /// The type that the key should have: a list, a stream, a hash or a string.
    what: &'static str,
    /// The name of the key.
    key: &'a str,
}
