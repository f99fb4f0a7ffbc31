//! The only module that speaks Redis.
//!
//! | part | what it is |
//! |---|---|
//! | [`link`], [`connection`] | connections for commands, rebuilt when they break or hang |
//! | [`in_time`] | waiting for an answer, fairly to those who gave it in time |
//! | [`cluster`] | the nodes of a cluster, and which of them serves a key |
//! | [`health`] | what is wrong with a worker's server, said once |
//! | [`subscription`], [`subscriptions`] | to one node, with heartbeat and reconnection; and to all of them |
//! | [`script`], [`reply`] | the Lua scripts, and the closed set of their answers |
//! | [`call`], [`lane`] | calls of scripts; numbered ones, which may be repeated |
//! | [`ledger`] | one ledger: its keys, and how its scripts are called |
//! | [`counted`] | as what the answers are counted, for the metrics |
//! | [`layout`], [`moving`] | how many ledgers a kind has; moving jobs from one to another |
//! | [`dropping`] | removing a kind in which nothing is |
//! | [`founding`] | making a kind known, with as many ledgers as it starts with |
//! | [`produce`], [`work`], [`inspect`], [`letters`] | the operations on a ledger, by who calls them |
//! | [`order`] | numbers that say which of several jobs came last |
//! | [`durable`] | waiting until replicas and disks have what was written |
//! | [`torn`], [`strays`], [`joining`] | ledgers of which a part is missing; where that is; bringing it back |
//! | [`triggers`], [`touch`] | triggers that are in other slots than their ledger |
//! | [`instances`] | which instances live |
//! | [`list`] | the jobs of a ledger, page by page |
//! | [`pause`], [`switches`] | pausing kinds, and resuming them |
//! | [`history`] | what was done, for people |
//! | [`functions`] | the scripts as Redis functions, for any client |
//! | [`audit`] | looking for what is wrong with the names in a ledger, and mending it |
//! | [`mending`], [`common`] | the same of keys as wholes: of a ledger, and of those common to all |
//! | [`searching`] | which kinds have jobs, whatever the list of kinds says |
//! | [`origin`], [`sentinel`], [`url`], `tls` | where a server is, and how it is known to be the right one |
//! | [`target_redis`] | the Redis of a target: a list or a stream of somebody else |
//! | [`several`], [`membership`], [`missed`] | several independent servers, which of them one is, and what it has missed while it was away |
//! | [`nodes`] | that server, or the nodes of a cluster, for what each of them is asked |
//! | [`requirements`], [`rights`] | what it must be to carry Keyfall, and what it must allow |
//! | [`vitals`] | what the doctor looks at |

#[cfg(feature = "worker")]
mod adopt;
mod audit;
mod call;
mod clock;
mod cluster;
mod common;
mod connection;
mod counted;
mod dropping;
mod durable;
#[cfg(feature = "worker")]
mod failures;
mod fault;
mod founding;
mod functions;
#[cfg(feature = "worker")]
mod health;
#[cfg(feature = "worker")]
mod history;
mod in_time;
mod inspect;
#[cfg(feature = "worker")]
mod instances;
#[cfg(feature = "worker")]
mod joining;
#[cfg(feature = "worker")]
mod keyspace;
mod lane;
mod layout;
mod ledger;
mod letters;
mod link;
mod list;
mod membership;
mod mending;
mod missed;
mod moving;
mod nodes;
mod order;
mod origin;
#[cfg(feature = "worker")]
mod pace;
mod pause;
mod produce;
#[cfg(feature = "worker")]
mod proof;
mod reply;
mod requirements;
mod rights;
mod script;
mod searching;
mod sentinel;
mod several;
mod strays;
#[cfg(feature = "worker")]
mod subscription;
#[cfg(feature = "worker")]
mod subscriptions;
mod switches;
#[cfg(feature = "worker")]
mod target_redis;
#[cfg(feature = "tls")]
mod tls;
mod torn;
#[cfg(feature = "worker")]
mod touch;
mod triggers;
mod url;
#[cfg(feature = "worker")]
mod vitals;
#[cfg(feature = "worker")]
mod work;

#[cfg(all(test, feature = "embedded", feature = "worker", unix))]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, Pipeline, Value};

#[cfg(feature = "worker")]
pub(crate) use adopt::Why;
pub(crate) use audit::{Judged, PARTS, Suspect};
pub(crate) use clock::RedisClock;
#[cfg(feature = "worker")]
pub(crate) use dropping::Razed;
use durable::Waits;
pub(crate) use functions::{Loaded, VERSION, library};
#[cfg(feature = "worker")]
pub(crate) use health::{Health, HealthReport};
#[cfg(feature = "worker")]
pub(crate) use history::{Added, HistoryStream, Line};
pub(crate) use inspect::{Found, Tally};
#[cfg(feature = "worker")]
pub(crate) use instances::{Alive, Beat};
#[cfg(feature = "worker")]
pub(crate) use joining::{MissingPart, SlotOutcome, Spares};
#[cfg(feature = "worker")]
pub(crate) use keyspace::{PlainKey, Progress};
pub(crate) use lane::Lane;
pub(crate) use lane::unique_id;
use layout::Layouts;
pub(crate) use ledger::Ledger;
pub(crate) use letters::{BackupItem, Discard, KeptAs, Letter, Revival};
use link::{Link, Request, ServerReply};
pub(crate) use list::{Position, Seen, Slice, Sought};
use membership::Membership;
pub(crate) use mending::Wrong;
use missed::CatchUp;
#[cfg(feature = "worker")]
pub(crate) use moving::{COUNTERS, Part};
use origin::Origin;
#[cfg(feature = "worker")]
pub(crate) use pace::PaceRequest;
pub(crate) use produce::{Change, Mode, Outdated, Placement, Update, When};
#[cfg(feature = "worker")]
pub(crate) use proof::LOST;
#[cfg(feature = "internals")]
pub(crate) use reply::read_any_reply;
pub(crate) use reply::{Answered, ReplyWord as Word, Unlisted};
#[cfg(feature = "worker")]
pub(crate) use requirements::{Announced, Evicted, Info, SCHEMA, WantedEvents};
#[cfg(feature = "worker")]
pub(crate) use rights::{Refused, Whom};
pub(crate) use several::{Away, is_of_absence};
#[cfg(feature = "worker")]
pub(crate) use strays::Stray;
#[cfg(feature = "worker")]
pub(crate) use subscription::{Signal, Subscription};
#[cfg(feature = "worker")]
pub(crate) use subscriptions::follow_events;
#[cfg(feature = "worker")]
pub(crate) use target_redis::{EntryId, EntryQuery, EntryStatus, TargetRedis, WriteRetry};
pub(crate) use url::check_url;
#[cfg(feature = "worker")]
pub(crate) use vitals::{ClockReading, LedgerSample, Observed, ServerReport};
#[cfg(feature = "worker")]
pub(crate) use work::{ClaimReply, Claimed, DeadLimits, Extent, Settlement, Sweep, Verb};

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::names::Names;
use crate::settings::LinkSettings;
use crate::shards::{Layout, ShardRef};
use crate::time::UnixUs;
use strays::Primaries;
use torn::SplitLedgers;

/// One Redis, or several, seen as a set of ledgers.
pub(crate) struct Store {
    /// Of several servers each has its own.
    link: Link,
    /// Each of several servers, as a store of its own. None, if there is one.
    members: Vec<Arc<Store>>,
    /// Which of several servers it is.
    place: several::MemberStatus,
    clock: Arc<RedisClock>,
    /// How many ledgers kinds have, as far as is known.
    layouts: Arc<Layouts>,
    names: Names,
    database: i64,
    /// The ledgers of which a part is missing.
    torn: Arc<SplitLedgers>,
    primaries: Arc<Primaries>,
    /// Those who wait until their writes are durable.
    waits: Waits,
    /// Whether numbered calls outlast a server that refuses for now: for a worker, which
    /// has nobody to hand the error to.
    insists: bool,
    /// Where a worker's store notes what is refused.
    #[cfg(feature = "worker")]
    health: Option<Arc<Health>>,
    #[cfg(feature = "worker")]
    slow: touch::Slow,
}

impl Store {
    /// A store on the server that `url` names, or on several, with white space between them. Opens
    /// nothing yet.
    pub(crate) fn new(url: &str, names: Names, settings: &LinkSettings) -> Result<Arc<Self>> {
        let urls = url::all(url)?;
        if let [url] = urls[..] {
            let link = Link::new(Origin::parse(url, settings)?, settings);
            return Ok(Store::on(link, names, settings));
        }
        let layouts = Arc::<Layouts>::default();
        let mut members = Vec::with_capacity(urls.len());
        for (place, url) in urls.iter().enumerate() {
            let origin = Origin::parse_member(url, settings)?;
            let membership = Membership::new(names.clone(), place, urls.len());
            let link = Link::new(origin, settings).of_member(membership);
            let mut member = Store::on(link, names.clone(), settings);
            let it = Arc::get_mut(&mut member).expect("nobody else has it yet");
            it.place = several::MemberStatus::new(place);
            it.layouts = layouts.clone();
            members.push(member);
        }
        Ok(Store::of_members(members, layouts, names, settings))
    }

    /// A store on one server.
    fn on(link: Link, names: Names, settings: &LinkSettings) -> Arc<Self> {
        Arc::new(Store {
            database: link.origin().database(),
            waits: Waits::new(link.origin().clone(), settings),
            link,
            members: Vec::new(),
            place: several::MemberStatus::default(),
            clock: Arc::default(),
            layouts: Arc::default(),
            torn: Arc::default(),
            primaries: Arc::default(),
            names,
            insists: false,
            #[cfg(feature = "worker")]
            health: None,
            #[cfg(feature = "worker")]
            slow: touch::Slow::default(),
        })
    }

    /// Several servers as one, each of which is told what it has missed before it is used.
    fn of_members(
        mut members: Vec<Arc<Store>>,
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Arc<Self> {
        let untold = members.iter().map(|member| member.beside(settings));
        let untold = Store::together(untold.collect(), layouts.clone(), names.clone(), settings);
        for (place, member) in members.iter_mut().enumerate() {
            let it = Arc::get_mut(member).expect("nobody else has it yet");
            it.link.begin_to_tell(CatchUp::new(untold.clone(), place));
        }
        Store::together(members, layouts, names, settings)
    }

    /// Several servers as one.
    fn together(
        members: Vec<Arc<Store>>,
        layouts: Arc<Layouts>,
        names: Names,
        settings: &LinkSettings,
    ) -> Arc<Self> {
        let origins = members.iter().map(|it| it.link.origin().clone());
        let link = Link::new(Origin::Several(origins.collect()), settings);
        let mut whole = Store::on(link, names, settings);
        let it = Arc::get_mut(&mut whole).expect("nobody else has it yet");
        it.members = members;
        it.layouts = layouts;
        whole
    }

    /// A store on the same server, with a connection of its own, whose calls outlast whatever
    /// may pass: outages, fail-overs, a narrow ACL that somebody mends. What it meets, it
    /// tells the health of the server.
    #[cfg(feature = "worker")]
    pub(crate) fn insisting(
        &self,
        settings: &LinkSettings,
        health: &impl Fn(&Store) -> Health,
    ) -> Arc<Self> {
        if self.is_several() {
            let members = self.members.iter();
            let members = members.map(|member| member.insisting(settings, health));
            let (layouts, names) = (self.layouts.clone(), self.names.clone());
            return Store::of_members(members.collect(), layouts, names, settings);
        }
        let health = Arc::new(health(self));
        let link = self.link.watched(settings, health.clone());
        Arc::new(Store {
            waits: Waits::new(link.origin().clone(), settings),
            link,
            members: Vec::new(),
            place: self.place.again(),
            clock: Arc::default(),
            layouts: self.layouts.clone(),
            torn: self.torn.clone(),
            primaries: self.primaries.clone(),
            names: self.names.clone(),
            database: self.database,
            insists: true,
            health: Some(health),
            slow: touch::Slow::default(),
        })
    }

    /// A store on the same server, with a connection of its own: for calls that wait.
    pub(crate) fn beside(&self, settings: &LinkSettings) -> Arc<Self> {
        if self.is_several() {
            let members = self.members.iter().map(|member| member.beside(settings));
            let (layouts, names) = (self.layouts.clone(), self.names.clone());
            return Store::of_members(members.collect(), layouts, names, settings);
        }
        Arc::new(Store {
            link: self.link.another(settings),
            members: Vec::new(),
            place: self.place.again(),
            waits: Waits::new(self.link.origin().clone(), settings),
            clock: self.clock.clone(),
            layouts: self.layouts.clone(),
            torn: self.torn.clone(),
            primaries: self.primaries.clone(),
            names: self.names.clone(),
            database: self.database,
            insists: false,
            #[cfg(feature = "worker")]
            health: None,
            #[cfg(feature = "worker")]
            slow: touch::Slow::default(),
        })
    }

    /// Drops the connections of several servers, which nobody needs for a while.
    fn hang_up(&self) {
        self.members.iter().for_each(|member| member.link.hang_up());
    }

    /// The health of the server, of a worker's store.
    #[cfg(feature = "worker")]
    pub(crate) fn health(&self) -> Option<&Health> {
        self.health.as_deref()
    }

    /// A call that concerns this subject only was answered or refused.
    #[cfg(feature = "worker")]
    pub(crate) fn note(&self, subject: &str, call: &'static str, refused: Option<&Error>) {
        if let Some(health) = &self.health {
            health.note(subject, call, refused);
        }
    }

    /// A ledger of a kind.
    pub(crate) fn ledger(self: &Arc<Self>, kind: &Kind, place: ShardRef) -> Arc<Ledger> {
        Ledger::new(self.clone(), kind.clone(), place, false)
    }

    /// A ledger of a kind whose keys are adopted: its triggers have names of ours.
    #[cfg(feature = "worker")]
    pub(crate) fn adopting_ledger(self: &Arc<Self>, kind: &Kind, place: ShardRef) -> Arc<Ledger> {
        Ledger::new(self.clone(), kind.clone(), place, true)
    }

    /// Whether it is a cluster, where each key has a node of its own.
    pub(crate) fn is_cluster(&self) -> bool {
        self.link.origin().cluster().is_some()
    }

    /// What its keys are called.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Where the server is; without credentials.
    pub(crate) fn address(&self) -> String {
        self.link.address()
    }

    /// How many connections were opened so far. A change tells that there was a gap.
    pub(crate) fn connections_opened(&self) -> u64 {
        let of_members = self.members.iter().map(|it| it.link.opened());
        self.link.opened() + of_members.sum::<u64>()
    }

    /// The kinds that were ever used, in no order, as far as those servers know that are there. Their
    /// layouts are known from now on.
    pub(crate) async fn kinds(&self, until: Instant) -> Result<Vec<Kind>> {
        Ok(self.kinds_seen(until).await?.0)
    }

    /// The same, and who is away.
    pub(crate) async fn kinds_seen(&self, until: Instant) -> Result<(Vec<Kind>, Vec<Away>)> {
        let listed = self.on_each(until, |it, until| Box::pin(it.kinds_here(until)));
        let (listed, away) = listed.await.there()?;
        let mut kinds = listed.concat();
        if self.is_several() {
            kinds.sort_unstable();
            kinds.dedup();
        }
        Ok((kinds, away))
    }

    async fn kinds_here(&self, until: Instant) -> Result<Vec<Kind>> {
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

    /// Whether a kind was ever used.
    pub(crate) async fn knows(&self, kind: &Kind, until: Instant) -> Result<bool> {
        let known = self.on_each(until, |it, until| Box::pin(it.knows_here(kind, until)));
        let (known, mut away) = known.await.there()?;
        match (known.contains(&true), away.pop()) {
            (false, Some(away)) => Err(away.error),
            (is_known, _) => Ok(is_known),
        }
    }

    async fn knows_here(&self, kind: &Kind, until: Instant) -> Result<bool> {
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

    async fn has_field(&self, key: &str, field: &str, until: Instant) -> Result<bool> {
        let mut get = redis::cmd("HGET");
        get.arg(key).arg(field);
        let text: Option<String> = from_value(self.command(&get, until).await?)?;
        Ok(text.is_some())
    }

    /// Says something on the wake channel, of each server. A hint: nothing depends on its being heard.
    pub(crate) async fn tell(&self, message: &str, until: Instant) -> Result<()> {
        let told = self.on_rest(until, |it, until| Box::pin(it.tell_here(message, until)));
        told.await.of_those_there().map(drop)
    }

    async fn tell_here(&self, message: &str, until: Instant) -> Result<()> {
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(self.names.wake(self.database)).arg(message);
        self.command(&cmd, until).await.map(drop)
    }

    /// The server's time; of several that of the first one that answers.
    pub(crate) async fn time(&self, until: Instant) -> Result<UnixUs> {
        let time = self.on_any(until, |it, until| Box::pin(it.time_here(until)));
        time.await
    }

    async fn time_here(&self, until: Instant) -> Result<UnixUs> {
        let time = self.command(&redis::cmd("TIME"), until).await?;
        let (seconds, micros): (u64, u64) = from_value(time)?;
        Ok(UnixUs(seconds * 1_000_000 + micros))
    }

    async fn command(&self, cmd: &Cmd, until: Instant) -> Result<Value> {
        Ok(self.link.send(Request::One(cmd), until).await?.value)
    }

    async fn pipeline(&self, pipeline: &Pipeline, until: Instant) -> Result<Value> {
        Ok(self.link.send(Request::Many(pipeline), until).await?.value)
    }

    async fn answer(&self, cmd: &Cmd, until: Instant) -> Result<ServerReply, fault::Fault> {
        self.link.send(Request::One(cmd), until).await
    }
}

/// The fields of a hash that somebody else may have written to.
fn texts(value: Value) -> Result<Vec<(String, String)>> {
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = from_value(value)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let pairs = pairs.into_iter();
    Ok(pairs
        .map(|(field, value)| (text(field), text(value)))
        .collect())
}

fn from_value<T: redis::FromRedisValue>(value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|error| {
        Error::new(ErrorKind::Damaged, "Redis answered something unexpected").because(error)
    })
}
