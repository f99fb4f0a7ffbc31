//! Pops jobs, as clients of classic delay queues do. They are told an id and a body, and name no
//! delivery when they finish one.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Instant;

use keyfall_testing::journals::now;
use tokio::time::sleep;

use super::{PAUSE, RunEnd, Source, Taken};
use crate::classic::ClassicClient;
use crate::journal::Version;
use crate::target::Ways;
use crate::worker::LEASE;

pub(super) struct Popper {
    classic: ClassicClient,
    /// What it had before: nobody tells it the number of an attempt.
    seen: Mutex<HashSet<Version>>,
}

/// When it was popped, and its id.
type Popped = (Instant, String);

impl Popper {
    pub(super) fn new(ways: &Ways) -> Self {
        Popper {
            classic: ClassicClient::new(ways),
            seen: Mutex::default(),
        }
    }
}

impl Source for Popper {
    type Ticket = Popped;

    /// Each pop brings one job.
    const HANDS: usize = 12;

    async fn take(&self) -> Vec<Taken<Popped>> {
        let Some((id, order)) = self.classic.pop().await else {
            sleep(PAUSE).await;
            return Vec::new();
        };
        let is_new = self.seen.lock().expect("no panic").insert(order.version);
        vec![Taken {
            key: ClassicClient::key(&id),
            order,
            attempt: if is_new { 1 } else { 2 },
            // Nor is it told a fencing value: the later one is the newer one.
            fence: now(),
            due: None,
            ticket: (Instant::now(), id),
        }]
    }

    /// A finish that comes late would end the delivery that has followed, so it is not repeated,
    /// and not sent when the time is over.
    async fn end(&self, tickets: Vec<Popped>, end: RunEnd) -> Vec<Option<bool>> {
        for (popped, id) in tickets {
            if end == RunEnd::Done && popped.elapsed() < LEASE {
                self.classic.finish(&id).await;
            }
        }
        Vec::new()
    }
}
