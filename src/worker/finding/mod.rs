//! Finds due jobs: by time, by the events of Redis, and by sweeps.
//!
//! | part | task |
//! |---|---|
//! | [`pacer`] | touches triggers at their due time, woken by the [`timer`] |
//! | [`reconciler`] | sweeps the ledgers for jobs that no event announced, and has [lapsed leases](lapses) logged |
//! | [`tracks`] | keeps the state of these two for each ledger |
//! | [`balancer`] | moves shares of limits to the ledgers where jobs wait |
//! | [`events`] | makes Redis announce the events that the worker needs |
//! | [`Finders`] | groups the actors, for the parts that notify them |
//! | [`kinds`] | looks for jobs without a route, and has them [buried](burial) |

pub(super) mod balancer;
mod burial;
pub(super) mod events;
pub(super) mod kinds;
mod lapses;
pub(super) mod pacer;
pub(super) mod reconciler;
pub(super) mod timer;
mod tracks;

use std::sync::Arc;

use self::balancer::Balancer;
use self::kinds::KindMonitor;
use self::pacer::Pacer;
use self::reconciler::Reconciler;
use super::served::ServedLedger;
use crate::store::Held;

/// The actors that find due jobs, for the parts that notify them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Finders {
    /// Touches triggers at their due time.
    pub(crate) pacer: Arc<Pacer>,
    /// Sweeps for jobs that no event announced.
    pub(crate) reconciler: Arc<Reconciler>,
    /// Moves shares of limits.
    pub(crate) balancer: Arc<Balancer>,
    /// Looks for jobs without a route.
    pub(crate) kind_monitor: Arc<KindMonitor>,
}

impl Finders {
    /// Starts to look for jobs in these new ledgers, at once.
    pub(crate) fn serve(&self, new: &[Arc<ServedLedger>]) {
        if new.is_empty() {
            return;
        }
        for served in new {
            self.reconciler.expect(served, None);
        }
        self.pacer.look();
    }

    /// Takes in that due jobs of this ledger wait for the limit of their kind.
    pub(crate) fn is_held(&self, served: &ServedLedger, held: Held) {
        self.pacer.is_held(served, held.next);
        self.balancer.is_held(served, held);
    }
}
