//! Holds of kinds that answers ask for. Calls note them, and the task of the route carries them out.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::client::Client;

/// The holds that answers asked for, and that were not carried out yet.
pub(super) struct Holds {
    /// No answer holds a kind for longer.
    longest: Duration,
    /// Until when each kind is to be held.
    asked: Mutex<HashMap<String, Instant>>,
    news: Notify,
}

impl Holds {
    pub(super) fn new(longest: Duration) -> Self {
        Holds {
            longest,
            asked: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// Notes that no job of this kind is to start for so long.
    pub(super) fn ask(&self, kind: &str, time: Duration) {
        if time.is_zero() {
            return;
        }
        let until = Instant::now() + time.min(self.longest);
        let mut asked = self.asked.lock().expect("no panic while held");
        let latest = asked.entry(kind.to_owned()).or_insert(until);
        *latest = until.max(*latest);
        drop(asked);
        self.news.notify_one();
    }

    /// Carries out what is asked for, and never ends. Several workers of one process may do so.
    pub(super) async fn carry_out(&self, client: Client) {
        loop {
            self.news.notified().await;
            let asked = std::mem::take(&mut *self.asked.lock().expect("no panic while held"));
            for (kind, until) in asked {
                let left = until.saturating_duration_since(Instant::now());
                match client.hold(&kind, left).await {
                    Ok(true) => {
                        tracing::info!(%kind, ?left, "a receiver asks all callers to wait");
                    }
                    Ok(false) => tracing::warn!(
                        %kind,
                        "a receiver asks all callers to wait, and the kind has no limit that could \
                         hold its jobs: set one with `keyfall limit`"
                    ),
                    // The next answer asks again.
                    Err(error) => tracing::warn!(%kind, %error, "the kind cannot be held"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_hold_counts_within_the_bound() {
        let holds = Holds::new(Duration::from_secs(60));
        let kind = "app1:mail:send";
        let left = || {
            let asked = holds.asked.lock().unwrap();
            asked.get(kind).map(|until| *until - Instant::now())
        };
        holds.ask(kind, Duration::ZERO);
        assert_eq!(left(), None, "a time in the past asks for nothing");
        holds.ask(kind, Duration::from_secs(30));
        holds.ask(kind, Duration::from_secs(10));
        assert!(left().unwrap() > Duration::from_secs(20));
        holds.ask(kind, Duration::from_secs(9000));
        assert!(left().unwrap() <= Duration::from_secs(60));
    }
}
