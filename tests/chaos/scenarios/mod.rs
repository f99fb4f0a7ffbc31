//! What is done to Redis, the workers and the network between them.
//!
//! | module | what it ill-treats |
//! |---|---|
//! | [`workers`] | worker processes: killed, stopped |
//! | [`handlers`] | what handlers do to their worker |
//! | [`restarts`] | a Redis that is killed or shut down, and what its disk keeps |
//! | [`network`] | what is between Redis and everybody else |
//! | [`clocks`] | wall clocks that jump |
//! | [`hindrances`] | a Redis that is there and does not do what it should |

mod clocks;
mod handlers;
mod hindrances;
mod network;
mod restarts;
mod workers;

use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use crate::journal::Micros;
use crate::report::{Phase, Row};
use crate::stage::{Setting, Stage};

/// What the harness itself could not do.
pub(crate) type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Something that may happen to an installation.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Whether it belongs to the short version.
    pub(crate) quick: bool,
    pub(crate) setting: fn() -> Setting,
    /// Makes faults, and mends what does not mend itself. Others are at work meanwhile.
    pub(crate) faults: for<'a> fn(&'a mut Stage) -> LocalBoxFuture<'a, Result>,
    /// What it must show beside what every scenario must: never lost, never run after a cancel,
    /// never two leases.
    pub(crate) promises: Promises,
}

/// How soon things must happen. Generous: a busy machine is slow.
#[derive(Clone, Copy)]
pub(crate) struct Promises {
    /// A job that is due when the fault is over. `None` where lateness cannot be told.
    pub(crate) on_time: Option<Duration>,
    /// A job whose run a fault has interrupted.
    pub(crate) redelivered: Option<Duration>,
}

impl Promises {
    const USUAL: Promises = Promises {
        on_time: Some(Duration::from_secs(15)),
        redelivered: None,
    };
}

/// All of them, in the order of the table.
pub(crate) fn all() -> Vec<Scenario> {
    let groups = [
        workers::all(),
        handlers::all(),
        restarts::all(),
        hindrances::all(),
        network::all(),
        clocks::all(),
    ];
    groups.into_iter().flatten().collect()
}

impl Scenario {
    /// Adds to the row what this scenario promises and did not keep.
    pub(crate) fn expect(&self, row: &mut Row) {
        let is_over = |measured: Option<Micros>, limit: Option<Duration>| {
            let (measured, limit) = (Duration::from_micros(measured?), limit?);
            (measured > limit).then(|| format!("{measured:?} instead of {limit:?} at the most"))
        };
        if self.promises.on_time.is_none() {
            row.forget_lateness();
        }
        if let Some(over) = is_over(row.p99(Phase::After), self.promises.on_time) {
            row.violations.push(format!("late after the fault: {over}"));
        }
        if let Some(over) = is_over(row.redelivery(), self.promises.redelivered) {
            row.violations
                .push(format!("not run again in time: {over}"));
        }
        // A process that is stopped may just have looked at its clock: then one run is begun.
        if row.stale > row.faults {
            let began = row.stale;
            row.violations
                .push(format!("{began} runs began when their lease was over"));
        }
        if row.jobs == 0 || row.faults == 0 {
            row.violations.push("nothing happened".into());
        }
    }
}
