//! Live instances, and the jobs that none of them has a route for.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::partial::PartialView;
use crate::client::{Client, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::instance::{CANCELS, Description, Takes};
use crate::key::Kind;
use crate::routing::Coverage;
use crate::settings::{BATCH, OVERDUE, SILENCE};
use crate::store::{Alive, Ledger};
use crate::time::UnixMs;

/// How many ledgers are read at the same time.
const AT_ONCE: usize = 32;

/// A running [`Worker`](crate::Worker), as it describes itself to other workers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Instance {
    /// Its id, unique for ever: 24 hexadecimal digits.
    pub id: String,
    /// The name of its host.
    pub host: String,
    /// Its process id on that host. One process can have several instances.
    pub pid: u32,
    /// Its version of Keyfall.
    pub version: String,
    /// The version of its [time zone database](https://www.iana.org/time-zones) when it started, such
    /// as `2026a`. Empty if it does not know.
    pub zones: String,
    /// The time of its start, by the clock of its host.
    pub started: SystemTime,
    /// The time since its last heartbeat.
    pub seen: Duration,
    /// The patterns of its routes.
    pub routes: Vec<String>,
    /// The routes that had no room for another job at the last heartbeat.
    pub saturated: Vec<String>,
    /// The number of jobs that each of these routes can run at the same time, in the order of
    /// [`routes`](Self::routes); 0 where another limit decides, such as a rate or the clients that
    /// pull. Empty if its version does not say.
    pub slots: Vec<usize>,
    /// The number of further jobs of each of these routes for which slots were free at the last
    /// heartbeat; 0 where [`slots`](Self::slots) is 0. Routes share the slots of their worker, so
    /// the sum can be more than it has. Empty if its version does not say.
    pub free: Vec<usize>,
    /// Whether it has a fallback, for jobs that no instance has a route for.
    pub has_fallback: bool,
    /// Whether it hears the events of Redis. An instance without events finds its jobs by sweeping.
    pub hears_events: bool,
    /// The routes that [adopt](crate::Handler::adopt) plain keys.
    pub adopts: Vec<String>,
    /// The adopting routes for which a missing key means that the job is
    /// [cancelled](crate::MissingKey::Cancel).
    pub cancels_missing: Vec<String>,
    /// Hosts of [callbacks](crate::target::http) that it does not call for now because they are
    /// down; the first 32.
    pub open_breakers: Vec<String>,
}

/// A kind with jobs that no live instance has a route for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unrouted {
    /// The kind of the jobs.
    pub kind: Kind,
    /// The number of waiting jobs without a route. If only some jobs of the kind have none, only
    /// jobs among the 256 oldest overdue ones are counted.
    pub jobs: u64,
}

/// The live instances; from [`Client::instances`]. Dereferences to a slice of instances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Instances {
    /// The instances, in the order of their start.
    pub instances: Vec<Instance>,
    /// The servers that were away. An instance sends its heartbeat to each server that it reaches.
    pub unseen: Vec<Unseen>,
}

/// The kinds with jobs that no live instance has a route for; from [`Client::unrouted`].
/// Dereferences to a slice of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnroutedKinds {
    /// The kinds, in order.
    pub kinds: Vec<Unrouted>,
    /// The shards that were not read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl Client {
    /// The live instances, in the order of their start. An instance counts as live until it has
    /// sent no heartbeat for 1.25 s.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn instances(&self) -> Result<Instances> {
        self.instances_until(self.deadline()).await
    }

    async fn instances_until(&self, until: Instant) -> Result<Instances> {
        let live = self.0.store.instances(SILENCE, until).await?;
        let view = |(seen, text): (Alive, String)| {
            // A description that does not parse comes from an unknown version.
            let description: Description = serde_json::from_str(&text).ok()?;
            Some(Instance::new(seen, description))
        };
        let mut instances: Vec<Instance> = live.into_iter().filter_map(view).collect();
        instances.sort_by_key(|one| (one.started, one.id.clone()));
        Ok(Instances {
            instances,
            unseen: PartialView::now(self.store()).unseen(),
        })
    }

    /// Ends the pause of a host of [callbacks](crate::target::http): instances that avoid the host
    /// because it is down call it again at once. `host` is the name in [`Instance::open_breakers`]:
    /// with a port, unless that is the port of the scheme. Returns the number of live instances
    /// that avoid the host.
    ///
    /// Jobs that were postponed meanwhile start at their new due time, or when they are
    /// [fired](Self::fire_now). An instance that misses the message tries the host when its own
    /// pause ends.
    ///
    /// # Errors
    /// If `host` is not the name of a host, or Redis does not answer in time.
    pub async fn close_breaker(&self, host: &str) -> Result<usize> {
        if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = format!(
                "{host:?} is not a host: write it as `keyfall breakers` lists it, such as \
                 hooks.example.org:8443"
            );
            return Err(Error::new(ErrorKind::InvalidSetting, what));
        }
        let until = self.deadline();
        let live = self.instances_until(until).await?;
        let told = format!("breaker {host}");
        self.0.store.tell(&told, until).await?;
        let is_open = |one: &&Instance| one.open_breakers.iter().any(|it| it == host);
        Ok(live.iter().filter(is_open).count())
    }

    /// The kinds with jobs that no live instance has a route for. Such jobs stay pending until an
    /// instance with a route starts. A [fallback](crate::Router::fallback) does not count as a
    /// route.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn unrouted(&self) -> Result<UnroutedKinds> {
        let until = self.deadline();
        let mut kinds = self.store().kinds(until).await?;
        kinds.sort();
        self.unrouted_of(kinds, until).await
    }

    /// The unrouted kinds among these.
    pub(crate) async fn unrouted_of(
        &self,
        kinds: Vec<Kind>,
        until: Instant,
    ) -> Result<UnroutedKinds> {
        let live = self.0.store.instances(SILENCE, until).await?;
        // Instances of one deployment have the same description.
        let texts: HashMap<&str, ()> = live.iter().map(|(_, text)| (text.as_str(), ())).collect();
        let read = |text: &str| serde_json::from_str::<Description>(text).ok()?.takes().ok();
        let takes: Vec<Takes> = texts.into_keys().filter_map(read).collect();
        let coverage = |one: &Takes, kind: &Kind| one.coverage(kind.as_str());
        let is_whole = |one: &Takes, kind| matches!(coverage(one, kind), Coverage::Whole(_));
        let uncovered = { kinds.iter() }.filter(|kind| !takes.iter().any(|it| is_whole(it, kind)));
        let shards = uncovered.map(|kind| {
            let shards = self.kind_shards_to_look(kind.as_str())?;
            Ok(shards.all().map(|it| it.ledger.clone()).collect())
        });
        // Each ledger is made when it is needed: the ledgers of thousands of kinds would take much
        // memory.
        let mut ledgers = shards.flat_map(|shards: Result<Vec<_>>| match shards {
            Ok(shards) => shards.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        });
        let mut unrouted: Vec<Unrouted> = Vec::new();
        let mut view = PartialView::now(self.store());
        loop {
            let some: Vec<Arc<Ledger>> = ledgers.by_ref().take(AT_ONCE).collect::<Result<_>>()?;
            if some.is_empty() {
                break;
            }
            let there = some.iter().filter(|ledger| !view.misses(ledger));
            let asked = there.map(async |ledger| {
                let kind = ledger.kind();
                let has_no_route = { takes.iter() }.all(|it| coverage(it, kind) == Coverage::None);
                let jobs = jobs_without_route(ledger, has_no_route, &takes, until);
                (ledger, jobs.await)
            });
            for (ledger, jobs) in join_all(asked).await {
                // Jobs on a server that is away cannot run, even if they have a route.
                let jobs = view.take(ledger, jobs)?.unwrap_or(0);
                match unrouted.last_mut() {
                    Some(last) if last.kind == *ledger.kind() => last.jobs += jobs,
                    _ if jobs > 0 => unrouted.push(Unrouted {
                        kind: ledger.kind().clone(),
                        jobs,
                    }),
                    _ => {}
                }
            }
        }
        Ok(UnroutedKinds {
            kinds: unrouted,
            unseen: view.unseen(),
        })
    }
}

/// The number of waiting jobs in one ledger that none of these instances has a route for.
async fn jobs_without_route(
    ledger: &Ledger,
    has_no_route: bool,
    takes: &[Takes],
    until: Instant,
) -> Result<u64> {
    if has_no_route {
        return Ok(ledger.tally(until).await?.pending);
    }
    let sweep = ledger.sweep(OVERDUE, (0, 0), BATCH, until).await?;
    let keys = { sweep.overdue.iter() }.filter_map(|id| ledger.kind().key(id).ok());
    let is_unrouted = |key: &_| takes.iter().all(|one| one.route_of(key).is_none());
    Ok(keys.filter(is_unrouted).count() as u64)
}

impl Deref for Instances {
    type Target = [Instance];

    fn deref(&self) -> &[Instance] {
        &self.instances
    }
}

impl IntoIterator for Instances {
    type Item = Instance;
    type IntoIter = std::vec::IntoIter<Instance>;

    fn into_iter(self) -> Self::IntoIter {
        self.instances.into_iter()
    }
}

impl Deref for UnroutedKinds {
    type Target = [Unrouted];

    fn deref(&self) -> &[Unrouted] {
        &self.kinds
    }
}

impl IntoIterator for UnroutedKinds {
    type Item = Unrouted;
    type IntoIter = std::vec::IntoIter<Unrouted>;

    fn into_iter(self) -> Self::IntoIter {
        self.kinds.into_iter()
    }
}

impl Instance {
    fn new(seen: Alive, description: Description) -> Self {
        let routes: Vec<String> = description
            .routes
            .into_iter()
            .map(|(text, _)| text)
            .collect();
        let (room, free) = seen.room.split_once('/').unwrap_or((&seen.room, ""));
        let free = free.trim_end_matches(['h', 'd']).split(',');
        let slots = description.slots;
        let free: Vec<usize> = (free.map_while(|free| free.parse().ok()))
            .zip(&slots)
            .map(|(free, slots)| if *slots > 0 { free } else { 0 })
            .take(routes.len())
            .collect();
        let saturated = routes
            .iter()
            .zip(room.bytes())
            .filter(|(_, room)| *room == b'0');
        let adopts = &description.adopts;
        let cancels = adopts.iter().filter(|(_, missing)| missing == CANCELS);
        Instance {
            id: seen.id,
            host: description.host,
            pid: description.pid,
            version: description.version,
            zones: description.zones,
            started: UnixMs(description.started).to_system(),
            seen: seen.age,
            saturated: saturated.map(|(route, _)| route.clone()).collect(),
            // Behind the routes stands the fallback.
            slots: slots.into_iter().take(routes.len()).collect(),
            free,
            routes,
            has_fallback: description.fallback,
            hears_events: seen.room.ends_with('h'),
            adopts: adopts.iter().map(|(route, _)| route.clone()).collect(),
            cancels_missing: cancels.map(|(route, _)| route.clone()).collect(),
            open_breakers: description.breakers,
        }
    }
}
