//! Touches each trigger at its due instant, so that Redis expires it there and then.
//!
//! Left alone, Redis finds expired keys by sampling, seconds late and worse the more keys
//! have a TTL. Whoever reads a key that is past its time makes Redis expire it at once.

mod track;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::timer::PreciseTimer;
use super::tracks::{OfLedger, Tracks};
use crate::settings::LONGEST_SLEEP;
use crate::source::Source;
use crate::store::PaceRequest;
use crate::time::{UnixMs, UnixUs};
use crate::worker::claiming::inbox::ClaimInbox;
use crate::worker::instances::PeerTable;
use crate::worker::served::{ServedLedger, ServedLedgers};
use crate::worker::server_monitor::ServerMonitors;
use track::PaceTrack;

/// How long the pacer leaves a ledger alone after a fault.
const AFTER_FAULT: Duration = Duration::from_millis(100);

/// How long a touch may take. A pacer that hangs is no loss: the reconciler finds the jobs.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many jobs that are due already wait to be looked after. The rest is left to those who
/// have heard of it.
const NAMES: usize = 4096;

/// Paces the ledgers that fall to this instance.
pub(crate) struct Pacer {
    served_ledgers: Arc<ServedLedgers>,
    instances: Arc<PeerTable>,
    monitors: Arc<ServerMonitors>,
    inbox: Arc<ClaimInbox>,
    wakes: Mutex<HashMap<usize, Wake>>,
    woken: Notify,
    alarm: PreciseTimer,
}

/// What the pacer was told of one ledger.
#[derive(Default)]
struct Wake {
    /// A job is due then, and maybe sooner than all that are known.
    due: Option<UnixMs>,
    /// Jobs that are due already, and that were announced.
    announced: Vec<String>,
}

impl OfLedger for PaceTrack {
    fn served(&self) -> &ServedLedger {
        &self.served
    }
}

impl Pacer {
    pub(crate) fn new(
        served_ledgers: Arc<ServedLedgers>,
        instances: Arc<PeerTable>,
        monitors: Arc<ServerMonitors>,
        inbox: Arc<ClaimInbox>,
        alarm: PreciseTimer,
    ) -> Arc<Self> {
        Arc::new(Pacer {
            served_ledgers,
            instances,
            monitors,
            inbox,
            wakes: Mutex::default(),
            woken: Notify::new(),
            alarm,
        })
    }

    /// A job of this ledger is due then, maybe sooner than the pacer knows.
    pub(crate) fn wake(&self, served: &ServedLedger, due: UnixMs) {
        self.tell(served, |wake| {
            wake.due = Some(wake.due.map_or(due, |known| known.min(due)));
        });
    }

    /// These jobs were due when they were stored, and were announced to all: see that somebody
    /// takes them.
    pub(crate) fn look_after<'a>(&self, served: &ServedLedger, ids: impl Iterator<Item = &'a str>) {
        if self.instances.paces(served) {
            self.tell(served, |wake| {
                let room = NAMES.saturating_sub(wake.announced.len());
                wake.announced.extend(ids.take(room).map(Into::into));
            });
        }
    }

    /// Which ledgers fall to this instance may have changed.
    pub(crate) fn look(&self) {
        self.woken.notify_one();
    }

    fn tell(&self, served: &ServedLedger, tell: impl FnOnce(&mut Wake)) {
        let mut wakes = self.wakes.lock().expect("no panic while held");
        tell(wakes.entry(served.index).or_default());
        self.woken.notify_one();
    }

    /// Paces until the shutdown. A ledger that hangs is no hindrance to the others.
    pub(crate) async fn run(&self, shutdown: &CancellationToken) {
        let mut tracks = Tracks::default();
        let mut steps = FuturesUnordered::new();
        loop {
            self.meet(&mut tracks);
            let mut wait = LONGEST_SLEEP;
            for place in tracks.places() {
                let Some(track) = place else { continue };
                let Some(now) = track.served.ledger.clock().now() else {
                    // Nothing was heard from Redis yet.
                    wait = wait.min(AFTER_FAULT);
                    continue;
                };
                let next = track.next_action();
                if next <= now {
                    steps.extend(place.take().map(|track| self.step(track, now)));
                } else {
                    wait = wait.min(Duration::from_micros(next.0 - now.0));
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.alarm.at(Instant::now() + wait) => {}
                () = self.woken.notified() => {}
                Some(track) = steps.next() => tracks.put_back(track),
            }
        }
    }

    /// Takes in new ledgers, those that fall to this instance or no longer do, and wake-ups.
    fn meet(&self, tracks: &mut Tracks<PaceTrack>) {
        tracks.meet(&self.served_ledgers, PaceTrack::new);
        let view = Some(self.instances.number());
        let mut wakes = self.wakes.lock().expect("no panic while held");
        wakes.retain(|index, _| tracks.have(*index));
        for track in tracks.at_rest() {
            let Some(now) = track.served.ledger.clock().now() else {
                continue;
            };
            let mine = if std::mem::replace(&mut track.view, view) != view {
                self.instances.paces(&track.served)
            } else {
                track.mine
            };
            // The server's clock may have been set back: what was touched lies ahead again.
            if mine && (!track.mine || track.touched > now.floor_ms()) {
                track.start_from(now);
                track.checks.clear();
            } else if track.mine && !mine {
                track.rest();
            }
            track.mine = mine;
            let Some(wake) = wakes.remove(&track.served.index).filter(|_| mine) else {
                continue;
            };
            track.look_after(now, wake.announced, None);
            if let Some(due) = wake.due {
                track.hear_of(due, now);
            }
        }
    }

    /// Touches what is due in one ledger, reads what comes next, and hands over what no
    /// event announced: whatever of it there is to do now, in one round trip.
    async fn step(&self, mut track: PaceTrack, now: UnixUs) -> PaceTrack {
        let check = track.take_checks(now);
        let batch = track.take_due(now);
        let read = track.take_read(now, !batch.jobs.is_empty());
        let key = |(id, _): &(String, UnixMs)| track.served.key(id);
        let round = PaceRequest {
            touch: batch.jobs.iter().filter_map(key).collect(),
            read,
            check: check.as_ref().map_or(&[], |check| &check.ids),
        };
        let events = &self.monitors.of(&track.served).events;
        let heard = events.heard();
        let until = Instant::now() + PATIENCE;
        let answer = track.served.ledger.pace(&round, until).await;
        track.served.ledger.note("pace", &answer);
        let Ok(paced) = answer else {
            // Whether they were touched or not, they are looked after once more. Those that
            // were to be looked after now are left to the reconciler.
            let ids = batch.jobs.into_iter().map(|(id, _)| id).collect();
            track.look_after(now, ids, None);
            track.read_at = Some(now.plus(AFTER_FAULT));
            return track;
        };
        if let Some((_, limit)) = read {
            track.see_coming(paced.coming, limit, now);
        } else if !batch.jobs.is_empty() {
            track.read_soon();
        }
        track.see_touched(batch, paced.alive, heard, now);
        if track.is_flooded(now) {
            // More is due than can be touched in time. Touching on would starve the rest:
            // whoever has a free slot takes the oldest, event or not.
            self.flood(&track.served).await;
            track.start_from(now);
        }
        if let Some(check) = check {
            let is_due = |due: Option<UnixMs>| due.is_some_and(|due| due <= now.floor_ms());
            let checked = check.ids.into_iter().zip(paced.dues);
            let still = checked.filter(|(_, due)| is_due(*due)).map(|(id, _)| id);
            let still: Vec<String> = still.collect();
            if !still.is_empty() && check.heard == Some(events.heard()) {
                events.doubt();
            }
            self.hand_over(&track.served, still).await;
        }
        track
    }

    /// Everybody takes the oldest that are due, as many as they have room for.
    async fn flood(&self, served: &ServedLedger) {
        self.inbox.fall_behind(served);
        if !self.instances.is_alone(served) {
            self.tell_all(served, &format!("flood {}", served.ledger.subject()))
                .await;
        }
    }

    async fn tell_all(&self, served: &ServedLedger, message: &str) {
        let until = Instant::now() + PATIENCE;
        if let Err(error) = served.ledger.tell(message, until).await {
            tracing::debug!(%error, "the other instances could not be told");
        }
    }

    /// Gives jobs that are still due some time after they were touched or announced each to the
    /// second in its rank: the first has had its time. Their trigger was not there, or has no
    /// TTL, or its event was lost; or whoever was to claim them is gone or has no room.
    async fn hand_over(&self, served: &ServedLedger, ids: Vec<String>) {
        let mut late = format!("late {}", served.ledger.subject());
        let told = late.len();
        for id in ids {
            if self.instances.rank(served, &id).stands_in() {
                self.inbox.hear(served, id, Source::Pacer);
            } else {
                late.push(' ');
                late.push_str(&id);
            }
        }
        if late.len() > told {
            self.tell_all(served, &late).await;
        }
    }
}
