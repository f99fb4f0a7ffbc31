//! The pacer: touches each trigger at its due time, so that Redis expires it at once.
//!
//! Without a touch, Redis finds expired keys by sampling: seconds late, and later the more keys
//! have a TTL. A read of a key that is past its time makes Redis expire it at once.
//!
//! Of the instances that serve a ledger, one paces it ([`PeerTable::paces`]). It reads the next due
//! times ahead, tells the instances whose turn it is to claim the jobs, touches the triggers when
//! their time has come, and checks a moment later whether their jobs are still due. If one is, the
//! pacer leaves it to the other instances. If more jobs are due than it can touch, it has all
//! instances take the oldest.

mod limit;
mod track;
mod turns;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::worker::instances::{InstanceHash, PeerTable};
use crate::worker::served::{ServedLedger, ServedLedgers};
use crate::worker::server_monitor::ServerMonitors;
use track::{PaceTrack, TouchBatch};
use turns::Turns;

/// How long the pacer leaves a ledger alone after a fault.
const AFTER_FAULT: Duration = Duration::from_millis(100);

/// Time limit of one touch. A pacer that hangs costs only time: the reconciler finds the jobs.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most jobs of one ledger that were due when they were stored and wait for a check. Further
/// jobs are left to the instances that have heard of them.
const NAMES: usize = 4096;

/// Paces the ledgers that this instance is responsible for.
pub(crate) struct Pacer {
    served_ledgers: Arc<ServedLedgers>,
    instances: Arc<PeerTable>,
    monitors: Arc<ServerMonitors>,
    inbox: Arc<ClaimInbox>,
    /// The news of each ledger, by its index.
    wakes: Mutex<HashMap<usize, Wake>>,
    woken: Notify,
    alarm: PreciseTimer,
    /// Whether this user may not publish messages, so that nobody hears of a turn.
    is_mute: AtomicBool,
}

/// The news of one ledger since the last look.
#[derive(Default)]
struct Wake {
    /// A job is due at this time, which may be sooner than all known jobs.
    due: Option<UnixMs>,
    /// Jobs that were already due when they were stored, and that all instances have heard of, each
    /// with the instance whose turn it was.
    announced: Vec<(String, Option<InstanceHash>)>,
    /// Instances that have left jobs to others.
    left_by: Vec<InstanceHash>,
    /// Due jobs wait for the limit of the kind, and this is when its rate allows the next start;
    /// `None` if only the end of a run makes room.
    held: Option<Option<UnixUs>>,
}

impl OfLedger for PaceTrack {
    fn served(&self) -> &ServedLedger {
        &self.served
    }
}

impl Pacer {
    /// A pacer for these ledgers. It does nothing until [`run`](Self::run) is called.
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
            is_mute: AtomicBool::new(false),
        })
    }

    /// Takes in that a job of this ledger is due at `due`, which may be sooner than the pacer
    /// knows.
    pub(crate) fn wake(&self, served: &ServedLedger, due: UnixMs) {
        self.tell(served, |wake| {
            wake.due = Some(wake.due.map_or(due, |known| known.min(due)));
        });
    }

    /// Checks later that these jobs were claimed. They were due when they were stored, and were
    /// announced to all instances. Ignored unless this instance paces the ledger.
    pub(crate) fn look_after<'a>(&self, served: &ServedLedger, ids: impl Iterator<Item = &'a str>) {
        if self.instances.paces(served) {
            let holder = self.instances.turn_holder(served);
            self.tell(served, |wake| {
                let room = NAMES.saturating_sub(wake.announced.len());
                let ids = ids.take(room);
                wake.announced.extend(ids.map(|id| (id.to_owned(), holder)));
            });
        }
    }

    /// Takes in that an instance has left jobs to others, because it has no room for them. Ignored
    /// unless this instance paces the ledger.
    pub(crate) fn left(&self, served: &ServedLedger, by: &str) {
        if self.instances.paces(served) {
            self.tell(served, |wake| wake.left_by.push(InstanceHash::of(by)));
        }
    }

    /// Takes in that due jobs wait for the limit of their kind. `next` is the time at which its rate
    /// allows the next start.
    pub(crate) fn is_held(&self, served: &ServedLedger, next: Option<UnixUs>) {
        self.tell(served, |wake| {
            let known = wake.held.flatten();
            wake.held = Some([known, next].into_iter().flatten().min());
        });
    }

    /// Has the pacer look again which ledgers it is responsible for.
    pub(crate) fn look(&self) {
        self.woken.notify_one();
    }

    /// Adds news of a ledger, and wakes the pacer.
    fn tell(&self, served: &ServedLedger, tell: impl FnOnce(&mut Wake)) {
        let mut wakes = self.wakes.lock().expect("no panic while held");
        tell(wakes.entry(served.index).or_default());
        self.woken.notify_one();
    }

    /// Paces until the shutdown. The ledgers are stepped in parallel: a ledger that hangs does not
    /// delay the others.
    pub(crate) async fn run(&self, shutdown: &CancellationToken) {
        let mut tracks = Tracks::default();
        let mut steps = FuturesUnordered::new();
        loop {
            self.meet(&mut tracks);
            let mut wait = LONGEST_SLEEP;
            for place in tracks.places() {
                let Some(track) = place else { continue };
                let Some(now) = track.served.ledger.clock().now() else {
                    // Redis has not answered yet, so its time is unknown.
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

    /// Takes in new ledgers, ledgers that this instance starts or stops to pace, and news.
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
            track.set_mine(mine, now);
            let PaceTrack { turns, served, .. } = track;
            turns.look_after(|holder| self.instances.is_ready(served, holder));
            let Some(wake) = wakes.remove(&track.served.index) else {
                continue;
            };
            if let Some(next) = wake.held {
                track.limit.hold(next, now);
            }
            if !mine {
                continue;
            }
            for left_by in wake.left_by {
                track.turns.avoid(left_by, now);
            }
            track.turns.give(wake.announced.len());
            track.look_after(now, wake.announced, None);
            if let Some(due) = wake.due {
                track.hear_of(due, now);
            }
        }
    }

    /// Does all that is due now in one ledger, in one round trip: touches due triggers, reads the
    /// next ones, and hands over jobs that no event announced.
    async fn step(&self, mut track: PaceTrack, now: UnixUs) -> PaceTrack {
        if track.limit.is_time(now) {
            self.admit(&mut track, now).await;
        }
        let check = track.take_checks(now);
        let mut batch = track.take_due(now);
        let read = track.take_read(now, !batch.jobs.is_empty());
        let mut round = PaceRequest {
            read,
            check: check.as_ref().map_or(&[], |check| &check.ids),
            ..PaceRequest::default()
        };
        self.take_turns(&mut track, &mut batch, &mut round, now);
        let events = &self.monitors.of(&track.served).events;
        let heard = events.heard();
        let until = Instant::now() + PATIENCE;
        let answer = track.served.ledger.pace(&round, until).await;
        track.served.ledger.note("pace", &answer);
        let Ok(paced) = answer else {
            track.see_fault(batch, now.plus(AFTER_FAULT), now);
            return track;
        };
        if paced.is_mute {
            self.is_mute.store(true, Ordering::Relaxed);
            track.turns = Turns::default();
        }
        if let Some((_, limit)) = read {
            track.see_coming(paced.coming, limit, now);
        } else if !batch.jobs.is_empty() {
            track.read_soon();
        }
        track.see_touched(batch, paced.alive, heard, now);
        if track.is_flooded(now) {
            // More jobs are due than can be touched in time, and touching on would starve the rest:
            // each instance with a free slot takes the oldest, with or without an event.
            self.flood(&track.served).await;
            track.start_from(now);
        }
        if let Some(check) = check {
            let was_heard = check.heard;
            let mut still = check.still_due(&paced.dues, now);
            if track.limit.holds(now) {
                // They wait for the limit, which announces them when there is room.
                still.clear();
            }
            if !still.is_empty() && was_heard == Some(events.heard()) {
                events.doubt();
            }
            for (holder, ids) in still {
                if let Some(holder) = holder {
                    track.turns.avoid(holder, now);
                }
                self.hand_over(&track.served, holder, ids).await;
            }
        }
        track
    }

    /// Fills a round with the touches of a batch, and with the turns that begin between them.
    fn take_turns(
        &self,
        track: &mut PaceTrack,
        batch: &mut TouchBatch,
        round: &mut PaceRequest<'_>,
        now: UnixUs,
    ) {
        let (served, turns) = (&track.served, &mut track.turns);
        let may_tell = !self.is_mute.load(Ordering::Relaxed);
        let mut next = |turns: &mut Turns, touched: usize| {
            let message = turns.next(served, &self.instances, may_tell, now);
            round.messages.extend(message.map(|text| (touched, text)));
        };
        for (id, _) in &batch.jobs {
            next(turns, round.touch.len());
            turns.give(1);
            batch.holders.push(turns.holder());
            round.touch.extend(served.key(id));
        }
        if batch.jobs.is_empty() && turns.is_used_up() {
            next(turns, 0);
        }
    }

    /// Announces due jobs that waited for the limit of their kind, and learns when it allows more.
    async fn admit(&self, track: &mut PaceTrack, now: UnixUs) {
        let until = Instant::now() + PATIENCE;
        let admitted = track.served.ledger.admit(true, until).await;
        track.served.ledger.note("admit", &admitted);
        let next = match admitted {
            Ok(admission) => admission.and_then(|it| it.next),
            Err(_) => Some(now.plus(AFTER_FAULT)),
        };
        track.limit.admitted(next, now);
    }

    /// Has all instances take the oldest due jobs of a ledger, as many as they have room for.
    async fn flood(&self, served: &ServedLedger) {
        self.inbox.fall_behind(served);
        if !self.instances.is_alone(served) {
            self.tell_all(served, &format!("flood {}", served.ledger.subject()))
                .await;
        }
    }

    /// Sends a wake-up to all instances. Best effort.
    async fn tell_all(&self, served: &ServedLedger, message: &str) {
        let until = Instant::now() + PATIENCE;
        if let Err(error) = served.ledger.tell(message, until).await {
            tracing::debug!(%error, "a message to the other instances failed");
        }
    }

    /// Leaves these jobs to others than the instance that had to claim them: the holder of the turn,
    /// or without one the first in the rank of each job. They are still due some time after they
    /// were touched or announced, so it has had its time. Either the trigger was missing or had no
    /// TTL, or its event was lost, or that instance is gone or has no room.
    async fn hand_over(
        &self,
        served: &ServedLedger,
        holder: Option<InstanceHash>,
        ids: Vec<String>,
    ) {
        let left_by = holder.map(|holder| self.instances.id_of(served, holder));
        let claims = |id: &str| match &left_by {
            Some(left_by) => self.instances.claims_after(served, id, left_by),
            None => self.instances.rank(served, id).stands_in(),
        };
        let (mine, others): (Vec<String>, Vec<String>) = ids.into_iter().partition(|id| claims(id));
        for id in mine {
            self.inbox.hear(served, id, Source::Pacer);
        }
        let subject = served.ledger.subject();
        if let Some(message) = turns::passed_on(subject, left_by.as_deref(), &others) {
            self.tell_all(served, &message).await;
        }
    }
}
