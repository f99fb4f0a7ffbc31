//! Picks the next claim of one ledger: the jobs to claim, with a slot for each.
//!
//! If one route takes all jobs of a kind, a claim names the jobs that were heard of, or asks for
//! the oldest due jobs if more are due. If the route depends on the id, the oldest jobs may belong
//! to routes without a slot: then a [`RouteSearch`] reads the due jobs page by page, and a claim
//! names the jobs with a slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::LedgerInbox;
use crate::key::Kind;
use crate::router::Routes;
use crate::routing::Coverage;
use crate::settings::{BATCH, LeaseLength};
use crate::source::Source;
use crate::worker::instances::PeerTable;
use crate::worker::running::slots::{Slot, Slots};
use crate::worker::served::ServedLedger;

/// The state of the worker that a pick depends on.
#[derive(Clone, Copy)]
pub(crate) struct ClaimContext<'a> {
    /// Free slots; a pick reserves from them.
    pub(crate) slots: &'a Arc<Slots>,
    /// The routes of this instance, for their leases.
    pub(crate) routes: &'a Routes,
    /// The peers: a fallback takes a job only if none of them has a route.
    pub(crate) instances: &'a PeerTable,
    /// Length of the leases of routes without their own.
    pub(crate) lease: LeaseLength,
}

/// The next call to a ledger.
pub(crate) enum ClaimCall {
    /// Claim the named jobs, and also as many of the oldest due jobs as there are slots in `fill`.
    Due {
        named: Vec<ClaimItem>,
        fill: Vec<Slot>,
        lease: LeaseLength,
        /// The value of [`LedgerInbox::said`] at this time.
        said: u64,
    },
    /// Take over these jobs, whose leases have lapsed.
    Lapsed {
        named: Vec<ClaimItem>,
        lease: LeaseLength,
        said: u64,
    },
    /// Read a page of due jobs, without the `skip` oldest.
    Look { skip: usize },
}

/// A job to claim, and its slot.
pub(crate) struct ClaimItem {
    /// The id of the job.
    pub(crate) id: String,
    /// The part that found the job.
    pub(crate) source: Source,
    /// The slot, on the route of the job.
    pub(crate) slot: Slot,
}

/// A search through the due jobs of a kind whose route depends on the job's id, page by page, for
/// jobs whose route has a free slot.
#[derive(Default)]
pub(crate) struct RouteSearch {
    /// Whether a page is being read.
    under_way: bool,
    /// How far the search goes; `None` between two searches.
    reach: Option<SearchRange>,
    /// How many due jobs the search has passed over, because their route has no slot or they have
    /// no route.
    passed: usize,
    /// Routes whose jobs were passed over for want of a slot. When one of them has a slot, another
    /// search is worth its cost.
    starved: Vec<usize>,
    /// Such routes that the current search has met so far.
    met: Vec<usize>,
    /// When the last whole search began, and the value of [`LedgerInbox::said`] at that time.
    began: Option<(Instant, u64)>,
}

/// How far a search goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchRange {
    /// To the end.
    Whole,
    /// Until the starved routes have no more slots.
    Slots,
}

/// Shortest time between two whole searches through a kind, while it has more due jobs than slots.
/// In between, a route with a free slot gets its oldest job.
const WHOLE_SEARCH: Duration = Duration::from_secs(1);

/// The next call to a ledger, if there is a reason and a slot for one. Lapsed jobs come first.
/// `waiting` is the number of ledgers that share the free slots.
pub(crate) fn next(
    ledger_inbox: &mut LedgerInbox,
    search: &mut RouteSearch,
    served: &ServedLedger,
    means: ClaimContext<'_>,
    waiting: usize,
) -> Option<ClaimCall> {
    if ledger_inbox.is_blank() {
        return None;
    }
    lapsed(ledger_inbox, served, means).or_else(|| match served.coverage {
        Coverage::Whole(route) => whole(ledger_inbox, route, served, means, waiting),
        Coverage::Mixed => mixed(ledger_inbox, search, served, means),
        Coverage::None => None,
    })
}

/// Takes out the announced jobs that this instance leaves to others: it is its turn to claim them,
/// and it has no slot. With a backlog it keeps them: then no instance has room for long. It also
/// keeps plain keys, which may have expired before the time that the ledger knows: only an instance
/// that claims them because of the event finds that out.
pub(crate) fn excess(
    ledger_inbox: &mut LedgerInbox,
    served: &ServedLedger,
    slots: &Slots,
    instances: &PeerTable,
) -> Vec<String> {
    let Coverage::Whole(route) = served.coverage else {
        return Vec::new();
    };
    let keeps = ledger_inbox.is_blank()
        || ledger_inbox.behind
        || served.adopts
        || slots.free(route, served.ledger.kind()) > 0
        || !instances.has_turn(served);
    if keeps {
        return Vec::new();
    }
    ledger_inbox.take_announced()
}

/// A takeover of lapsed jobs, as many as their routes have slots for. The rest stays in the inbox.
fn lapsed(
    ledger_inbox: &mut LedgerInbox,
    served: &ServedLedger,
    means: ClaimContext<'_>,
) -> Option<ClaimCall> {
    let mut claim = Claim::default();
    for id in std::mem::take(&mut ledger_inbox.lapsed) {
        // A job without a route here is left to a worker that has one.
        let Some(route) = means.route_of(&id, served) else {
            continue;
        };
        if let Some((id, _)) = claim
            .add(id, Source::Reconciler, route, served, means)
            .err()
        {
            ledger_inbox.lapsed.push_back(id);
        }
    }
    let lease = claim.lease?;
    Some(ClaimCall::Lapsed {
        named: claim.named,
        lease,
        said: ledger_inbox.said,
    })
}

/// A claim of due jobs of a kind with one route: the jobs heard of, or the oldest.
fn whole(
    ledger_inbox: &mut LedgerInbox,
    route: usize,
    served: &ServedLedger,
    means: ClaimContext<'_>,
    waiting: usize,
) -> Option<ClaimCall> {
    let (slots, kind) = (means.slots, served.ledger.kind());
    let wanted = if ledger_inbox.behind {
        BATCH
    } else {
        ledger_inbox.heard.len().min(BATCH)
    };
    let share = slots.free(route, kind).div_ceil(waiting.max(1));
    let share = share.min(slots.at_once(route));
    let reserved = slots.reserve(route, kind, wanted.min(share));
    if wanted > 0 && reserved.is_empty() {
        // A name heard now is only a wake-up: a slot that becomes free takes the oldest.
        ledger_inbox.behind = true;
    }
    let is_heard = !ledger_inbox.heard.is_empty();
    if ledger_inbox.behind {
        ledger_inbox.heard.clear();
    }
    if reserved.is_empty() {
        // A claim that is under way may have looked before these jobs fell due.
        ledger_inbox.said += u64::from(is_heard);
        return None;
    }
    let (said, lease) = (ledger_inbox.said, means.lease_of(route));
    if ledger_inbox.behind {
        return Some(ClaimCall::Due {
            named: Vec::new(),
            fill: reserved,
            lease,
            said,
        });
    }
    let heard = ledger_inbox.heard.drain(..reserved.len());
    let named = heard
        .zip(reserved)
        .map(|((id, source), slot)| ClaimItem { id, source, slot });
    Some(ClaimCall::Due {
        named: named.collect(),
        fill: Vec::new(),
        lease,
        said,
    })
}

/// A claim of due jobs of a kind whose route depends on the id: it names the jobs heard of whose
/// route has a slot. If there are none, a look at the due jobs.
fn mixed(
    ledger_inbox: &mut LedgerInbox,
    search: &mut RouteSearch,
    served: &ServedLedger,
    means: ClaimContext<'_>,
) -> Option<ClaimCall> {
    if !served.is_routed && means.instances.route_whole(served.ledger.kind().as_str()) {
        // Another instance has a route for the whole kind, so the fallback gets nothing.
        ledger_inbox.forget();
        return None;
    }
    let mut claim = Claim::default();
    let mut later = Vec::new();
    while claim.named.len() < BATCH
        && let Some((id, source)) = ledger_inbox.heard.pop_front()
    {
        // A job without a route here stays in the ledger for a worker that has one.
        let Some(route) = means.route_of(&id, served) else {
            continue;
        };
        match claim.add(id, source, route, served, means) {
            Ok(()) => {}
            Err((id, Left::NextCall)) => later.push((id, source)),
            Err((_, Left::NoSlot)) => {
                ledger_inbox.behind = true;
                note(&mut search.starved, route);
                // A search that is under way may have passed it.
                note(&mut search.met, route);
            }
        }
    }
    for heard in later.into_iter().rev() {
        ledger_inbox.heard.push_front(heard);
    }
    if let Some(lease) = claim.lease {
        return Some(ClaimCall::Due {
            named: claim.named,
            fill: Vec::new(),
            lease,
            said: ledger_inbox.said,
        });
    }
    let kind = served.ledger.kind();
    if !served
        .routes
        .iter()
        .any(|route| means.slots.free(*route, kind) > 0)
    {
        return None;
    }
    let skip = search.next_page(ledger_inbox, means.slots, kind)?;
    Some(ClaimCall::Look { skip })
}

/// The jobs of one call: as many as fit, with leases of the same length.
#[derive(Default)]
struct Claim {
    named: Vec<ClaimItem>,
    /// Length of the lease of the first job.
    lease: Option<LeaseLength>,
}

/// The reason why a job is not in a claim.
enum Left {
    /// The call is full, or the job has a lease of another length.
    NextCall,
    /// The job's route has no free slot.
    NoSlot,
}

impl Claim {
    /// Adds a job, with a slot of its route.
    ///
    /// # Errors
    /// The id, and the reason why the job is not in the claim.
    fn add(
        &mut self,
        id: String,
        source: Source,
        route: usize,
        served: &ServedLedger,
        means: ClaimContext<'_>,
    ) -> Result<(), (String, Left)> {
        let lease = means.lease_of(route);
        if self.named.len() == BATCH || self.lease.is_some_and(|other| other != lease) {
            return Err((id, Left::NextCall));
        }
        let Some(slot) = means.slots.reserve(route, served.ledger.kind(), 1).pop() else {
            return Err((id, Left::NoSlot));
        };
        self.named.push(ClaimItem { id, source, slot });
        self.lease = Some(lease);
        Ok(())
    }
}

/// Adds a route to the list, unless it is there.
fn note(routes: &mut Vec<usize>, route: usize) {
    if !routes.contains(&route) {
        routes.push(route);
    }
}

impl ClaimContext<'_> {
    /// Length of the leases of a route.
    fn lease_of(self, route: usize) -> LeaseLength {
        let lease = self.routes.routes[route].lease;
        lease.map_or(self.lease, LeaseLength)
    }

    /// The route of the job with this id, if it has one here.
    fn route_of(self, id: &str, served: &ServedLedger) -> Option<usize> {
        self.instances.route_of(&served.key(id)?, self.routes)
    }
}

impl RouteSearch {
    /// Whether a page is being read. No other call is sent meanwhile.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// Whether a starved route has a free slot.
    fn has_room(&self, slots: &Slots, kind: &Kind) -> bool {
        self.starved
            .iter()
            .any(|route| slots.free(*route, kind) > 0)
    }

    /// How many due jobs the next page skips; `None` if there is no reason to read one now.
    fn next_page(
        &mut self,
        ledger_inbox: &LedgerInbox,
        slots: &Slots,
        kind: &Kind,
    ) -> Option<usize> {
        if !ledger_inbox.behind {
            return None;
        }
        let now = Instant::now();
        let is_news = self.began.is_none_or(|(at, said)| {
            said != ledger_inbox.said && now.duration_since(at) >= WHOLE_SEARCH
        });
        // A search that began again each time would never reach the end of a large backlog.
        if is_news && self.reach != Some(SearchRange::Whole) {
            // More jobs were found since: search again from the start to the end.
            *self = RouteSearch {
                reach: Some(SearchRange::Whole),
                began: Some((now, ledger_inbox.said)),
                ..RouteSearch::default()
            };
        } else if self.reach.is_none() {
            if !self.has_room(slots, kind) {
                return None;
            }
            self.reach = Some(SearchRange::Slots);
            self.passed = 0;
            self.met.clear();
        }
        self.under_way = true;
        Some(self.passed)
    }

    /// Takes in a page of due jobs: puts the jobs with a slot into the inbox, and counts the rest.
    pub(crate) fn found(
        &mut self,
        ledger_inbox: &mut LedgerInbox,
        due: Vec<String>,
        served: &ServedLedger,
        means: ClaimContext<'_>,
    ) {
        self.under_way = false;
        let is_last = due.len() < BATCH;
        let mut taken: HashMap<usize, usize> = HashMap::new();
        for id in due {
            let Some(route) = means.route_of(&id, served) else {
                self.passed += 1;
                continue;
            };
            let taken = taken.entry(route).or_default();
            if *taken < means.slots.free(route, served.ledger.kind()) {
                *taken += 1;
                ledger_inbox.heard.push_back((id, Source::Backlog));
            } else {
                self.passed += 1;
                note(&mut self.met, route);
            }
        }
        if is_last {
            self.reach = None;
            self.starved = std::mem::take(&mut self.met);
            if self.starved.is_empty()
                && let Some((_, said)) = self.began
            {
                ledger_inbox.caught_up(said);
            }
        } else if self.reach == Some(SearchRange::Slots)
            && !self.has_room(means.slots, served.ledger.kind())
        {
            self.reach = None;
        }
    }
}

#[cfg(test)]
mod tests;
