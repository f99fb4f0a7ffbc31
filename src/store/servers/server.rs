//! One server: its connections, its clock, and what is known of it.
//!
//! A cluster is one server with several nodes. Of several independent servers each is a `Server`, and
//! the [`Store`](crate::store::Store) has them all.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{Either, select};
use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

#[cfg(feature = "worker")]
use crate::error::Error;
use crate::error::Result;
use crate::key::Kind;
use crate::names::Names;
use crate::settings::LinkSettings;
use crate::shards::Layout;
use crate::store::connections::link::{Link, Request};
use crate::store::connections::origin::Origin;
use crate::store::kinds::layout::Layouts;
use crate::store::kinds::split::SplitLedgers;
use crate::store::kinds::stray_slots::Primaries;
#[cfg(feature = "worker")]
use crate::store::ledger::touches::Slow;
use crate::store::servers::catch_up::CatchUp;
use crate::store::servers::clock::RedisClock;
use crate::store::servers::durable::Waits;
use crate::store::servers::fan_out::{MemberStatus, OF_A_NODE, is_of_absence};
#[cfg(feature = "worker")]
use crate::store::servers::health::Health;
use crate::store::servers::membership::Membership;
use crate::store::{from_value, texts};
use crate::time::UnixUs;

/// One server, or one cluster.
pub(crate) struct Server {
    pub(in crate::store) link: Link,
    /// Which of several servers it is.
    pub(in crate::store) place: MemberStatus,
    pub(in crate::store) clock: Arc<RedisClock>,
    /// How many ledgers kinds have, as far as is known; common to all servers of a store.
    pub(in crate::store) layouts: Arc<Layouts>,
    pub(in crate::store) names: Names,
    pub(in crate::store) database: i64,
    /// The ledgers of which a part is missing.
    pub(in crate::store) torn: Arc<SplitLedgers>,
    pub(in crate::store) primaries: Arc<Primaries>,
    /// The calls that wait until their writes are durable.
    pub(in crate::store) waits: Waits,
    /// Whether numbered calls outlast a server that refuses for now: for a worker, which
    /// has nobody to hand the error to.
    pub(in crate::store) insists: bool,
    /// Where a worker notes what the server refuses.
    #[cfg(feature = "worker")]
    health: Option<Arc<Health>>,
    #[cfg(feature = "worker")]
    pub(in crate::store) slow: Slow,
}

impl Server {
    /// A server that is used alone.
    pub(in crate::store) fn alone(
        origin: Origin,
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Self {
        let link = Link::new(origin, settings);
        Server::new(link, MemberStatus::default(), layouts, names, settings)
    }

    /// One of `of` servers.
    pub(in crate::store) fn member(
        origin: Origin,
        (number, of): (usize, usize),
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Self {
        let membership = Membership::new(names.clone(), number, of);
        let link = Link::new(origin, settings).of_member(membership);
        Server::new(link, MemberStatus::new(number), layouts, names, settings)
    }

    fn new(
        link: Link,
        place: MemberStatus,
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Self {
        Server {
            database: link.origin().database(),
            waits: Waits::new(link.origin().clone(), settings),
            link,
            place,
            clock: Arc::default(),
            layouts,
            torn: Arc::default(),
            primaries: Arc::default(),
            names,
            insists: false,
            #[cfg(feature = "worker")]
            health: None,
            #[cfg(feature = "worker")]
            slow: Slow::default(),
        }
    }

    /// The same server with a connection of its own, for calls that wait.
    pub(in crate::store) fn beside(&self, settings: &LinkSettings) -> Self {
        Server {
            clock: self.clock.clone(),
            ..self.with_link(self.link.another(settings), settings)
        }
    }

    /// The same server with a connection of its own, whose calls outlast whatever may pass:
    /// outages, fail-overs, a narrow ACL that somebody mends. `health` is told what they meet.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn insisting(&self, settings: &LinkSettings, health: Health) -> Self {
        let health = Arc::new(health);
        let link = self.link.watched(settings, health.clone());
        Server {
            insists: true,
            health: Some(health),
            ..self.with_link(link, settings)
        }
    }

    fn with_link(&self, link: Link, settings: &LinkSettings) -> Self {
        Server {
            torn: self.torn.clone(),
            primaries: self.primaries.clone(),
            ..Server::new(
                link,
                self.place.again(),
                self.layouts.clone(),
                self.names.clone(),
                settings,
            )
        }
    }

    /// From now on the server is told what it has missed whenever a connection to it is new.
    pub(in crate::store) fn begin_to_tell(&mut self, missed: CatchUp) {
        self.link.begin_to_tell(missed);
    }

    /// The health of the server, if a worker uses it.
    #[cfg(feature = "worker")]
    pub(crate) fn health(&self) -> Option<&Health> {
        self.health.as_deref()
    }

    /// Notes that a call was answered or refused that concerns this subject only.
    #[cfg(feature = "worker")]
    pub(crate) fn note(&self, subject: &str, call: &'static str, refused: Option<&Error>) {
        if let Some(health) = &self.health {
            health.note(subject, call, refused);
        }
    }

    /// Whether it is a cluster, where each key has a node of its own.
    pub(crate) fn is_cluster(&self) -> bool {
        self.link.origin().cluster().is_some()
    }

    /// Where the server is; without credentials.
    pub(crate) fn address(&self) -> String {
        self.link.address()
    }

    /// How many connections were opened so far. A change tells that there was a gap.
    pub(crate) fn connections_opened(&self) -> u64 {
        self.link.opened()
    }

    /// Whether it is one of several.
    pub(in crate::store) fn is_member(&self) -> bool {
        self.place.number.is_some()
    }

    /// Which of several servers it is; 0 if there is one.
    pub(crate) fn place(&self) -> usize {
        self.place.number.unwrap_or(0)
    }

    /// It has answered so when it was asked beside the others.
    pub(in crate::store) fn note_presence<T>(&self, answer: &Result<T>) {
        self.place.note(answer);
    }

    /// Asks two that may be on different nodes of a cluster. When one of them has answered there, the
    /// other one is not waited for for long. Returns their answers, and whether these are both.
    pub(in crate::store) async fn one_suffices<T>(
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

    /// Until when a ledger is waited for by those who can do without: one of several servers, or one
    /// on a node of a cluster.
    pub(in crate::store) fn patience_for_one(&self, until: Instant) -> Instant {
        match self.is_cluster() {
            true => until.min(Instant::now() + OF_A_NODE),
            false => self.patience(until),
        }
    }

    /// Until when one of several servers is waited for by those who can do without.
    pub(in crate::store) fn patience(&self, until: Instant) -> Instant {
        if !self.is_member() {
            return until;
        }
        let patience = self.place.patience();
        until.min(Instant::now() + patience)
    }

    /// The kinds that this server lists, in no order. Their layouts are known from now on.
    pub(crate) async fn kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        let listed = self.list_of_kinds(self.patience(until)).await;
        self.note_presence(&listed);
        listed
    }

    async fn list_of_kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(self.names.kinds());
        let found = texts(self.command(&cmd, until).await?)?;
        let mut kinds = Vec::with_capacity(found.len());
        for (name, layout) in found {
            // A name that is no kind was put there by somebody else, and nothing can be under it.
            let Ok(kind) = Kind::parse(&name) else {
                continue;
            };
            if let Some(layout) = Layout::parse(&layout) {
                self.layouts.learn(&kind, layout);
            }
            kinds.push(kind);
        }
        Ok(kinds)
    }

    /// Whether a kind was ever used, for all that this server knows.
    pub(in crate::store) async fn knows(&self, kind: &Kind, until: Instant) -> Result<bool> {
        let kinds = self.names.kinds();
        let listed = self.has_field(&kinds, kind.as_str(), until);
        if !self.is_cluster() {
            return listed.await;
        }
        // The list may be on a node that is away. Its first ledger knows as well whether it was used.
        let first = self.names.ledger(kind, 0);
        let was_used = async {
            Ok(self.has_field(&first.calls, "layout", until).await?
                || self.has_field(&first.stats, "accepted", until).await?)
        };
        let (told, _) = self.one_suffices(listed, was_used).await?;
        Ok(told.contains(&true))
    }

    /// Whether a hash has a field.
    pub(in crate::store) async fn has_field(
        &self,
        key: &str,
        field: &str,
        until: Instant,
    ) -> Result<bool> {
        let mut get = redis::cmd("HGET");
        get.arg(key).arg(field);
        let text: Option<String> = from_value(self.command(&get, until).await?)?;
        Ok(text.is_some())
    }

    /// Says something on the wake channel. A hint: nothing depends on its being heard.
    pub(crate) async fn tell(&self, message: &str, until: Instant) -> Result<()> {
        let until = self.patience(until);
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(self.names.wake(self.database)).arg(message);
        self.command(&cmd, until).await.map(drop)
    }

    /// The time of the server.
    pub(crate) async fn time(&self, until: Instant) -> Result<UnixUs> {
        let time = self.command(&redis::cmd("TIME"), until).await?;
        let (seconds, micros): (u64, u64) = from_value(time)?;
        Ok(UnixUs(seconds * 1_000_000 + micros))
    }

    /// Sends a command until it is answered, or until `until`.
    pub(in crate::store) async fn command(&self, cmd: &Cmd, until: Instant) -> Result<Value> {
        Ok(self.link.send(Request::One(cmd), until).await?.value)
    }

    /// Sends several commands together; one that fails fails them all.
    pub(in crate::store) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        until: Instant,
    ) -> Result<Value> {
        Ok(self.link.send(Request::Many(pipeline), until).await?.value)
    }
}
