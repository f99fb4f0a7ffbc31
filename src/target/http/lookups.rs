//! Lookups of names, bounded in time and number.
//!
//! A call of the system's resolver cannot be cancelled: if the name servers hang, it holds a thread
//! for as long as the system tries, which may be minutes. So a lookup keeps its place until its
//! thread ends, even if no caller waits for it any more. Callers that ask for the same name share
//! one lookup.
//!
//! A name has one place. Names that jobs give also share the places of each zone that they are in,
//! and the places of all names. A zone has fewer places than the zone above it, so the owner of a
//! zone cannot hold up its neighbours alone. Names that routes give share no places, for there are
//! no more of them than routes. Lookups have threads of their own: they block neither the runtime
//! nor its end.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::iter;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// The most simultaneous lookups of one name.
const OF_NAME: usize = 1;
/// The most simultaneous lookups of names that end in the same two, three, four, five labels.
const OF_ZONES: [usize; 4] = [32, 12, 4, 2];
/// The most simultaneous lookups of names that end in the same six or more labels.
const OF_DEEPER: usize = 1;
/// The most simultaneous lookups of all names that jobs give.
const OF_ALL: usize = 128;

/// A function that finds the addresses of a name. It must keep the permit until it holds no thread
/// any more.
pub(super) type Lookup =
    Arc<dyn Fn(String, LookupPermit) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The right to one lookup. Dropping it frees its places.
pub(super) struct LookupPermit {
    _permits: Vec<OwnedSemaphorePermit>,
}

/// The source of a name to look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NameSource {
    /// The URL of a route. Its operator is trusted.
    ByRoute,
    /// The URL of a job, or of a redirect.
    ByJob,
}

/// All lookups by one function, with their limits.
pub(super) struct Lookups {
    lookup: Lookup,
    /// The lookups under way, for sharing. Lookups for routes are kept apart from lookups for jobs:
    /// they must not wait for places that only jobs need.
    under_way: Mutex<HashMap<(NameSource, String), WeakShared<LookupAnswer>>>,
    /// The places of names and zones that are in use now.
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// The places of all names that jobs give.
    all: Arc<Semaphore>,
}

/// The future of one lookup, shared by all callers that wait for it.
type LookupAnswer = BoxFuture<'static, Result<Arc<[IpAddr]>, Unresolved>>;

/// The reason why a lookup found no address.
#[derive(Debug, Clone)]
pub(super) enum Unresolved {
    /// The lookup of this name took longer than this time.
    Slow(String, Duration),
    /// Other lookups hold all places that this name could have. That is no fault of its host.
    Crowded(String),
    /// The resolver failed.
    Failed(Arc<io::Error>),
}

impl Lookups {
    /// Lookups by this function, with places of their own.
    pub(super) fn new(lookup: Lookup) -> Arc<Self> {
        Arc::new(Lookups {
            lookup,
            under_way: Mutex::default(),
            places: Mutex::default(),
            all: Arc::new(Semaphore::new(OF_ALL)),
        })
    }

    /// Lookups by the system's resolver. All targets of the process share them, and so their
    /// limits.
    pub(super) fn of_the_system() -> Arc<Self> {
        static SHARED: LazyLock<Arc<Lookups>> =
            LazyLock::new(|| Lookups::new(Arc::new(by_the_system)));
        SHARED.clone()
    }

    /// Finds the addresses of a name within this time, by a lookup under way or a new one.
    pub(super) async fn find(
        self: &Arc<Self>,
        name: &str,
        named: NameSource,
        within: Duration,
    ) -> Result<Arc<[IpAddr]>, Unresolved> {
        match timeout(within, self.shared(name, named, within)).await {
            Ok(found) => found,
            Err(_) => Err(Unresolved::Slow(name.to_owned(), within)),
        }
    }

    /// The lookup of this name that is under way, or a new one.
    fn shared(
        self: &Arc<Self>,
        name: &str,
        named: NameSource,
        within: Duration,
    ) -> Shared<LookupAnswer> {
        let mut under_way = self.under_way.lock().expect("no panic while held");
        let key = (named, name.to_owned());
        let found = under_way.get(&key).and_then(WeakShared::upgrade);
        // Answers are not cached: a lookup that has ended does not serve later callers.
        if let Some(found) = found.filter(|it| it.peek().is_none()) {
            return found;
        }
        let (lookups, name) = (self.clone(), name.to_owned());
        let new = async move {
            let place = lookups.place(&name, named, within).await?;
            let found = (lookups.lookup)(name, place).await;
            found
                .map(Arc::from)
                .map_err(|e| Unresolved::Failed(Arc::new(e)))
        };
        let new = new.boxed().shared();
        under_way.retain(|_, it| it.upgrade().is_some());
        under_way.extend(new.downgrade().map(|it| (key, it)));
        new
    }

    /// Waits for the places that a name needs: its own, and for names of jobs the places of its
    /// zones and of all names.
    ///
    /// # Errors
    /// [`Unresolved::Crowded`] if a place of a zone, or of all names, is not free within half of
    /// the time.
    async fn place(
        &self,
        name: &str,
        named: NameSource,
        within: Duration,
    ) -> Result<LookupPermit, Unresolved> {
        let own = self.semaphore(format!("{named:?} {name}"), OF_NAME);
        // An earlier lookup of the same name may still hang; `find` gives up in time.
        let mut permits = vec![acquired(own).await];
        if named == NameSource::ByRoute {
            return Ok(LookupPermit { _permits: permits });
        }
        // The smallest zone first: a lookup that waits there holds no place of a larger zone.
        let zones = zones(name).map(|(zone, places)| self.semaphore(zone.to_owned(), places));
        let of_others: Vec<_> = zones.chain([self.all.clone()]).collect();
        // Half of the time: sooner than `find` gives up, so that the reason is known.
        let others = timeout(within / 2, async {
            for semaphore in of_others {
                permits.push(acquired(semaphore).await);
            }
        });
        match others.await {
            Ok(()) => Ok(LookupPermit { _permits: permits }),
            Err(_) => Err(Unresolved::Crowded(name.to_owned())),
        }
    }

    /// The places of a name or a zone, made if nobody uses them now. Unused ones are removed.
    fn semaphore(&self, of: String, places: usize) -> Arc<Semaphore> {
        let mut all = self.places.lock().expect("no panic while held");
        all.retain(|_, it| Arc::strong_count(it) > 1);
        let new = || Arc::new(Semaphore::new(places));
        all.entry(of).or_insert_with(new).clone()
    }
}

/// The zones of a name, from the name itself to its last two labels, each with its number of
/// places. The last label alone is left out: no owner of hosts owns it.
fn zones(name: &str) -> impl Iterator<Item = (&str, usize)> {
    let name = name.trim_end_matches('.');
    let dots = name.match_indices('.').map(|(at, _)| at + 1);
    let zones: Vec<&str> = iter::once(0).chain(dots).map(|at| &name[at..]).collect();
    let labels = zones.len();
    let places = move |at| OF_ZONES.get(labels - at - 2).copied().unwrap_or(OF_DEEPER);
    let zones = zones.into_iter().enumerate();
    zones
        .take(labels - 1)
        .map(move |(at, zone)| (zone, places(at)))
}

async fn acquired(semaphore: Arc<Semaphore>) -> OwnedSemaphorePermit {
    semaphore.acquire_owned().await.expect("it is never closed")
}

/// Looks a name up with the resolver of the system, on a new thread.
fn by_the_system(name: String, place: LookupPermit) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
    let look = move || {
        let found = (name.as_str(), 0).to_socket_addrs()?;
        Ok(found.map(|address| address.ip()).collect())
    };
    Box::pin(on_a_thread(place, look))
}

/// Runs a lookup on a new thread. The place is kept until the thread ends, even if the future is
/// dropped before.
async fn on_a_thread(
    place: LookupPermit,
    find: impl FnOnce() -> io::Result<Vec<IpAddr>> + Send + 'static,
) -> io::Result<Vec<IpAddr>> {
    let (told, found) = oneshot::channel();
    let look = move || {
        let _ = told.send(find());
        drop(place);
    };
    thread::Builder::new()
        .name("keyfall-lookup".into())
        .spawn(look)?;
    found.await.map_err(io::Error::other)?
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unresolved::Slow(name, within) => write!(
                f,
                "the address of {name} was not found within {within:?}: its name servers are slow \
                 or unavailable"
            ),
            Unresolved::Crowded(name) => write!(
                f,
                "the address of {name} was not looked up: too many other look-ups are running"
            ),
            Unresolved::Failed(error) => error.fmt(f),
        }
    }
}

impl StdError for Unresolved {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(4);

    /// Lookups in which names with `slow` hang for a minute and cannot be stopped, and the number
    /// of lookups so far.
    fn lookups() -> (Arc<Lookups>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let lookups = Lookups::new(Arc::new(move |name, place| {
            counter.fetch_add(1, Ordering::Relaxed);
            let looking = tokio::spawn(async move {
                if name.contains("slow") {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                drop(place);
                Ok(vec![IpAddr::from([1, 1, 1, 1])])
            });
            Box::pin(async move { looking.await.unwrap() })
        }));
        (lookups, count)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_hangs_holds_one_place_and_delays_no_other() {
        let (lookups, count) = lookups();
        let began = Instant::now();
        for _ in 0..3 {
            let asked = (0..100).map(|_| lookups.find("slow.a.org", NameSource::ByJob, WITHIN));
            for found in futures_util::future::join_all(asked).await {
                assert!(matches!(found, Err(Unresolved::Slow(..))), "{found:?}");
            }
        }
        assert!(began.elapsed() < 4 * WITHIN, "{:?}", began.elapsed());
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let began = Instant::now();
        assert!(
            lookups
                .find("fast.a.org", NameSource::ByJob, WITHIN)
                .await
                .is_ok()
        );
        assert!(
            lookups
                .find("b.org", NameSource::ByJob, WITHIN)
                .await
                .is_ok()
        );
        assert!(began.elapsed() < WITHIN / 10);
        // When its thread has ended, the name is looked up again.
        tokio::time::advance(Duration::from_secs(61)).await;
        let found = lookups.find("slow.a.org", NameSource::ByJob, WITHIN).await;
        let found = found.unwrap_err().to_string();
        assert!(
            found.contains("slow.a.org was not found within 4s"),
            "{found}"
        );
        assert_eq!(count.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_zone_with_hanging_names_delays_no_other_zone() {
        let (lookups, count) = lookups();
        let names: Vec<String> = (0..500)
            .map(|n| format!("slow-{n}.evil.shared.org"))
            .collect();
        let asked = names
            .iter()
            .map(|name| lookups.find(name, NameSource::ByJob, WITHIN));
        // Lookups that wait for a place hold no place of another zone.
        let meanwhile = async {
            tokio::time::sleep(WITHIN / 4).await;
            let found = lookups.find("first.shared.org", NameSource::ByJob, WITHIN / 10);
            found.await
        };
        let (found, first) = tokio::join!(futures_util::future::join_all(asked), meanwhile);
        assert!(first.is_ok(), "{first:?}");
        let is_crowded = |it: &&Result<_, _>| matches!(it, Err(Unresolved::Crowded(_)));
        assert_eq!(found.iter().filter(is_crowded).count(), 500 - OF_ZONES[1]);
        assert_eq!(count.load(Ordering::Relaxed), OF_ZONES[1] + 1);
        let began = Instant::now();
        assert!(
            lookups
                .find("good.shared.org", NameSource::ByJob, WITHIN)
                .await
                .is_ok()
        );
        assert!(
            lookups
                .find("hooks.good.shared.org", NameSource::ByJob, WITHIN)
                .await
                .is_ok()
        );
        assert!(began.elapsed() < WITHIN / 10);
        // Names and zones without lookups are not kept.
        tokio::time::advance(Duration::from_secs(61)).await;
        lookups
            .find("b.org", NameSource::ByJob, WITHIN)
            .await
            .unwrap();
        lookups
            .find("c.org", NameSource::ByJob, WITHIN)
            .await
            .unwrap();
        assert!(lookups.places.lock().unwrap().len() <= 6);
        assert!(lookups.under_way.lock().unwrap().len() <= 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_hanging_domains_delay_no_other_domain_of_their_top_level() {
        let (lookups, _) = lookups();
        for tld in ["com", "net"] {
            let names = (0..40).map(|n| format!("slow-{n}.{tld}"));
            let names: Vec<String> = names.collect();
            let asked = names
                .iter()
                .map(|name| lookups.find(name, NameSource::ByJob, WITHIN));
            for found in futures_util::future::join_all(asked).await {
                assert!(matches!(found, Err(Unresolved::Slow(..))), "{found:?}");
            }
        }
        for name in ["good.com", "hooks.good.com", "local", "good.net."] {
            let found = lookups.find(name, NameSource::ByJob, WITHIN / 10).await;
            assert!(found.is_ok(), "{name}: {found:?}");
        }
    }

    /// The limit holds, however deep below their zone the names of the tenant are.
    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_its_own_zone_leaves_places_to_other_tenants() {
        for (all, levels) in [
            ("shared.org", 3),
            ("a.shared.org", 3),
            ("b.a.shared.org", 3),
        ] {
            let (lookups, _) = lookups();
            let mut names = vec![format!("slow.{all}")];
            for level in 0..levels {
                let of_level = names.iter().map(|name| format!("{level}.{name}"));
                let spread = (0..50).map(|n| format!("slow{n}.{level}-{}.{}", n % 9, names[0]));
                let more: Vec<String> = of_level.chain(spread).collect();
                names.extend(more);
            }
            let asked = names
                .iter()
                .map(|name| lookups.find(name, NameSource::ByJob, WITHIN));
            futures_util::future::join_all(asked).await;
            let good = format!("good.{all}");
            let deeper = format!("hooks.good.{all}");
            for name in [&good, &deeper] {
                let found = lookups.find(name, NameSource::ByJob, WITHIN / 10).await;
                assert!(found.is_ok(), "{name}: {found:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_of_routes_have_reserved_places() {
        let (lookups, _) = lookups();
        let names: Vec<String> = (0..200).map(|n| format!("slow.{n}.com")).collect();
        let asked = names
            .iter()
            .map(|name| lookups.find(name, NameSource::ByJob, WITHIN));
        let asked = futures_util::future::join_all(asked);
        let route = async {
            tokio::time::sleep(WITHIN / 4).await;
            // A job waits for a place, and will be told that there are too many lookups.
            let job = lookups.find("own.org", NameSource::ByJob, WITHIN);
            let route = async {
                tokio::task::yield_now().await;
                lookups
                    .find("own.org", NameSource::ByRoute, WITHIN / 10)
                    .await
            };
            tokio::join!(job, route)
        };
        let (found, (job, route)) = tokio::join!(asked, route);
        let is_slow = |it: &&Result<_, _>| matches!(it, Err(Unresolved::Slow(..)));
        assert_eq!(found.iter().filter(is_slow).count(), OF_ALL);
        assert!(matches!(job, Err(Unresolved::Crowded(_))), "{job:?}");
        assert!(route.is_ok(), "{route:?}");
    }

    #[tokio::test]
    async fn a_hanging_thread_keeps_its_place_after_its_caller_left() {
        let places = Arc::new(Semaphore::new(1));
        let permit = places.clone().try_acquire_owned().unwrap();
        let place = LookupPermit {
            _permits: vec![permit],
        };
        let (go_on, gone_on) = std::sync::mpsc::channel();
        let looking = on_a_thread(place, move || {
            gone_on.recv().map_err(io::Error::other)?;
            Ok(Vec::new())
        });
        assert!(timeout(Duration::from_millis(10), looking).await.is_err());
        assert_eq!(places.available_permits(), 0);
        go_on.send(()).unwrap();
        drop(timeout(WITHIN, places.acquire()).await.unwrap());
    }

    #[tokio::test]
    async fn the_resolver_of_the_system_finds_names() {
        let (one, other) = (Lookups::of_the_system(), Lookups::of_the_system());
        assert!(Arc::ptr_eq(&one, &other), "all targets share its threads");
        let found = Lookups::of_the_system()
            .find("localhost", NameSource::ByJob, WITHIN)
            .await;
        assert!(found.unwrap().iter().all(IpAddr::is_loopback));
    }
}
