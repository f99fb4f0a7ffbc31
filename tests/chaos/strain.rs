//! The lateness that the machine causes by itself: a thread beside the processes of a trial asks
//! for a millisecond of CPU time now and then, and measures how long it has to wait.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall_testing::journals::{Micros, now};
use rustix::time::{ClockId, clock_gettime};

use crate::report::percentile;

/// How long it sleeps.
const REST: Micros = 20_000;

/// How long it works, by its CPU time.
const WORK: Micros = 1000;

/// How often a job waits for its turn, generously, from the trigger to the handler: for the
/// processes that it goes through, and in each of them behind other work.
const TURNS: u32 = 20;

/// Measures for as long as this value lives.
pub(crate) struct Gauge {
    enough: Arc<AtomicBool>,
    waits: Arc<Mutex<Vec<Micros>>>,
}

/// How long it had to wait, each time.
#[derive(Debug, Default)]
pub(crate) struct Strain(pub(crate) Vec<Micros>);

impl Gauge {
    pub(crate) fn start() -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let waits = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let (enough, waits) = (enough.clone(), waits.clone());
            move || {
                while !enough.load(Ordering::Relaxed) {
                    let wait = measure();
                    waits.lock().expect("nobody panics with it").push(wait);
                }
            }
        });
        Gauge { enough, waits }
    }

    /// The measurements so far.
    pub(crate) fn read(&self) -> Strain {
        Strain(self.waits.lock().expect("nobody panics with it").clone())
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

impl Strain {
    /// How much later a job may be here than on an idle machine: many times the usual wait, and
    /// once the longest.
    pub(crate) fn allowance(&self) -> Duration {
        self.usual() * TURNS + self.longest()
    }

    pub(crate) fn add(&mut self, other: &Strain) {
        self.0.extend(&other.0);
    }

    fn usual(&self) -> Duration {
        Duration::from_micros(percentile(&self.0, 99).unwrap_or(0))
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(percentile(&self.0, 100).unwrap_or(0))
    }
}

impl fmt::Display for Strain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usual, longest, allowance) = (self.usual(), self.longest(), self.allowance());
        write!(
            f,
            "whoever wanted a millisecond of this machine waited for {usual:.1?} (p99), and for \
             {longest:.1?} at the most; {allowance:.1?} are allowed for that"
        )
    }
}

fn measure() -> Micros {
    let began = now();
    std::thread::sleep(Duration::from_micros(REST));
    let worked = own_time();
    while own_time() - worked < WORK {}
    (now() - began).saturating_sub(REST + WORK)
}

/// The CPU time of this thread.
fn own_time() -> Micros {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000
}
