//! Freshness: decides when the list of kinds is read again. That happens at intervals, and at once
//! when a name suggests a kind that is unknown here, because the announcement of a new kind may be
//! lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::settings::LOOKOUT;

/// Shortest pause after a read that a doubt caused. The pause doubles while such reads find nothing
/// new: names of foreign keys may look like job keys.
const AT_LEAST: Duration = Duration::from_secs(1);

/// Whether the known list of kinds may be outdated.
#[derive(Default)]
pub(crate) struct Freshness {
    /// Set until the next read starts.
    is_doubted: AtomicBool,
    /// Requests a read.
    doubted: Notify,
}

impl Freshness {
    /// Reports the name of an unknown kind. The list is read again soon.
    pub(crate) fn doubt(&self) {
        if !self.is_doubted.swap(true, Ordering::Relaxed) {
            self.doubted.notify_one();
        }
    }

    /// Whether there was such a report since the list was last read.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::Relaxed)
    }

    /// Calls `read` at intervals and after doubts, for ever. `read` returns whether it found
    /// something new.
    pub(crate) async fn run(&self, read: impl AsyncFn() -> bool) {
        let mut pause = AT_LEAST;
        loop {
            let in_doubt = tokio::select! {
                () = self.doubted.notified() => true,
                () = sleep(LOOKOUT) => false,
            };
            self.is_doubted.store(false, Ordering::Relaxed);
            match read().await {
                false if in_doubt => pause = (pause * 2).min(LOOKOUT),
                _ => pause = AT_LEAST,
            }
            if in_doubt {
                sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    /// The times of all reads in this many seconds, in seconds from the start.
    async fn reads(seconds: u64, is_new: bool, doubt: impl AsyncFn(&Freshness)) -> Vec<u64> {
        let (began, freshness) = (Instant::now(), Freshness::default());
        let read = Mutex::new(Vec::new());
        tokio::select! {
            () = freshness.run(async || {
                read.lock().unwrap().push(began.elapsed().as_secs());
                is_new
            }) => {}
            () = async {
                doubt(&freshness).await;
                tokio::time::sleep_until(began + Duration::from_secs(seconds)).await;
            } => {}
        }
        read.into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_read_regularly_and_at_once_in_doubt() {
        assert_eq!(reads(50, false, async |_| {}).await, [20, 40]);
        let once = reads(15, false, async |it| {
            sleep(Duration::from_secs(3)).await;
            it.doubt();
            assert!(it.is_doubted());
        });
        assert_eq!(once.await, [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_doubts_without_cause_cause_fewer_reads() {
        let always = async |it: &Freshness| {
            for _ in 0..2000 {
                it.doubt();
                sleep(Duration::from_millis(50)).await;
            }
        };
        assert_eq!(
            reads(100, false, always).await,
            [0, 2, 6, 14, 30, 50, 70, 90]
        );
        assert_eq!(
            reads(5, true, async |it| {
                for _ in 0..60 {
                    it.doubt();
                    sleep(Duration::from_millis(50)).await;
                }
            })
            .await,
            [0, 1, 2, 3]
        );
    }
}
