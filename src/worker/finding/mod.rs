//! Finds what is due: by time, by what Redis announces, and by looking.
//!
//! | part | what it does |
//! |---|---|
//! | [`pacer`] | touches triggers at their due instant, when the [`timer`] goes off |
//! | [`reconciler`] | finds what no event announced, and has the log told of [lapsed leases](lapses) |
//! | [`tracks`] | where these two stand in each ledger |
//! | [`events`] | sees to it that Redis announces what expires |
//! | [`Finders`] | has the actors that others have news for |
//! | [`kinds`] | looks for jobs that nobody has a route for, and has them [buried](burial) |

mod burial;
pub(super) mod events;
pub(super) mod kinds;
mod lapses;
pub(super) mod pacer;
pub(super) mod reconciler;
pub(super) mod timer;
mod tracks;

use std::sync::Arc;

use self::kinds::KindMonitor;
use self::pacer::Pacer;
use self::reconciler::Reconciler;
use super::served::ServedLedger;

/// The actors that find what is due, for those who have news for them.
#[derive(Clone)]
pub(crate) struct Finders {
    pub(crate) pacer: Arc<Pacer>,
    pub(crate) reconciler: Arc<Reconciler>,
    pub(crate) kind_monitor: Arc<KindMonitor>,
}

impl Finders {
    /// These ledgers are served from now on.
    pub(crate) fn serve(&self, new: &[Arc<ServedLedger>]) {
        if new.is_empty() {
            return;
        }
        for served in new {
            self.reconciler.expect(served, None);
        }
        self.pacer.look();
    }
}
