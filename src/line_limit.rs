//! A limit for log lines that can come in thousands: some are written, the others are counted.
//!
//! A service that is down fails all its jobs, and a worker that dies leaves many leases; the first
//! lines name the cause.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::key::Kind;

/// The number of lines that are written in one [`WINDOW`].
const MOST: u64 = 20;
/// The time after which lines are written again.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts the recent lines of one sort for one ledger.
#[derive(Debug)]
pub(crate) struct LineLimit(Arc<Mutex<Window>>);

/// The count since the window began.
#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u64,
}

impl LineLimit {
    /// A limit whose first window begins now.
    pub(crate) fn new() -> Self {
        LineLimit(Arc::new(Mutex::new(Window {
            began: Instant::now(),
            lines: 0,
        })))
    }

    /// Counts one more line and returns whether it is to be written. At the end of a window with
    /// more lines than allowed, one warning with the text `beyond` gives the number of lines left
    /// out. Needs a tokio runtime.
    pub(crate) fn allows(&self, kind: &Kind, beyond: &'static str) -> bool {
        let mut window = lock(&self.0);
        let age = window.began.elapsed();
        // After two windows, the task that was to report the rest has ended with its runtime.
        if age >= WINDOW && window.lines <= MOST || age >= 2 * WINDOW {
            window.begin();
        }
        window.lines += 1;
        if window.lines == MOST + 1 {
            let (end, kind) = (window.began + WINDOW, kind.clone());
            let window = self.0.clone();
            tokio::spawn(async move {
                sleep_until(end).await;
                let mut window = lock(&window);
                let left_out = window.lines.saturating_sub(MOST);
                window.begin();
                drop(window);
                tracing::warn!(%kind, left_out, "{beyond}");
            });
        }
        window.lines <= MOST
    }
}

impl Window {
    /// Starts a new window now.
    fn begin(&mut self) {
        self.began = Instant::now();
        self.lines = 0;
    }
}

/// Locks a window; never held across an await.
fn lock(window: &Mutex<Window>) -> MutexGuard<'_, Window> {
    window.lock().expect("no panic while held")
}
