//! The claimer: claims due jobs as far as there are free slots, and passes them to the runner.
//!
//! It wakes when an inbox changes, when a slot becomes free, or when a call is answered. Then it
//! sends each ledger the calls that [`pick`] gives, at most [`CLAIMS`] at a time, on a lane of
//! their own. After a fault it leaves the ledger alone until the reconciler asks again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::inbox::ClaimInbox;
use super::pick::{self, ClaimCall, ClaimContext, ClaimItem, RouteSearch};
use crate::client::{LeaseEvent, LeaseSubscribers};
use crate::error::Result;
use crate::key::JobKey;
use crate::prefix::Prefix;
use crate::routing::Coverage;
use crate::settings::{BATCH, FOREVER, LONGEST_SLEEP, LeaseLength};
use crate::source::Source;
use crate::store::{
    Answered, ClaimOrder, ClaimReply, ClaimRequest, HeldLane, LanePool, Sweep, Word,
};
use crate::worker::instances::PeerTable;
use crate::worker::running::runner::{Begun, ClaimedAt, Runner};
use crate::worker::running::slots::{Slot, Slots};
use crate::worker::served::{ServedLedger, ServedLedgers};
use crate::worker::server_monitor::ServerMonitors;

/// How many claims on one ledger are in flight at the same time: Redis carries one out while the
/// other travels.
const CLAIMS: usize = 2;

/// From so many bytes of records on, a claim takes no more jobs: the same in `lua/lib/lease.lua`.
const REPLY_BYTES: usize = 4 * 1024 * 1024;

/// How long a claim is tried if its ledger's server is one of several. If such a claim succeeds and
/// its answer is lost, its jobs are found when their leases have lapsed.
const ELSEWHERE: Duration = Duration::from_secs(3);

/// Claims the jobs in the inboxes of all served ledgers.
pub(crate) struct Claimer {
    /// The ledgers to claim from.
    served_ledgers: Arc<ServedLedgers>,
    /// Decides the route of a job, with its peers.
    instances: Arc<PeerTable>,
    /// The found jobs.
    inbox: Arc<ClaimInbox>,
    /// Told of claimed jobs whose plain keys expired.
    monitors: Arc<ServerMonitors>,
    /// A claim is sent only with slots for its jobs.
    slots: Arc<Slots>,
    /// Takes the claimed jobs.
    runner: Arc<Runner>,
    /// Length of the leases of routes without their own.
    lease: LeaseLength,
    /// News of jobs that clients or targets hold.
    news: mpsc::UnboundedReceiver<LeaseEvent>,
    /// The state of each ledger, by its index.
    states: HashMap<usize, LedgerState>,
    /// Rotates the ledger that is served first, so that none is always last.
    turn: usize,
}

/// The state of one ledger.
struct LedgerState {
    /// One lane for each call under way; [`CLAIMS`] in all.
    lanes: LanePool,
    /// The search through due jobs, for a kind with several routes.
    search: RouteSearch,
}

/// The answer to a claim call, with the slots that were reserved for it.
enum ClaimResult {
    /// A claim or a takeover of lapsed jobs.
    Claim {
        named: Vec<ClaimItem>,
        fill: Vec<Slot>,
        lease: LeaseLength,
        /// The count of `said` in the inbox when the call was sent.
        said: u64,
        reply: Result<ClaimReply>,
    },
    Look {
        /// A page of due jobs.
        found: Result<Sweep>,
    },
}

/// A call under way, with its ledger.
type Flight = BoxFuture<'static, (Arc<ServedLedger>, ClaimResult)>;

impl Default for LedgerState {
    fn default() -> Self {
        LedgerState {
            lanes: LanePool::new(CLAIMS),
            search: RouteSearch::default(),
        }
    }
}

impl Claimer {
    /// A claimer for these ledgers, which subscribes to news of leases. It does nothing until
    /// [`run`](Self::run) is called.
    pub(crate) fn new(
        served_ledgers: Arc<ServedLedgers>,
        instances: Arc<PeerTable>,
        inbox: Arc<ClaimInbox>,
        monitors: Arc<ServerMonitors>,
        slots: Arc<Slots>,
        runner: Arc<Runner>,
        lease_subscribers: &LeaseSubscribers,
    ) -> Self {
        let (told, news) = mpsc::unbounded_channel();
        lease_subscribers.join(told.clone());
        for pull in served_ledgers.routes().pulls() {
            pull.tell(told.clone());
        }
        Claimer {
            served_ledgers,
            instances,
            inbox,
            monitors,
            slots,
            lease: runner.lease(),
            runner,
            news,
            states: HashMap::new(),
            turn: 0,
        }
    }

    /// Claims until `stop`; then waits for the claims under way, and starts their jobs.
    pub(crate) async fn run(&mut self, stop: &CancellationToken) {
        let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
        while !stop.is_cancelled() {
            self.step(&flights);
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.inbox.changed() => {}
                () = self.slots.freed() => {}
                () = self.slots.replenished() => {}
                Some(news) = self.news.recv() => self.hear(&news),
                Some((served, landing)) = flights.next() => self.land(&served, landing),
            }
            // One step for all answers that are there: it looks at all ledgers.
            while let Some(Some((served, landing))) = flights.next().now_or_never() {
                self.land(&served, landing);
            }
            while let Ok(news) = self.news.try_recv() {
                self.hear(&news);
            }
        }
        // From now on other engines serve the clients that pull.
        self.news.close();
        self.slots.retire();
        while let Some((served, landing)) = flights.next().await {
            self.land(&served, landing);
        }
    }

    /// Takes in news of jobs that clients or targets hold.
    fn hear(&self, news: &LeaseEvent) {
        match news {
            // A client waits for jobs of these kinds. They may be due already, without room until
            // now.
            LeaseEvent::Waits(wanted) => {
                for served in self.served_ledgers.all().iter() {
                    let covers = |prefix: &Prefix| prefix.covers(served.ledger.kind());
                    if served.is_pulled && wanted.iter().any(covers) {
                        self.inbox.fall_behind(served);
                    }
                }
            }
            LeaseEvent::Extended(lease, length) => self.slots.extended(lease, *length),
            LeaseEvent::Ended(lease) => self.slots.ended(lease),
        }
    }

    /// Sends all calls that have a reason and a slot now.
    fn step(&mut self, flights: &FuturesUnordered<Flight>) {
        let ledgers = self.served_ledgers.all();
        self.forget_ended_ledgers(&ledgers);
        // Most of thousands of ledgers have nothing to claim.
        let is_blank = |served: &Arc<ServedLedger>| {
            self.inbox
                .with(served, |ledger_inbox| ledger_inbox.is_blank())
        };
        let busy: Vec<_> = ledgers.iter().filter(|it| !is_blank(it)).collect();
        // If slots are short, each ledger that waits for one gets its share.
        let has_room = |served: &&&Arc<ServedLedger>| {
            let kind = served.ledger.kind();
            let mut routes = served.routes.iter();
            routes.any(|route| self.slots.free(*route, kind) > 0)
        };
        let waiting = busy.iter().filter(has_room).count();
        self.turn = self.turn.wrapping_add(1);
        for place in 0..busy.len() {
            let served = busy[(place + self.turn) % busy.len()];
            loop {
                // Before a pick, which takes jobs without a slot for a backlog of this instance.
                self.leave_excess(served);
                let Some(flight) = self.next_call(served, waiting) else {
                    break;
                };
                flights.push(flight);
            }
        }
    }

    /// The next call to a ledger, if there is a reason, a slot and a lane for one.
    fn next_call(&mut self, served: &Arc<ServedLedger>, waiting: usize) -> Option<Flight> {
        let means = ClaimContext {
            slots: &self.slots,
            routes: self.served_ledgers.routes(),
            instances: &self.instances,
            lease: self.lease,
        };
        let LedgerState { lanes, search } = self.states.entry(served.index).or_default();
        if search.is_under_way() {
            return None;
        }
        let lane = lanes.try_take()?;
        let pick = |ledger_inbox: &mut _| pick::next(ledger_inbox, search, served, means, waiting);
        let claim_call = self.inbox.with(served, pick)?;
        Some(send(served.clone(), lane, claim_call))
    }

    /// Leaves announced jobs to other instances if it is the turn of this one and it has no slot
    /// for them.
    fn leave_excess(&self, served: &Arc<ServedLedger>) {
        let (slots, instances) = (&self.slots, &self.instances);
        let excess = |ledger_inbox: &mut _| pick::excess(ledger_inbox, served, slots, instances);
        let ids = self.inbox.with(served, excess);
        if ids.is_empty() {
            return;
        }
        let (subject, id) = (served.ledger.subject(), self.instances.id());
        let message = format!("left {subject} {id} {}", ids.join(" "));
        let served = served.clone();
        tokio::spawn(async move {
            // Best effort: the pacer checks whether the jobs were claimed.
            let until = Instant::now() + LONGEST_SLEEP;
            if let Err(error) = served.ledger.tell(&message, until).await {
                tracing::debug!(%error, "a message to the other instances failed");
            }
        });
    }

    /// Drops the state of ledgers that are not served any more. A call under way keeps its lane.
    fn forget_ended_ledgers(&mut self, ledgers: &[Arc<ServedLedger>]) {
        if self.states.len() > ledgers.len() {
            let served: HashSet<usize> = ledgers.iter().map(|served| served.index).collect();
            self.states.retain(|index, _| served.contains(index));
        }
    }

    /// Takes in the answer to a call.
    fn land(&mut self, served: &Arc<ServedLedger>, landing: ClaimResult) {
        match landing {
            ClaimResult::Claim {
                named,
                fill,
                lease,
                said,
                reply,
            } => match reply {
                Ok(reply) => self.claimed(served, named, fill, said, lease, reply),
                Err(error) => {
                    served.ledger.note::<()>("claim", &Err(error));
                    self.give_up(served);
                    // The reconciler does not find keys that expired too soon.
                    let heard = named.iter().filter(|wanted| wanted.source == Source::Event);
                    let adopter = &self.monitors.of(served).adopter;
                    heard.for_each(|wanted| adopter.expired(served, &wanted.id));
                }
            },
            ClaimResult::Look { found } => {
                let search = &mut self.states.entry(served.index).or_default().search;
                match found {
                    Ok(found) => self.inbox.with(served, |ledger_inbox| {
                        let means = ClaimContext {
                            slots: &self.slots,
                            routes: self.served_ledgers.routes(),
                            instances: &self.instances,
                            lease: self.lease,
                        };
                        search.found(ledger_inbox, found.overdue, served, means);
                    }),
                    Err(error) => {
                        served.ledger.note::<()>("sweep", &Err(error));
                        *search = RouteSearch::default();
                        self.give_up(served);
                    }
                }
            }
        }
    }

    /// Stops claims on a ledger after a fault, until the reconciler asks for more.
    fn give_up(&self, served: &ServedLedger) {
        self.inbox
            .with(served, |ledger_inbox| ledger_inbox.behind = false);
    }

    /// Takes in the answer to a claim: starts the jobs, and frees the slots that got none.
    fn claimed(
        &self,
        served: &Arc<ServedLedger>,
        named: Vec<ClaimItem>,
        mut fill: Vec<Slot>,
        said: u64,
        lease: LeaseLength,
        reply: ClaimReply,
    ) {
        let at = ClaimedAt {
            sent: reply.sent,
            received: Instant::now(),
            server: reply.now,
            lease,
        };
        if reply.paused {
            self.inbox.pause(served);
        }
        let is_lost = |answered: &&Answered| matches!(answered.answer, Word::Leased | Word::Absent);
        let lost = reply.answers.iter().filter(is_lost).count();
        served.ledger.meter().lost(lost as u64);
        let mut answers = reply.answers.iter();
        // Two parts may have found the same job. It needs one slot.
        let mut open: HashMap<String, ClaimItem> = HashMap::with_capacity(named.len());
        // Slots of named jobs that were not claimed: if the kind is limited, other jobs may have been
        // claimed instead.
        let mut spare: Vec<Slot> = Vec::new();
        for wanted in named {
            match answers.next().map(|answered| answered.answer) {
                Some(answer @ (Word::Held | Word::Leased | Word::Absent)) => {
                    if answer == Word::Absent && wanted.source == Source::Event {
                        // The job may belong to another ledger by now.
                        self.served_ledgers.freshness().doubt();
                    }
                    spare.push(wanted.slot);
                    continue;
                }
                Some(Word::Early(ms)) => self.wait_for(served, &wanted, ms),
                _ => {}
            }
            open.entry(wanted.id.clone()).or_insert(wanted);
        }
        let wanted_more = !fill.is_empty();
        let bytes: usize = reply.jobs.iter().map(|job| job.record.len()).sum();
        let named: Vec<Option<ClaimItem>> =
            reply.jobs.iter().map(|it| open.remove(&it.id)).collect();
        // The answer to a repeated claim does not say why a named job was not claimed.
        spare.extend(open.into_values().map(|wanted| wanted.slot));
        let mut begun = Vec::with_capacity(reply.jobs.len());
        for (job, wanted) in reply.jobs.into_iter().zip(named) {
            let (slot, source) = match wanted {
                Some(wanted) => (Some(wanted.slot), wanted.source),
                None => (fill.pop().or_else(|| spare.pop()), Source::Backlog),
            };
            match slot {
                Some(mut slot) => {
                    slot.begin();
                    begun.push(Begun { job, slot, source });
                }
                // Without a slot the lease lapses, and the job is found again.
                None => tracing::error!(ledger = ?served, id = job.id, "claimed unasked"),
            }
        }
        let ids = begun.iter().map(|begun| begun.job.id.as_str());
        self.monitors.of(served).adopter.claimed(served, ids);
        self.runner.start(served, begun, at);
        if !wanted_more {
            return;
        }
        // A reply that was full left due jobs behind, also those that another claim may have missed.
        let is_full = fill.is_empty() || bytes > REPLY_BYTES;
        self.inbox.with(served, |ledger_inbox| match is_full {
            true => ledger_inbox.fall_behind(),
            false => ledger_inbox.caught_up(said),
        });
    }

    /// Repeats a claim that came too early, after the wait that the server gave. For a long wait it
    /// does nothing: the name was heard for another reason, and the pacer finds the job in time.
    fn wait_for(&self, served: &Arc<ServedLedger>, wanted: &ClaimItem, ms: u64) {
        if wanted.source == Source::Event {
            self.monitors.of(served).adopter.expired(served, &wanted.id);
        }
        let Some(wait) = wait_of(ms) else {
            return;
        };
        let (inbox, served) = (self.inbox.clone(), served.clone());
        let (id, source) = (wanted.id.clone(), wanted.source);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            inbox.hear(&served, id, source);
        });
    }
}

/// How long a claim waits that came this many milliseconds too early; `None` if that is long.
fn wait_of(ms: u64) -> Option<Duration> {
    let wait = Duration::from_millis(ms + 1);
    (wait <= LONGEST_SLEEP).then_some(wait)
}

/// Sends one call to a ledger.
fn send(served: Arc<ServedLedger>, mut lane: HeldLane, claim_call: ClaimCall) -> Flight {
    Box::pin(async move {
        let ledger = &served.ledger;
        // A claim that waits holds slots that other ledgers could use.
        let patience = match ledger.is_one_of_many() {
            true => ELSEWHERE,
            false => FOREVER,
        };
        let until = Instant::now() + patience;
        let landing = match claim_call {
            ClaimCall::Due {
                named,
                fill,
                lease,
                said,
            } => {
                let ids: Vec<&str> = named.iter().map(|wanted| wanted.id.as_str()).collect();
                let found: String = named.iter().map(|wanted| wanted.source.letter()).collect();
                let order = match served.coverage {
                    Coverage::Whole(_) => ClaimOrder::Oldest,
                    // Other routes may have the oldest jobs.
                    _ => ClaimOrder::Named,
                };
                let reply = ledger
                    .claim(
                        &mut lane,
                        ClaimRequest {
                            ids: &ids,
                            found: &found,
                            fill: fill.len(),
                            order,
                        },
                        lease.0,
                        until,
                    )
                    .await;
                ClaimResult::Claim {
                    named,
                    fill,
                    lease,
                    said,
                    reply,
                }
            }
            ClaimCall::Lapsed { named, lease, said } => {
                let keys: Vec<JobKey> = named.iter().filter_map(|w| served.key(&w.id)).collect();
                let reply = ledger.reclaim(&mut lane, &keys, lease.0, until).await;
                ClaimResult::Claim {
                    named,
                    fill: Vec::new(),
                    lease,
                    said,
                    reply,
                }
            }
            ClaimCall::Look { skip } => {
                let until = Instant::now() + LONGEST_SLEEP;
                let found = ledger.sweep(Duration::ZERO, (skip, 0), BATCH, until).await;
                ClaimResult::Look { found }
            }
        };
        (served, landing)
    })
}

#[cfg(test)]
mod tests;
