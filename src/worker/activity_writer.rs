//! The activity writer: once a minute, writes to Redis how many runs began and ended, for each kind
//! that was active.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::activity::{self, Minutes};
use crate::error::ErrorKind;
use crate::key::Kind;
use crate::store::Store;

/// The time between two writes.
const PAUSE: Duration = Duration::from_secs(60);

/// How long one write may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the last write may take, when the worker stops.
const LAST: Duration = Duration::from_secs(1);

/// The number of kinds that are written at the same time.
const AT_ONCE: usize = 16;

/// Writes the sums of a process.
pub(crate) struct ActivityWriter {
    store: Arc<Store>,
    /// Sums that Redis could not take, because it was away.
    unwritten: Mutex<BTreeMap<Kind, Minutes>>,
}

impl ActivityWriter {
    /// From now on, the process sums.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        store.sums().will_be_written();
        ActivityWriter {
            store,
            unwritten: Mutex::default(),
        }
    }

    /// Writes again and again, until the shutdown.
    pub(crate) async fn run(&self, shutdown: &CancellationToken) {
        let writing = async {
            loop {
                sleep(PAUSE).await;
                self.step(Instant::now() + PATIENCE).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = writing => {}
        }
    }

    /// Writes the rest, in a short time.
    pub(crate) async fn stop(&self) {
        self.step(Instant::now() + LAST).await;
    }

    /// Writes all sums. A sum that Redis has not taken is kept for the next time; one that it may
    /// have taken is not, because it would be counted twice.
    async fn step(&self, until: Instant) {
        let mut sums = self.store.sums().take();
        for (kind, minutes) in std::mem::take(&mut *self.lock()) {
            activity::merge(sums.entry(kind).or_default(), minutes);
        }
        let writes = sums.into_iter().map(|(kind, minutes)| async move {
            let Err(error) = self.store.add_activity(&kind, &minutes, until).await else {
                return;
            };
            tracing::debug!(%kind, %error, "the activity was not written");
            if error.kind() == ErrorKind::Unavailable {
                self.lock().insert(kind, minutes);
            }
        });
        stream::iter(writes)
            .buffer_unordered(AT_ONCE)
            .collect::<()>()
            .await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Kind, Minutes>> {
        self.unwritten.lock().expect("no panic while held")
    }
}
