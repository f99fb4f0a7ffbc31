//! Lines of the log that can come in thousands: some are written, the others are counted.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::key::Kind;

/// So many lines are written in [`WINDOW`]; those beyond are counted. A service that is down fails
/// all its jobs, a worker that dies leaves many leases, and the first lines say why.
const MOST: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// How many lines of one sort were written of one ledger lately.
#[derive(Debug)]
pub(crate) struct LineLimit(Arc<Mutex<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u64,
}

impl LineLimit {
    pub(crate) fn new() -> Self {
        LineLimit(Arc::new(Mutex::new(Window {
            began: Instant::now(),
            lines: 0,
        })))
    }

    /// Counts one more line. Whether it is to be written; how many were not is written when the time
    /// is over, with this text.
    pub(crate) fn allows(&self, kind: &Kind, beyond: &'static str) -> bool {
        let mut window = lock(&self.0);
        let age = window.began.elapsed();
        // Beyond the second, whoever was to write of the rest has gone with its runtime.
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
    fn begin(&mut self) {
        self.began = Instant::now();
        self.lines = 0;
    }
}

fn lock(window: &Mutex<Window>) -> MutexGuard<'_, Window> {
    window.lock().expect("no panic while held")
}
