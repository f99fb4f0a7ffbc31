//! What the claimer does next for one ledger: which jobs to claim, with a slot for each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::desk::Paper;
use crate::handler::Source;
use crate::router::Routes;
use crate::routing::Coverage;
use crate::settings::BATCH;
use crate::worker::instances::Instances;
use crate::worker::roster::Served;
use crate::worker::running::slots::{Slot, Slots};

/// What jobs are picked by.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) slots: &'a Arc<Slots>,
    pub(crate) routes: &'a Routes,
    pub(crate) instances: &'a Instances,
}

/// A call to make.
pub(crate) enum Errand {
    /// Claim these, and as many of the oldest due beside as there are slots in `fill`.
    Due {
        named: Vec<Wanted>,
        fill: Vec<Slot>,
        said: u64,
    },
    /// Take these over.
    Lapsed { named: Vec<Wanted>, said: u64 },
    /// Look which jobs are due, but for so many of the oldest.
    Look { skip: usize },
}

/// A job to claim, and its slot.
pub(crate) struct Wanted {
    pub(crate) id: String,
    pub(crate) source: Source,
    pub(crate) slot: Slot,
}

/// Looking through the due jobs of a kind whose routes go by id, page by page, for those
/// whose route has a free slot.
#[derive(Default)]
pub(crate) struct Search {
    under_way: bool,
    /// The pages that were read so far do not end it.
    open: bool,
    /// How many due jobs were passed over: their route has no slot, or they have no route.
    passed: usize,
    /// The routes of those that had no slot. When one of them has, it is worth searching
    /// again.
    starved: Vec<usize>,
    /// Such routes as this search has met.
    met: Vec<usize>,
    /// It goes to the end, and not only as far as a starved route has slots.
    whole: bool,
    /// When the last whole search began, and what [`Paper::said`] was then.
    began: Option<(Instant, u64)>,
}

/// How often the due jobs of a kind are searched to the end at the most, while there are more
/// than slots. In between, a route that has a slot again gets its oldest.
const WHOLE_SEARCH: Duration = Duration::from_secs(1);

/// The next errand, if there is reason and room for one.
pub(crate) fn next(
    paper: &mut Paper,
    search: &mut Search,
    served: &Served,
    means: Means<'_>,
    waiting: usize,
) -> Option<Errand> {
    if paper.is_blank() {
        return None;
    }
    lapsed(paper, served, means).or_else(|| match served.coverage {
        Coverage::Whole(route) => whole(paper, route, means.slots, waiting),
        Coverage::Mixed => mixed(paper, search, served, means),
        Coverage::None => None,
    })
}

/// Lapsed jobs, as many as their routes have slots for. The rest waits for the next slot.
fn lapsed(paper: &mut Paper, served: &Served, means: Means<'_>) -> Option<Errand> {
    let mut named = Vec::new();
    for id in std::mem::take(&mut paper.lapsed) {
        // Without a route here, it is left to a worker that has one.
        let Some(route) = means.route_of(&id, served) else {
            continue;
        };
        match means.slots.reserve(route, 1).pop() {
            Some(slot) if named.len() < BATCH => named.push(Wanted {
                id,
                source: Source::Reconciler,
                slot,
            }),
            _ => paper.lapsed.push_back(id),
        }
    }
    (!named.is_empty()).then_some(Errand::Lapsed {
        named,
        said: paper.said,
    })
}

/// Due jobs of a kind that belongs to one route: those heard of, or the oldest.
fn whole(paper: &mut Paper, route: usize, slots: &Arc<Slots>, waiting: usize) -> Option<Errand> {
    let wanted = if paper.behind {
        BATCH
    } else {
        paper.heard.len().min(BATCH)
    };
    let share = slots.free(route).div_ceil(waiting.max(1));
    let share = share.min(slots.at_once(route));
    let reserved = slots.reserve(route, wanted.min(share));
    if wanted > 0 && reserved.is_empty() {
        // A name heard now is only a wake-up: a slot that becomes free takes the oldest.
        paper.behind = true;
    }
    if paper.behind {
        paper.heard.clear();
    }
    if reserved.is_empty() {
        return None;
    }
    let said = paper.said;
    if paper.behind {
        return Some(Errand::Due {
            named: Vec::new(),
            fill: reserved,
            said,
        });
    }
    let heard = paper.heard.drain(..reserved.len());
    let named = heard
        .zip(reserved)
        .map(|((id, source), slot)| Wanted { id, source, slot });
    Some(Errand::Due {
        named: named.collect(),
        fill: Vec::new(),
        said,
    })
}

/// Due jobs of a kind whose routes go by id: those heard of whose route has a slot, or a
/// look at what is due.
fn mixed(
    paper: &mut Paper,
    search: &mut Search,
    served: &Served,
    means: Means<'_>,
) -> Option<Errand> {
    if !served.is_routed && means.instances.route_whole(served.ledger.kind().as_str()) {
        // Only the fallback is left here, and nothing for it.
        paper.forget();
        return None;
    }
    let mut named = Vec::new();
    while named.len() < BATCH
        && let Some((id, source)) = paper.heard.pop_front()
    {
        // An id without a route stays in the ledger for a worker that has one.
        let Some(route) = means.route_of(&id, served) else {
            continue;
        };
        match means.slots.reserve(route, 1).pop() {
            Some(slot) => named.push(Wanted { id, source, slot }),
            None => {
                paper.behind = true;
                note(&mut search.starved, route);
            }
        }
    }
    if !named.is_empty() {
        return Some(Errand::Due {
            named,
            fill: Vec::new(),
            said: paper.said,
        });
    }
    if !served
        .routes
        .iter()
        .any(|route| means.slots.free(*route) > 0)
    {
        return None;
    }
    let skip = search.next_page(paper, means.slots)?;
    Some(Errand::Look { skip })
}

fn note(routes: &mut Vec<usize>, route: usize) {
    if !routes.contains(&route) {
        routes.push(route);
    }
}

impl Means<'_> {
    fn route_of(self, id: &str, served: &Served) -> Option<usize> {
        self.instances.route_of(&served.key(id)?, self.routes)
    }
}

impl Search {
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way
    }

    fn has_room(&self, slots: &Slots) -> bool {
        self.starved.iter().any(|route| slots.free(*route) > 0)
    }

    /// Where to read on, if that makes sense now.
    fn next_page(&mut self, paper: &Paper, slots: &Slots) -> Option<usize> {
        if !paper.behind {
            return None;
        }
        let now = Instant::now();
        let is_news = self
            .began
            .is_none_or(|(at, said)| said != paper.said && now.duration_since(at) >= WHOLE_SEARCH);
        if is_news {
            // Somebody has found more than is known here: search anew, to the end.
            *self = Search {
                whole: true,
                began: Some((now, paper.said)),
                ..Search::default()
            };
        } else if !self.open {
            if !self.has_room(slots) {
                return None;
            }
            self.passed = 0;
            self.met.clear();
            self.whole = false;
        }
        self.open = true;
        self.under_way = true;
        Some(self.passed)
    }

    /// Takes in a page of due jobs.
    pub(crate) fn found(
        &mut self,
        paper: &mut Paper,
        due: Vec<String>,
        served: &Served,
        means: Means<'_>,
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
            if *taken < means.slots.free(route) {
                *taken += 1;
                paper.heard.push_back((id, Source::Backlog));
            } else {
                self.passed += 1;
                note(&mut self.met, route);
            }
        }
        if is_last {
            self.open = false;
            self.starved = std::mem::take(&mut self.met);
            if self.starved.is_empty()
                && let Some((_, said)) = self.began
            {
                paper.caught_up(said);
            }
        } else if !self.whole && !self.has_room(means.slots) {
            self.open = false;
        }
    }
}
