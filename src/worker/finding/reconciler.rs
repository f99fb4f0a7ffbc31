//! Finds what no event announced: jobs that are overdue, and leases that ran out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

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

/// How long after a job was due the first instance looks whether it was left behind: a little
/// later than it has to, since one look finds what fell due shortly after, too.
const FIRST: Duration = OVERDUE.saturating_add(Duration::from_millis(40));

/// How much later than the one before each further instance looks. What one finds it claims, and
/// then there is nothing left to look for: else so many would look as there are instances, at
/// each shard.
const TURN: Duration = Duration::from_millis(100);

/// The shortest pause between two sweeps of a ledger while jobs fall due in it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two sweeps of a ledger whose overdue jobs nobody takes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often a paused ledger is looked at, lest the news of its resumption was lost.
const SWEEP_PAUSED: Duration = Duration::from_secs(5);

/// How long a sweep may take; then it is tried again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sweeps all ledgers of this worker, each when there may be something to find.
pub(crate) struct Reconciler {
    served_ledgers: Arc<ServedLedgers>,
    instances: Arc<PeerTable>,
    inbox: Arc<ClaimInbox>,
    pacer: Arc<Pacer>,
    monitors: Arc<ServerMonitors>,
    /// How long lapsed leases are left alone after Redis was away, so that their owners can
    /// revive them.
    renewal: Duration,
    asked: Mutex<SweepRequests>,
    told: Notify,
}

struct SweepRequests {
    /// Ledgers in which something is due then.
    by_index: HashMap<usize, Instant>,
    of_servers: Vec<OfServer>,
}

/// What was asked for of all ledgers of a server.
struct OfServer {
    /// The connection that was last seen. Another one means that the server was away.
    connection: u64,
    /// How often all were to be swept, whatever is due by then: events were lost.
    all: u64,
    /// Until then lapsed leases are left alone.
    hold: Instant,
}

/// Where the reconciler stands in one ledger.
struct SweepTrack {
    served: Arc<ServedLedger>,
    sweep_at: Instant,
    /// How long after a sweep that found the same as the one before it.
    pause: Duration,
    /// The oldest that was found last time, on the last page.
    last_found: Option<String>,
    lapses: Lapses,
    /// How many lapsed leases are left to workers that have a route for them.
    skip_lapsed: usize,
    /// The next sweep takes everything that is due, not only what is overdue.
    at_once: bool,
    /// How often all were to be swept by then.
    all: u64,
}

impl OfLedger for SweepTrack {
    fn served(&self) -> &ServedLedger {
        &self.served
    }
}

impl Reconciler {
    pub(crate) fn new(
        served_ledgers: Arc<ServedLedgers>,
        instances: Arc<PeerTable>,
        inbox: Arc<ClaimInbox>,
        pacer: Arc<Pacer>,
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
            monitors,
            renewal,
            asked: Mutex::new(SweepRequests {
                by_index: HashMap::new(),
                of_servers,
            }),
            told: Notify::new(),
        })
    }

    /// Something happened in this ledger, or will at `due`: see afterwards whether anything
    /// was left behind.
    pub(crate) fn expect(&self, served: &ServedLedger, due: Option<UnixMs>) {
        self.expect_in(
            served,
            due.map_or(Duration::ZERO, |due| served.ledger.clock().until(due)),
        );
    }

    /// The same, of what will happen so long from now.
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

    /// Look at once for whatever is due on this server: what was announced may not have been heard,
    /// or not been claimed.
    pub(crate) fn sweep_all(&self, server: usize) {
        self.lock().of_servers[server].all += 1;
        self.told.notify_one();
    }

    /// Notices that a server was away. Then leases could not be renewed, and all that have
    /// lapsed are left alone for a while, so that their owners can revive them.
    fn notice_absence(&self, place: usize) {
        let opened = self.monitors.at(place).server.connections_opened();
        let asked = &mut self.lock().of_servers[place];
        if std::mem::replace(&mut asked.connection, opened) != opened {
            let now = Instant::now();
            asked.all += 1;
            // A pause that is not over yet began when the leases had lapsed no earlier.
            if asked.hold <= now {
                asked.hold = now + self.renewal;
            }
        }
    }

    /// Sweeps until the shutdown. A ledger that hangs is no hindrance to the others.
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

    /// Takes in new ledgers and what was asked for.
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

    /// Sweeps one ledger, puts what it finds in the inbox, and sets the time of the next.
    async fn step(&self, mut track: SweepTrack) -> SweepTrack {
        let overdue = if track.at_once {
            Duration::ZERO
        } else {
            OVERDUE
        };
        let until = Instant::now() + PATIENCE;
        let skip = (0, track.skip_lapsed);
        let sweep = track.served.ledger.sweep(overdue, skip, BATCH, until).await;
        // Before its findings are used, and whoever else may have met the new connection.
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

    fn found(&self, track: &mut SweepTrack, found: Sweep) {
        if found.paused {
            self.inbox.pause(&track.served);
        } else {
            self.inbox.resume(&track.served);
        }
        let now = Instant::now();
        let server = track.served.ledger.server();
        let hold = self.lock().of_servers[server].hold;
        let idle = if self.monitors.at(server).events.are_unheard() {
            SWEEP_DEAF
        } else {
            SWEEP_IDLE
        };
        let mut next = now + idle;
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
            // There may be some for this worker behind those for others.
            next = next.min(now + OVERDUE);
        } else {
            // What was found should be gone soon. If it stays, nobody can take it now: its route
            // is saturated, or there is none.
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
        // One that is paused does not say what has lapsed.
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

    /// How long after something was to happen in a ledger it is looked whether it did.
    fn patience(&self, served: &ServedLedger) -> Duration {
        let turn = u32::try_from(self.instances.turn(served)).unwrap_or(u32::MAX);
        FIRST + TURN.saturating_mul(turn).min(SWEEP_IDLE)
    }

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
