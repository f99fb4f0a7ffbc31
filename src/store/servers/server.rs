//! One server: its connections, its clock, and its simple commands.
//!
//! A cluster is one server with several nodes. If there are several independent servers, each is a
//! `Server`, and the [`Store`](crate::store::Store) holds them all.

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

/// One server, or one cluster. Methods that take `until` give up at that instant.
pub(crate) struct Server {
    /// Connections for commands.
    pub(in crate::store) link: Link,
    /// Its number among several servers, and whether it is away.
    pub(in crate::store) place: MemberStatus,
    /// The estimate of its clock.
    pub(in crate::store) clock: Arc<RedisClock>,
    /// The known number of ledgers of each kind; shared by all servers of a store.
    pub(in crate::store) layouts: Arc<Layouts>,
    /// The names of all keys and channels.
    pub(in crate::store) names: Names,
    /// The number of the database.
    pub(in crate::store) database: i64,
    /// The ledgers that lack a part on the node that serves them; only on a cluster.
    pub(in crate::store) torn: Arc<SplitLedgers>,
    /// The primaries of a cluster with their open slots, cached for a moment.
    pub(in crate::store) primaries: Arc<Primaries>,
    /// The calls that wait until a write is durable.
    pub(in crate::store) waits: Waits,
    /// True for a worker, which has no caller to give an error to: numbered calls are repeated
    /// while the server refuses them.
    pub(in crate::store) insists: bool,
    /// Takes note of refusals, for a worker.
    #[cfg(feature = "worker")]
    health: Option<Arc<Health>>,
    /// Nodes that have not answered the pacer in time, which it leaves out until they have.
    #[cfg(feature = "worker")]
    pub(in crate::store) slow: Slow,
}

/// Whether a place on a cluster knows a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Yes,
    No,
    /// Its first ledger has a layout, and not yet all other fields that hold for the kind.
    Founding,
}

impl Server {
    /// A server that has all jobs of its store.
    pub(in crate::store) fn alone(
        origin: Origin,
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Self {
        let link = Link::new(origin, settings).with_jobs(names.clone());
        Server::new(link, MemberStatus::default(), layouts, names, settings)
    }

    /// Server `number`, from 0, of `of` servers.
    pub(in crate::store) fn member(
        origin: Origin,
        (number, of): (usize, usize),
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Self {
        let membership = Membership::new(names.clone(), number, of);
        let link = Link::new(origin, settings).with_jobs(names.clone());
        let link = link.of_member(membership);
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

    /// The same server with connections of its own, for calls that wait.
    pub(in crate::store) fn beside(&self, settings: &LinkSettings) -> Self {
        Server {
            clock: self.clock.clone(),
            ..self.with_link(self.link.another(settings), settings)
        }
    }

    /// The same server with connections of its own, for calls that are repeated through outages,
    /// fail-overs, and an ACL that is too narrow until an operator mends it. `health` gets a report
    /// of each fault.
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

    /// The same server, by another link. It shares the knowledge of layouts and split ledgers.
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

    /// From now on the server is told the changes that it has missed with each new connection.
    pub(in crate::store) fn begin_to_tell(&mut self, missed: CatchUp) {
        self.link.begin_to_tell(missed);
    }

    /// The health of the server, if this store belongs to a worker.
    #[cfg(feature = "worker")]
    pub(crate) fn health(&self) -> Option<&Health> {
        self.health.as_deref()
    }

    /// Notes that a call on this subject was answered or refused.
    #[cfg(feature = "worker")]
    pub(crate) fn note(&self, subject: &str, call: &'static str, refused: Option<&Error>) {
        if let Some(health) = &self.health {
            health.note(subject, call, refused);
        }
    }

    /// True if it is a cluster, where each key has its own node.
    pub(crate) fn is_cluster(&self) -> bool {
        self.link.origin().cluster().is_some()
    }

    /// The address of the server; without credentials.
    pub(crate) fn address(&self) -> String {
        self.link.address()
    }

    /// The number of connections opened so far. If it has grown, there was a gap.
    #[cfg(feature = "worker")]
    pub(crate) fn connections_opened(&self) -> u64 {
        self.link.opened()
    }

    /// True if sentinels name it.
    #[cfg(feature = "worker")]
    pub(crate) fn has_sentinels(&self) -> bool {
        matches!(self.link.origin(), Origin::Sentinel(_))
    }

    /// True if it is one of several servers.
    pub(crate) fn is_member(&self) -> bool {
        self.place.number.is_some()
    }

    /// Its index among several servers, from 0; 0 if there is one server.
    pub(crate) fn place(&self) -> usize {
        self.place.number.unwrap_or(0)
    }

    /// Takes in the server's answer to a question that all servers were asked: it is there or away.
    pub(in crate::store) fn note_presence<T>(&self, answer: &Result<T>) {
        self.place.note(answer);
    }

    /// Asks two questions that may go to different nodes of a cluster. On a cluster the second
    /// answer is waited for only [`OF_A_NODE`] longer than the first one. Returns the answers, and
    /// true if both came.
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

    /// The deadline of a caller that can do without one ledger: earlier than `until` if there are
    /// several servers, or nodes.
    pub(in crate::store) fn patience_for_one(&self, until: Instant) -> Instant {
        match self.is_cluster() {
            true => until.min(Instant::now() + OF_A_NODE),
            false => self.patience(until),
        }
    }

    /// The deadline of a caller that can do without one of several servers; `until` if there is
    /// one.
    pub(in crate::store) fn patience(&self, until: Instant) -> Instant {
        if !self.is_member() {
            return until;
        }
        let patience = self.place.patience();
        until.min(Instant::now() + patience)
    }

    /// The kinds that this server lists, in no order. From now on their layouts are known.
    pub(crate) async fn kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        let listed = self.list_of_kinds(self.patience(until)).await;
        self.note_presence(&listed);
        listed
    }

    /// Reads the list of kinds.
    async fn list_of_kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(self.names.kinds());
        let found = texts(self.command(&cmd, until).await?)?;
        let mut kinds = Vec::with_capacity(found.len());
        for (name, layout) in found {
            // Another program wrote a name that is no kind; nothing can be stored under it.
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

    /// True if this server knows that a kind was ever used.
    pub(in crate::store) async fn knows(&self, kind: &Kind, until: Instant) -> Result<bool> {
        let kinds = self.names.kinds();
        let listed = self.has_field(&kinds, kind.as_str(), until);
        if !self.is_cluster() {
            return listed.await;
        }
        // The list may be on a node that is away. The kind's first ledger knows as well. If it says
        // that the kind is still being founded, an entry in the list does not count: the pause
        // rules may not be known yet.
        let listed = async {
            Ok(match listed.await? {
                true => Known::Yes,
                false => Known::No,
            })
        };
        let (told, _) = self
            .one_suffices(listed, self.first_ledger_knows(kind, until))
            .await?;
        Ok(told.contains(&Known::Yes) && !told.contains(&Known::Founding))
    }

    /// Whether the first ledger of a kind knows the kind.
    async fn first_ledger_knows(&self, kind: &Kind, until: Instant) -> Result<Known> {
        let first = self.names.ledger(kind, 0);
        let mut get = redis::cmd("HMGET");
        get.arg(&first.calls).arg("layout").arg("founding");
        let told: (Option<String>, Option<String>) = from_value(self.command(&get, until).await?)?;
        match told {
            (_, Some(_)) => Ok(Known::Founding),
            (Some(_), None) => Ok(Known::Yes),
            (None, None) if self.has_field(&first.stats, "accepted", until).await? => {
                Ok(Known::Yes)
            }
            (None, None) => Ok(Known::No),
        }
    }

    /// True if a hash has a field.
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

    /// Publishes a message on the wake channel. It is a hint: nothing depends on delivery.
    pub(crate) async fn tell(&self, message: &str, until: Instant) -> Result<()> {
        let until = self.patience(until);
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(self.names.wake(self.database)).arg(message);
        self.command(&cmd, until).await.map(drop)
    }

    /// The time by the server's clock.
    pub(crate) async fn time(&self, until: Instant) -> Result<UnixUs> {
        let time = self.command(&redis::cmd("TIME"), until).await?;
        let (seconds, micros): (u64, u64) = from_value(time)?;
        Ok(UnixUs(seconds * 1_000_000 + micros))
    }

    /// Sends a command, and repeats it until it is answered or `until` has passed.
    pub(in crate::store) async fn command(&self, cmd: &Cmd, until: Instant) -> Result<Value> {
        Ok(self.link.send(Request::One(cmd), until).await?.value)
    }

    /// Sends several commands together; if one fails, all count as failed.
    pub(in crate::store) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        until: Instant,
    ) -> Result<Value> {
        Ok(self.link.send(Request::Many(pipeline), until).await?.value)
    }
}
