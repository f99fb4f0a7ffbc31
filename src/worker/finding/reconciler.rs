//! The reconciler: sweeps the ledgers for jobs that no event announced. It finds overdue jobs and
//! lapsed leases, and puts them into the claim inbox.
//!
//! It is the safety net of Keyfall: without events, pacer and wake-ups, its sweeps alone still find
//! every due job, only later. A ledger is swept shortly after each expected due time and lapse,
//! after each gap in the events, and at intervals. Each further instance sweeps a little later than
//! the one before it, so that as a rule only one instance sweeps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::balancer::Balancer;
use super::lapses::Lapses;
use super::pacer::Pacer;
use super::tracks::{OfLedger, Tracks};
use crate::settings::{BATCH, LONGEST_SLEEP, OVERDUE, SWEEP_DEAF, SWEEP_IDLE};
use crate::source::Source;
use crate::store::Sweep;
use crate::time::UnixMs;
use crate::worker::claiming::inbox::ClaimInbox;
use crate::worker::instances::PeerTable;
use crate::worker::served::{ServedLedger, ServedLedgers};
use crate::worker::server_monitor::{ServerMonitor, ServerMonitors};

/// How long after a due time the first instance sweeps for jobs left behind. Slightly later than
/// necessary, so that one sweep also finds jobs that fell due shortly after.
const FIRST: Duration = OVERDUE.saturating_add(Duration::from_millis(40));

/// Delay of each further instance after the one before it. An instance claims the jobs that it
/// finds, and the next one finds nothing. Without the delay, all instances would sweep every shard.
const TURN: Duration = Duration::from_millis(100);

/// Shortest pause between two sweeps of a ledger while jobs fall due in it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between two sweeps of a ledger whose overdue jobs nobody takes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often a paused ledger is swept, in case the news of its resumption was lost.
const SWEEP_PAUSED: Duration = Duration::from_secs(5);

/// Time limit of one sweep; it is repeated after that.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sweeps all ledgers of this worker, each when there may be something to find.
pub(crate) struct Reconciler {
    served_ledgers: Arc<ServedLedgers>,
    instances: Arc<PeerTable>,
    inbox: Arc<ClaimInbox>,
    pacer: Arc<Pacer>,
    balancer: Arc<Balancer>,
    monitors: Arc<ServerMonitors>,
    /// How long lapsed leases are left alone after Redis was away, so that their owners can renew
    /// them.
    renewal: Duration,
    asked: Mutex<SweepRequests>,
    told: Notify,
}

/// The sweeps that other parts have requested.
struct SweepRequests {
    /// When something happens in a ledger, by its index.
    by_index: HashMap<usize, Instant>,
    of_servers: Vec<OfServer>,
}

/// The requests for all ledgers of a server.
struct OfServer {
    /// Number of the last known connection. A new number means that the server was away.
    connection: u64,
    /// How often a sweep of all ledgers was requested, because events were lost.
    all: u64,
    /// Lapsed leases are left alone until then.
    hold: Instant,
}

/// The reconciler's state of one ledger.
struct SweepTrack {
    served: Arc<ServedLedger>,
    /// When the next sweep is.
    sweep_at: Instant,
    /// Pause after a sweep that found the same oldest job as the one before.
    pause: Duration,
    /// The oldest job of the last page of the last sweep.
    last_found: Option<String>,
    lapses: Lapses,
    /// How many lapsed leases are passed over, for workers that have a route for them.
    skip_lapsed: usize,
    /// Whether the next sweep takes all due jobs, not only the overdue ones.
    at_once: bool,
    /// The value of [`OfServer::all`] that the state takes into account.
    all: u64,
}

impl OfLedger for SweepTrack {
    fn served(&self) -> &ServedLedger {
        &self.served
    }
}

impl OfServer {
    /// Takes in the number of the present connection. After an absence of the server, lapsed leases
    /// are left alone for the time of a renewal.
    fn see_connection(&mut self, opened: u64, renewal: Duration, now: Instant) {
        if std::mem::replace(&mut self.connection, opened) != opened {
            self.all += 1;
            // During a hold no lease lapsed before the hold began, so it is not extended.
            if self.hold <= now {
                self.hold = now + renewal;
            }
        }
    }
}

/// The longest pause between two sweeps of a ledger in which nothing is due. Sweeps are all that
/// finds jobs if no events are heard.
fn idle(are_events_unheard: bool) -> Duration {
    if are_events_unheard {
        SWEEP_DEAF
    } else {
        SWEEP_IDLE
    }
}

impl Reconciler {
    /// `renewal` is the renewal interval of the longest lease.
    pub(crate) fn new(
        served_ledgers: Arc<ServedLedgers>,
        instances: Arc<PeerTable>,
        inbox: Arc<ClaimInbox>,
        (pacer, balancer): (Arc<Pacer>, Arc<Balancer>),
        monitors: Arc<ServerMonitors>,
        renewal: Duration,
    ) -> Arc<Self> {
        let of_server = |monitor: &ServerMonitor| OfServer {
            connection: monitor.server.connections_opened(),
            all: 0,
            hold: Instant::now() + renewal,
        };
        let of_servers = monitors.iter().map(of_server).collect();
        Arc::new(Reconciler {
            served_ledgers,
            instances,
            inbox,
            pacer,
            balancer,
            monitors,
            renewal,
            asked: Mutex::new(SweepRequests {
                by_index: HashMap::new(),
                of_servers,
            }),
            told: Notify::new(),
        })
    }

    /// Plans a sweep of this ledger for some time after `due`, or after now: it finds jobs that
    /// were left behind.
    pub(crate) fn expect(&self, served: &ServedLedger, due: Option<UnixMs>) {
        self.expect_in(
            served,
            due.map_or(Duration::ZERO, |due| served.ledger.clock().until(due)),
        );
    }

    /// Plans a sweep for some time after `ahead` has passed, as [`expect`](Self::expect).
    pub(crate) fn expect_in(&self, served: &ServedLedger, ahead: Duration) {
        served.is_heard_of();
        let at = Instant::now() + ahead;
        let mut asked = self.lock();
        let earliest = asked.by_index.entry(served.index).or_insert(at);
        if at < *earliest {
            *earliest = at;
        }
        drop(asked);
        self.told.notify_one();
    }

    /// Sweeps all ledgers of this server at once for due jobs: announcements may have been lost, or
    /// claims have failed.
    pub(crate) fn sweep_all(&self, server: usize) {
        self.lock().of_servers[server].all += 1;
        self.told.notify_one();
    }

    /// Notices that a server was away. Leases could not be renewed meanwhile, so lapsed ones are
    /// left alone for a while, and their owners can still renew them.
    fn notice_absence(&self, place: usize) {
        let opened = self.monitors.at(place).server.connections_opened();
        let asked = &mut self.lock().of_servers[place];
        asked.see_connection(opened, self.renewal, Instant::now());
    }

    /// Sweeps until the shutdown. The ledgers are swept in parallel: a ledger that hangs does not
    /// delay the others.
    pub(crate) async fn run(&self, shutdown: &CancellationToken) {
        let mut tracks = Tracks::default();
        let mut steps = FuturesUnordered::new();
        loop {
            self.meet(&mut tracks);
            let now = Instant::now();
            let mut next = now + LONGEST_SLEEP;
            for place in tracks.places() {
                match place.as_ref().map(|track| track.sweep_at) {
                    Some(at) if at <= now => {
                        steps.extend(place.take().map(|track| self.step(track)));
                    }
                    Some(at) => next = next.min(at),
                    None => {}
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep_until(next.into()) => {}
                () = self.told.notified() => {}
                Some(track) = steps.next() => tracks.put_back(track),
            }
        }
    }

    /// Takes in new ledgers and requests.
    fn meet(&self, tracks: &mut Tracks<SweepTrack>) {
        let now = Instant::now();
        let mut asked = self.lock();
        tracks.meet(&self.served_ledgers, |served| SweepTrack {
            all: asked.of_servers[served.ledger.server()].all,
            served,
            sweep_at: now,
            pause: OVERDUE,
            last_found: None,
            lapses: Lapses::new(),
            skip_lapsed: 0,
            at_once: true,
        });
        asked.by_index.retain(|index, _| tracks.have(*index));
        for track in tracks.at_rest() {
            let all = asked.of_servers[track.served.ledger.server()].all;
            if std::mem::replace(&mut track.all, all) != all {
                track.sweep_at = now;
                track.at_once = true;
            }
            if let Some(at) = asked.by_index.remove(&track.served.index) {
                track.sweep_at = track.sweep_at.min(at + self.patience(&track.served));
            }
            if self.inbox.is_paused(&track.served) {
                track.sweep_at = track.sweep_at.min(now + SWEEP_PAUSED);
            }
        }
    }

    /// Sweeps one ledger, puts the findings into the inbox, and plans the next sweep.
    async fn step(&self, mut track: SweepTrack) -> SweepTrack {
        let overdue = if track.at_once {
            Duration::ZERO
        } else {
            OVERDUE
        };
        let until = Instant::now() + PATIENCE;
        let skip = (0, track.skip_lapsed);
        let sweep = track.served.ledger.sweep(overdue, skip, BATCH, until).await;
        // Before the findings are used: another part may have used the new connection first.
        self.notice_absence(track.served.ledger.server());
        track.served.ledger.note("sweep", &sweep);
        match sweep {
            Ok(found) => {
                track.at_once = false;
                self.found(&mut track, found);
            }
            Err(_) => {
                track.sweep_at = Instant::now() + OVERDUE;
            }
        }
        track
    }

    /// Takes in the findings of a sweep.
    fn found(&self, track: &mut SweepTrack, found: Sweep) {
        if found.paused {
            self.inbox.pause(&track.served);
        } else {
            self.inbox.resume(&track.served);
        }
        if let Some(held) = found.held {
            self.pacer.is_held(&track.served, held.next);
            self.balancer.is_held(&track.served, held);
        }
        let now = Instant::now();
        let server = track.served.ledger.server();
        let hold = self.lock().of_servers[server].hold;
        let mut next = now + idle(self.monitors.at(server).events.are_unheard());
        let clock = track.served.ledger.clock();
        let patience = self.patience(&track.served);
        if let Some(due) = found.next_due {
            let overdue = clock.until(due.plus(patience)).max(SHORTEST_PAUSE);
            next = next.min(now + overdue);
            if !clock.until(due).is_zero() {
                self.pacer.wake(&track.served, due);
            }
        }
        if let Some(lapse) = found.next_lapse {
            next = next.min(now + clock.until(lapse) + patience);
        }
        let lapsed = found.lapsed.len();
        let skipped = track.skip_lapsed;
        track.skip_lapsed = if lapsed == BATCH {
            skipped + self.without_route(&track.served, &found.lapsed)
        } else {
            0
        };
        let oldest = found.lapsed.first().or(found.overdue.first()).cloned();
        if track.skip_lapsed > skipped {
            // Behind the leases for other workers there may be some for this one.
            next = next.min(now + OVERDUE);
        } else {
            // The findings should be gone soon. If they stay, nobody can take them now: their route
            // has no slot, or there is none.
            if oldest.is_some() {
                track.pause = if oldest == track.last_found {
                    (track.pause * 2).min(LONGEST_PAUSE)
                } else {
                    OVERDUE
                };
                next = next.min(now + track.pause);
            }
            track.last_found = oldest;
        }
        let may_revive = now < hold;
        // The sweep of a paused kind does not list lapsed leases.
        if !found.paused {
            let kind = track.served.ledger.kind();
            track.lapses.found(kind, &found.lapsed, may_revive);
            // Only a page that is not full is the last one.
            if lapsed < BATCH {
                track.lapses.end_round();
            }
        }
        if lapsed > 0 && may_revive {
            next = next.min(hold);
        } else if lapsed > 0 {
            self.inbox.lapse(&track.served, found.lapsed);
        }
        if found.overdue.len() < BATCH {
            for id in &found.overdue {
                self.inbox
                    .hear(&track.served, id.clone(), Source::Reconciler);
            }
        } else {
            self.inbox.fall_behind(&track.served);
        }
        track.sweep_at = next;
    }

    /// How long after an expected event in a ledger this instance sweeps it.
    fn patience(&self, served: &ServedLedger) -> Duration {
        let turn = u32::try_from(self.instances.sweep_order(served)).unwrap_or(u32::MAX);
        FIRST + TURN.saturating_mul(turn).min(SWEEP_IDLE)
    }

    /// How many of these jobs have no route here.
    fn without_route(&self, served: &ServedLedger, ids: &[String]) -> usize {
        let has_route = |id: &&String| {
            let key = served.key(id);
            key.is_some_and(|key| {
                self.instances
                    .route_of(&key, self.served_ledgers.routes())
                    .is_some()
            })
        };
        ids.len() - ids.iter().filter(has_route).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SweepRequests> {
        self.asked.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lapsed_leases_are_left_alone_after_an_absence_of_their_server() {
        let (renewal, now) = (Duration::from_secs(10), Instant::now());
        let mut asked = OfServer {
            connection: 1,
            all: 0,
            hold: now,
        };
        asked.see_connection(1, renewal, now);
        assert_eq!((asked.all, asked.hold), (0, now), "it was not away");
        asked.see_connection(2, renewal, now);
        assert_eq!((asked.all, asked.hold), (1, now + renewal));
        let later = now + Duration::from_secs(3);
        asked.see_connection(3, renewal, later);
        assert_eq!(
            (asked.all, asked.hold),
            (2, now + renewal),
            "it holds already"
        );
        let over = now + renewal;
        asked.see_connection(4, renewal, over);
        assert_eq!((asked.all, asked.hold), (3, over + renewal));
    }

    #[test]
    fn sweeps_are_frequent_where_no_events_are_heard() {
        assert!(
            idle(true) <= Duration::from_secs(2),
            "they are all that finds jobs"
        );
        assert!(idle(true) < idle(false));
    }
}
