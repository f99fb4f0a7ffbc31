//! Pops jobs, as clients of classic delay queues do. They get an id and a body, and name no
//! delivery when they finish a job.

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
    /// The versions that it had before: the interface tells no number of an attempt.
    seen: Mutex<HashSet<Version>>,
}

/// The time of the pop, and the id.
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
            // The interface tells no fencing value either: the later delivery is the newer one.
            fence: now(),
            due: None,
            ticket: (Instant::now(), id),
        }]
    }

    /// A late finish would end the next delivery, so it is not repeated, and not sent when the time
    /// is over.
    async fn end(&self, tickets: Vec<Popped>, end: RunEnd) -> Vec<Option<bool>> {
        for (popped, id) in tickets {
            if end == RunEnd::Done && popped.elapsed() < LEASE {
                self.classic.finish(&id).await;
            }
        }
        Vec::new()
    }
}
