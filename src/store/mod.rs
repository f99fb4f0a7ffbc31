//! Access to Redis: all commands of clients and workers are sent here.
//!
//! | part | contents |
//! |---|---|
//! | [`Store`] | one server or several, as a set of ledgers |
//! | [`connections`] | addresses of servers, connections to them, and the meaning of failures |
//! | [`servers`] | one server, the set of servers, and the questions that each of them is asked |
//! | [`kinds`] | kinds and their shards: lists, layouts, pauses, split ledgers |
//! | [`ledger`] | one ledger: its keys, its scripts, and the operations on it |
//! | `target_redis` | the Redis of a target: a list or a stream that another program reads |
//!
//! Calls take `until`, the instant at which they give up. If Redis has not answered by then, they
//! fail with [`ErrorKind::Unavailable`], or with [`ErrorKind::OutcomeUnknown`] if Redis may have
//! carried out a change.

mod connections;
mod kinds;
mod ledger;
mod lua;
mod servers;
#[cfg(feature = "worker")]
mod target_redis;

#[cfg(all(test, feature = "embedded", feature = "worker", unix))]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use connections::origin::Origin;
#[cfg(feature = "worker")]
pub(crate) use connections::origin::no_redis;
#[cfg(feature = "worker")]
pub(crate) use connections::subscription::{Signal, Subscription};
#[cfg(feature = "worker")]
pub(crate) use connections::subscriptions::follow_events;
pub(crate) use connections::url::check_url;
#[cfg(feature = "worker")]
pub(crate) use kinds::activity::ActivityShape;
#[cfg(feature = "worker")]
pub(crate) use kinds::data_set::CopierNote;
#[cfg(feature = "worker")]
pub(crate) use kinds::dropping::Razed;
#[cfg(feature = "worker")]
pub(crate) use kinds::group_shares::GroupsWait;
use kinds::layout::Layouts;
pub(crate) use kinds::limits::LimitRule;
#[cfg(feature = "worker")]
pub(crate) use kinds::moving::{COUNTERS, Part};
pub(crate) use kinds::shares::Balance;
#[cfg(feature = "worker")]
pub(crate) use kinds::slot_repair::{MissingPart, SlotOutcome, Spares};
#[cfg(feature = "worker")]
pub(crate) use kinds::stray_slots::Stray;
pub(crate) use kinds::terms::TermsRule;
pub(crate) use ledger::Ledger;
#[cfg(feature = "worker")]
pub(crate) use ledger::adopt::Why;
pub(crate) use ledger::audit::{Judged, PARTS, Suspect};
pub(crate) use ledger::changes::{ChangesPage, JobAsIs, Noted};
pub(crate) use ledger::ended::{EndedPage, EndsList, EndsRead};
#[cfg(feature = "worker")]
pub(crate) use ledger::history::{Added, Entry, HistoryStream, Line};
pub(crate) use ledger::inspect::{Found, Tally};
#[cfg(feature = "worker")]
pub(crate) use ledger::keyspace::{PlainKey, Progress};
pub(crate) use ledger::lane::{HeldLane, Lane, LanePool, unique_id};
pub(crate) use ledger::letters::{BackupItem, Discard, KeptAs, Letter, Revival};
pub(crate) use ledger::limiting::Admission;
pub(crate) use ledger::list::{Position, Seen, Slice, Sought};
pub(crate) use ledger::mending::Wrong;
#[cfg(feature = "worker")]
pub(crate) use ledger::pace::PaceRequest;
pub(crate) use ledger::plan::{SeriesCall, SeriesJob, SeriesPut};
pub(crate) use ledger::produce::{
    Amendment, CancelIf, Change, Condition, JobVersion, Mode, Placement, Update, VersionState, When,
};
#[cfg(feature = "internals")]
pub(crate) use ledger::reply::read_any_reply;
pub(crate) use ledger::reply::{Answered, ReplyWord as Word, Unlisted, was_carried_out};
pub(crate) use ledger::who as this_process;
#[cfg(feature = "worker")]
pub(crate) use ledger::work::{
    ClaimOrder, ClaimReply, ClaimRequest, Claimed, DeadLimits, Extent, Held, LeaseTerms, Next,
    Settlement, Sweep, Verb,
};
#[cfg(feature = "worker")]
pub(crate) use servers::actions::ActionEntry;
use servers::catch_up::CatchUp;
pub(crate) use servers::clock::RedisClock;
pub(crate) use servers::fan_out::{Away, is_of_absence};
pub(crate) use servers::functions::{Loaded, VERSION, library};
#[cfg(feature = "worker")]
pub(crate) use servers::health::{Health, HealthReport};
#[cfg(feature = "worker")]
pub(crate) use servers::instances::{Alive, Beat};
#[cfg(feature = "worker")]
pub(crate) use servers::nodes::ServerNode;
#[cfg(feature = "worker")]
pub(crate) use servers::proof::LOST;
#[cfg(feature = "worker")]
pub(crate) use servers::requirements::{Announced, Evicted, Info, WantedEvents};
#[cfg(feature = "worker")]
pub(crate) use servers::rights::{Refused, Whom};
#[cfg(feature = "worker")]
pub(crate) use servers::schema::SCHEMA;
pub(crate) use servers::server::Server;
#[cfg(feature = "worker")]
pub(crate) use servers::vitals::{ClockReading, LedgerSample, Observed, ServerReport};
#[cfg(feature = "worker")]
pub(crate) use target_redis::{EntryId, EntryQuery, EntryStatus, TargetRedis, WriteRetry};

#[cfg(feature = "worker")]
use crate::activity::Sums;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::names::Names;
use crate::settings::LinkSettings;
use crate::shards::ShardRef;
use crate::time::{UnixMs, UnixUs};

/// One server or several, seen as a set of ledgers. Shared by [`Arc`]; each server keeps its own
/// connections.
pub(crate) struct Store {
    /// At least one server, in the order of their numbers.
    servers: Vec<Arc<Server>>,
    /// The number of ledgers of each kind, as far as this process has read it. Stores that are made
    /// from this one share it.
    layouts: Arc<Layouts>,
    /// The names of all keys and channels.
    names: Names,
    /// The starts and ends of runs that this process counts. Stores that are made from this one
    /// share it.
    #[cfg(feature = "worker")]
    sums: Arc<Sums>,
}

impl Store {
    /// A store on the server that `url` names, or on several, with white space between their URLs.
    /// Opens no connection yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a URL is not valid, or a cluster is named beside other
    /// servers.
    pub(crate) fn new(url: &str, names: Names, settings: &LinkSettings) -> Result<Arc<Self>> {
        let urls = connections::url::all(url)?;
        let layouts = Arc::<Layouts>::default();
        if let [url] = urls[..] {
            let origin = Origin::parse(url, settings)?;
            let server = Server::alone(origin, layouts.clone(), names.clone(), settings);
            return Ok(Arc::new(Store::of(vec![server], layouts, names, settings)));
        }
        let servers = urls.iter().enumerate().map(|(number, url)| {
            let (origin, place) = (Origin::parse_member(url, settings)?, (number, urls.len()));
            let (layouts, names) = (layouts.clone(), names.clone());
            Ok(Server::member(origin, place, layouts, names, settings))
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Store::of(servers, layouts, names, settings)))
    }

    /// A store without a Redis: each call is refused.
    #[cfg(feature = "worker")]
    pub(crate) fn absent(names: Names, settings: &LinkSettings) -> Arc<Self> {
        let layouts = Arc::<Layouts>::default();
        let server = Server::alone(Origin::Absent, layouts.clone(), names.clone(), settings);
        Arc::new(Store::of(vec![server], layouts, names, settings))
    }

    /// These servers as one store. If there are several, each is told the changes that it has
    /// missed before a new connection to it is used.
    fn of(
        mut servers: Vec<Server>,
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Self {
        if servers.len() > 1 {
            let untold = servers.iter().map(|server| server.beside(settings));
            let untold = Arc::new(Store {
                servers: untold.map(Arc::new).collect(),
                layouts: layouts.clone(),
                names: names.clone(),
                #[cfg(feature = "worker")]
                sums: Arc::default(),
            });
            for (number, server) in servers.iter_mut().enumerate() {
                server.begin_to_tell(CatchUp::new(untold.clone(), number));
            }
        }
        Store {
            servers: servers.into_iter().map(Arc::new).collect(),
            layouts,
            names,
            #[cfg(feature = "worker")]
            sums: Arc::default(),
        }
    }

    /// The time by the clock of Redis, as estimated from a reply of one of the servers; by the clock
    /// of this machine before the first reply.
    pub(crate) fn now(&self) -> UnixMs {
        let known = self.servers.iter().find_map(|server| server.clock.now());
        known.map_or_else(UnixMs::now, UnixUs::floor_ms)
    }

    /// A store on the same servers, with connections of its own, for calls that are repeated
    /// through outages, fail-overs, and an ACL that is too narrow until an operator mends it. It
    /// reports each fault to the [`Health`] of the server.
    #[cfg(feature = "worker")]
    pub(crate) fn insisting(
        &self,
        settings: &LinkSettings,
        health: &impl Fn(&Server) -> Health,
    ) -> Arc<Self> {
        let servers = self.servers.iter();
        let servers = servers.map(|server| server.insisting(settings, health(server)));
        self.again(servers.collect(), settings)
    }

    /// A store on the same servers, with connections of its own: for calls that wait, such as
    /// blocking reads, which would hold up other calls on the same connection.
    #[cfg(feature = "worker")]
    pub(crate) fn beside(&self, settings: &LinkSettings) -> Arc<Self> {
        let servers = self.servers.iter().map(|server| server.beside(settings));
        self.again(servers.collect(), settings)
    }

    /// A store on these servers that shares the state of this one.
    #[cfg(feature = "worker")]
    fn again(&self, servers: Vec<Server>, settings: &LinkSettings) -> Arc<Self> {
        let (layouts, names) = (self.layouts.clone(), self.names.clone());
        Arc::new(Store {
            sums: self.sums.clone(),
            ..Store::of(servers, layouts, names, settings)
        })
    }

    /// The starts and ends of runs that this process counts.
    #[cfg(feature = "worker")]
    pub(crate) fn sums(&self) -> &Arc<Sums> {
        &self.sums
    }

    /// Drops the connections to all servers, to save them while no call is made. The next call
    /// opens new ones.
    fn hang_up(&self) {
        self.servers.iter().for_each(|server| server.link.hang_up());
    }

    /// The ledger of one shard of a kind. Sends nothing.
    pub(crate) fn ledger(self: &Arc<Self>, kind: &Kind, place: ShardRef) -> Arc<Ledger> {
        Ledger::new(self.clone(), kind.clone(), place, false)
    }

    /// The ledger of one shard of a kind whose plain keys are adopted: its triggers have names of
    /// our own, since the name of the job is taken by the plain key.
    #[cfg(feature = "worker")]
    pub(crate) fn adopting_ledger(self: &Arc<Self>, kind: &Kind, place: ShardRef) -> Arc<Ledger> {
        Ledger::new(self.clone(), kind.clone(), place, true)
    }

    /// All servers, in the order of their numbers.
    pub(crate) fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// The single server of this store.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] if there are several.
    pub(crate) fn only(&self) -> Result<&Arc<Server>> {
        match &self.servers[..] {
            [server] => Ok(server),
            _ => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "this is not supported on several servers, and {} servers are named: use a \
                     single server",
                    self.address()
                ),
            )),
        }
    }

    /// The server of this store if it is a cluster, where each key has its own node. A cluster is
    /// always the only server of its store.
    pub(crate) fn cluster(&self) -> Option<&Arc<Server>> {
        self.servers.first().filter(|server| server.is_cluster())
    }

    /// True if the store is on a Redis Cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster().is_some()
    }

    /// The names of all keys and channels of this store.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The addresses of the servers, joined by ` and `; without credentials.
    pub(crate) fn address(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(|it| it.address()).collect();
        all.join(" and ")
    }

    /// The number of connections opened so far, on all servers. If it has grown, there was a gap.
    pub(crate) fn connections_opened(&self) -> u64 {
        self.servers.iter().map(|it| it.link.opened()).sum()
    }

    /// The kinds that were ever used, in no order. Servers that are away are left out. This process
    /// then knows the layouts of these kinds.
    pub(crate) async fn kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        Ok(self.kinds_seen(until).await?.0)
    }

    /// As [`kinds`](Self::kinds), and the servers that are away.
    pub(crate) async fn kinds_seen(&self, until: Instant) -> Result<(Vec<Kind>, Vec<Away>)> {
        let listed = self.on_each(until, |it, until| Box::pin(it.kinds(until)));
        let (listed, away) = listed.await.there()?;
        let mut kinds = listed.concat();
        if self.is_several() {
            kinds.sort_unstable();
            kinds.dedup();
        }
        Ok((kinds, away))
    }

    /// True if a kind was ever used.
    ///
    /// # Errors
    /// The error of a server that is away, if no other server knows the kind.
    pub(crate) async fn knows(&self, kind: &Kind, until: Instant) -> Result<bool> {
        let known = self.on_each(until, |it, until| Box::pin(it.knows(kind, until)));
        let (known, mut away) = known.await.there()?;
        match (known.contains(&true), away.pop()) {
            (false, Some(away)) => Err(away.error),
            (is_known, _) => Ok(is_known),
        }
    }

    /// Publishes a message on the wake channel of each server. It is a hint: nothing depends on
    /// delivery.
    pub(crate) async fn tell(&self, message: &str, until: Instant) -> Result<()> {
        let told = self.on_rest(until, |it, until| Box::pin(it.tell(message, until)));
        told.await.of_those_there().map(drop)
    }

    /// The time by the clock of Redis; of several servers, by the first to answer.
    pub(crate) async fn time(&self, until: Instant) -> Result<UnixUs> {
        let time = self.on_any(until, |it, until| Box::pin(it.time(until)));
        time.await
    }
}

/// The fields and values of a hash, as text. Bytes that are not UTF-8 are replaced, since other
/// programs may have written to the hash.
fn texts(value: Value) -> Result<Vec<(String, String)>> {
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = from_value(value)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let pairs = pairs.into_iter();
    Ok(pairs
        .map(|(field, value)| (text(field), text(value)))
        .collect())
}

/// Decodes a reply.
///
/// # Errors
/// [`ErrorKind::Damaged`] if the reply has another shape.
fn from_value<T: redis::FromRedisValue>(value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|error| {
        Error::new(ErrorKind::Damaged, "Redis gave an unexpected answer").because(error)
    })
}
