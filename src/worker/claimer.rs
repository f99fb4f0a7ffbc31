//! Claims what is due, as far as there are free slots, and hands it to the runner.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::desk::{Desk, Paper, Source};
use super::roster::{Roster, Served};
use super::runner::{ClaimedAt, Runner};
use super::slots::Slots;
use crate::error::Result;
use crate::key::JobKey;
use crate::router::Routes;
use crate::routing::Coverage;
use crate::settings::{BATCH, FOREVER, LONGEST_SLEEP};
use crate::store::{ClaimReply, Lane, Sweep, Word};

/// How many claims on one ledger are in flight at the same time: one that is carried out
/// while another travels.
const CLAIMS: usize = 2;

/// Takes up what lies on the desk.
pub(crate) struct Claimer {
    roster: Arc<Roster>,
    routes: Arc<Routes>,
    desk: Arc<Desk>,
    slots: Arc<Slots>,
    runner: Arc<Runner>,
    lease: Duration,
    counters: Vec<Counter>,
    /// Which ledger is served first in the next round, so that none is always last.
    turn: usize,
}

/// Where one ledger is served.
#[derive(Default)]
struct Counter {
    /// Lanes without a call.
    idle: Vec<Lane>,
    in_flight: usize,
    looking: bool,
    /// For a kind whose routes go by id: how many due jobs the search has passed over.
    passed: usize,
    /// Whether the search met jobs whose route had no free slot.
    starved: bool,
    /// How many slots had been given back when the search began. A further search makes
    /// sense only after that has changed.
    releases: Option<u64>,
}

/// A call to a ledger, and what is reserved for its answer.
struct Order {
    served: Arc<Served>,
    lane: Lane,
    kind: OrderKind,
}

enum OrderKind {
    /// Claim these, and so many of the oldest beside, which all belong to one route.
    Due {
        named: Vec<Wanted>,
        fill: usize,
        fill_route: usize,
    },
    /// Take these over.
    Lapsed(Vec<(JobKey, usize)>),
    /// Look which jobs are due, but for so many of the oldest.
    Look { skip: usize },
}

/// A job to claim, with a slot reserved on its route.
struct Wanted {
    id: String,
    source: Source,
    route: usize,
}

enum Answer {
    Claim(Result<ClaimReply>),
    Look(Result<Sweep>),
}

type Flight = BoxFuture<'static, (Order, Answer)>;

impl Claimer {
    pub(crate) fn new(
        roster: Arc<Roster>,
        routes: Arc<Routes>,
        desk: Arc<Desk>,
        slots: Arc<Slots>,
        runner: Arc<Runner>,
        lease: Duration,
    ) -> Self {
        Claimer {
            roster,
            routes,
            desk,
            slots,
            runner,
            lease,
            counters: Vec::new(),
            turn: 0,
        }
    }

    /// Claims until told to stop; then waits for the claims that are under way.
    pub(crate) async fn run(&mut self, stop: &CancellationToken) {
        let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
        while !stop.is_cancelled() {
            self.step(&flights);
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.desk.changed() => {}
                () = self.slots.freed() => {}
                Some((order, answer)) = flights.next() => self.land(order, answer),
            }
        }
        while let Some((order, answer)) = flights.next().await {
            self.land(order, answer);
        }
    }

    /// Sends whatever calls make sense now.
    fn step(&mut self, flights: &FuturesUnordered<Flight>) {
        let ledgers = self.roster.all();
        self.counters.resize_with(ledgers.len(), Counter::default);
        let waiting = ledgers
            .iter()
            .filter(|served| !self.desk.read(served, |paper| paper.is_blank()))
            .count();
        self.turn = self.turn.wrapping_add(1);
        for place in 0..ledgers.len() {
            let served = &ledgers[(place + self.turn) % ledgers.len()];
            while let Some(order) = self.order(served, waiting) {
                self.counters[served.index].in_flight += 1;
                flights.push(order.send(self.lease));
            }
        }
    }

    /// The next call to a ledger, if there is reason and room for one.
    fn order(&mut self, served: &Arc<Served>, waiting: usize) -> Option<Order> {
        let counter = &mut self.counters[served.index];
        if counter.in_flight >= CLAIMS || counter.looking {
            return None;
        }
        let (slots, routes) = (&self.slots, &self.routes);
        let kind = self.desk.read(served, |paper| {
            if paper.is_blank() {
                return None;
            }
            if let Some(lapsed) = take_lapsed(paper, served, slots, routes) {
                return Some(OrderKind::Lapsed(lapsed));
            }
            match served.coverage {
                Coverage::Whole(route) => take_whole(paper, route, slots, waiting),
                Coverage::Mixed => take_mixed(paper, served, counter, slots, routes),
                Coverage::None => None,
            }
        })?;
        counter.looking = matches!(kind, OrderKind::Look { .. });
        Some(Order {
            served: served.clone(),
            lane: counter.idle.pop().unwrap_or_else(Lane::new),
            kind,
        })
    }

    /// Takes in the answer to a call.
    fn land(&mut self, order: Order, answer: Answer) {
        let Order { served, lane, kind } = order;
        let counter = &mut self.counters[served.index];
        counter.in_flight -= 1;
        counter.idle.push(lane);
        match (kind, answer) {
            (OrderKind::Look { .. }, Answer::Look(found)) => {
                counter.looking = false;
                self.found(&served, found);
            }
            (
                OrderKind::Due {
                    named,
                    fill,
                    fill_route,
                },
                Answer::Claim(reply),
            ) => {
                self.claimed(&served, named, (fill_route, fill), reply);
            }
            (OrderKind::Lapsed(keys), Answer::Claim(reply)) => {
                let wanted = keys.into_iter().map(|(key, route)| Wanted {
                    id: key.id().to_owned(),
                    source: Source::Reconciler,
                    route,
                });
                self.claimed(&served, wanted.collect(), (0, 0), reply);
            }
            _ => unreachable!("a claim is answered as a claim, a look as a look"),
        }
    }

    fn claimed(
        &self,
        served: &Arc<Served>,
        named: Vec<Wanted>,
        (fill_route, fill): (usize, usize),
        reply: Result<ClaimReply>,
    ) {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                tracing::error!(ledger = ?served, %error, "jobs could not be claimed");
                for wanted in named {
                    self.slots.release(wanted.route, 1);
                }
                self.slots.release(fill_route, fill);
                return;
            }
        };
        let at = ClaimedAt {
            sent: reply.sent,
            received: Instant::now(),
            server: reply.now,
        };
        let mut answers = reply.answers.iter();
        let mut open: HashMap<String, Wanted> = HashMap::with_capacity(named.len());
        for wanted in named {
            let answer = answers.next().map(|answered| answered.answer);
            if open.contains_key(&wanted.id) {
                // Named twice, by two who had found it; it needs one slot.
                self.slots.release(wanted.route, 1);
                continue;
            }
            if let Some(Word::Early(ms)) = answer {
                self.wait_for(served, &wanted, ms);
            }
            open.insert(wanted.id.clone(), wanted);
        }
        let mut filled = 0;
        for job in reply.jobs {
            let (route, source) = match open.remove(&job.id) {
                Some(wanted) => (wanted.route, wanted.source),
                None => {
                    filled += 1;
                    (fill_route, Source::Backlog)
                }
            };
            self.runner.start(served, job, route, source, at);
        }
        for wanted in open.into_values() {
            self.slots.release(wanted.route, 1);
        }
        self.slots.release(fill_route, fill - filled);
        if fill > 0 && filled < fill {
            self.desk.read(served, |paper| paper.behind = false);
        }
    }

    /// A claim that comes too early waits as long as it was told. Where that is long, the
    /// name was heard for another reason, and the pacer will come to it.
    fn wait_for(&self, served: &Arc<Served>, wanted: &Wanted, ms: u64) {
        let wait = Duration::from_millis(ms + 1);
        if wait > LONGEST_SLEEP {
            return;
        }
        let (desk, served) = (self.desk.clone(), served.clone());
        let (id, source) = (wanted.id.clone(), wanted.source);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            desk.hear(&served, id, source);
        });
    }

    /// Takes in which jobs of a mixed kind are due.
    fn found(&mut self, served: &Arc<Served>, found: Result<Sweep>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(ledger = ?served, %error, "due jobs could not be looked up");
                return;
            }
        };
        let counter = &mut self.counters[served.index];
        let looked_at_all = found.overdue.len() < BATCH;
        self.desk.read(served, |paper| {
            for id in found.overdue {
                let key = served.key(&id);
                match key.and_then(|key| self.routes.table.find(&key)) {
                    Some(route) if self.slots.free(route) > 0 => {
                        paper.heard.push_back((id, Source::Backlog));
                    }
                    Some(_) => {
                        counter.passed += 1;
                        counter.starved = true;
                    }
                    None => counter.passed += 1,
                }
            }
            if looked_at_all {
                counter.passed = 0;
                paper.behind = counter.starved;
            }
        });
        if looked_at_all && !counter.starved {
            counter.releases = None;
        }
    }
}

impl Order {
    fn send(mut self, lease: Duration) -> Flight {
        Box::pin(async move {
            let ledger = &self.served.ledger;
            let until = Instant::now() + FOREVER;
            let answer = match &self.kind {
                OrderKind::Due { named, fill, .. } => {
                    let ids: Vec<&str> = named.iter().map(|wanted| wanted.id.as_str()).collect();
                    Answer::Claim(
                        ledger
                            .claim(&mut self.lane, &ids, *fill, lease, until)
                            .await,
                    )
                }
                OrderKind::Lapsed(keys) => {
                    let keys: Vec<JobKey> = keys.iter().map(|(key, _)| key.clone()).collect();
                    Answer::Claim(ledger.reclaim(&mut self.lane, &keys, lease, until).await)
                }
                OrderKind::Look { skip } => {
                    let until = Instant::now() + LONGEST_SLEEP;
                    Answer::Look(ledger.sweep(Duration::ZERO, *skip, BATCH, until).await)
                }
            };
            (self, answer)
        })
    }
}

/// Lapsed jobs, as many as their routes have slots for.
fn take_lapsed(
    paper: &mut Paper,
    served: &Served,
    slots: &Slots,
    routes: &Routes,
) -> Option<Vec<(JobKey, usize)>> {
    let mut taken = Vec::new();
    // Those left over are found again by the next sweep.
    for id in paper.lapsed.drain(..) {
        let Some(key) = served.key(&id) else { continue };
        let Some(route) = routes.table.find(&key) else {
            continue;
        };
        if taken.len() < BATCH && slots.reserve(route, 1) == 1 {
            taken.push((key, route));
        }
    }
    (!taken.is_empty()).then_some(taken)
}

/// Due jobs of a kind that belongs to one route: those heard of, or the oldest.
fn take_whole(paper: &mut Paper, route: usize, slots: &Slots, waiting: usize) -> Option<OrderKind> {
    let wanted = if paper.behind {
        BATCH
    } else {
        paper.heard.len().min(BATCH)
    };
    // Where slots are short, each ledger that waits gets its share.
    let share = slots.free(route).div_ceil(waiting.max(1));
    let count = slots.reserve(route, wanted.min(share));
    if count == 0 {
        // A name heard now is only a wake-up: a slot that becomes free takes the oldest.
        paper.behind = true;
        paper.heard.clear();
        return None;
    }
    if paper.behind {
        paper.heard.clear();
        return Some(OrderKind::Due {
            named: Vec::new(),
            fill: count,
            fill_route: route,
        });
    }
    let named = paper
        .heard
        .drain(..count)
        .map(|(id, source)| Wanted { id, source, route });
    Some(OrderKind::Due {
        named: named.collect(),
        fill: 0,
        fill_route: route,
    })
}

/// Due jobs of a kind whose routes go by id: those heard of whose route has a slot, or a
/// look at what is due.
fn take_mixed(
    paper: &mut Paper,
    served: &Served,
    counter: &mut Counter,
    slots: &Slots,
    routes: &Routes,
) -> Option<OrderKind> {
    let mut named = Vec::new();
    while named.len() < BATCH
        && let Some((id, source)) = paper.heard.pop_front()
    {
        let route = served.key(&id).and_then(|key| routes.table.find(&key));
        // An id without a route stays in the ledger for a worker that has one.
        let Some(route) = route else { continue };
        if slots.reserve(route, 1) == 1 {
            named.push(Wanted { id, source, route });
        } else {
            paper.behind = true;
            counter.starved = true;
        }
    }
    if !named.is_empty() {
        return Some(OrderKind::Due {
            named,
            fill: 0,
            fill_route: 0,
        });
    }
    if !paper.behind || (counter.passed == 0 && counter.releases == Some(slots.releases())) {
        return None;
    }
    if counter.passed == 0 {
        counter.releases = Some(slots.releases());
        counter.starved = false;
    }
    Some(OrderKind::Look {
        skip: counter.passed,
    })
}
