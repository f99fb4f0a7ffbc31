//! When an route task looks next: soon, as long as there is something to see.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::Result;

/// The first pause after something was seen; it doubles.
const FIRST: Duration = Duration::from_millis(10);
/// The longest, while jobs are out.
const LONGEST: Duration = Duration::from_millis(500);
/// The longest of all.
const IDLE: Duration = Duration::from_secs(5);
/// After a fault.
const AILING: Duration = Duration::from_secs(1);

/// How often one route task looks.
pub(super) struct Pace {
    lease: Duration,
    pause: Duration,
    /// When there was last something to do.
    busy: Instant,
    ails: bool,
}

impl Pace {
    /// For leases of this length, which nobody is to find lapsed.
    pub(super) fn new(lease: Duration) -> Self {
        Pace {
            lease,
            pause: FIRST,
            busy: Instant::now(),
            ails: false,
        }
    }

    /// Waits until it is time for another round, or a job was `written`. `round` is how the last
    /// one went: whether there was something to do.
    pub(super) async fn rest(
        &mut self,
        way: &impl fmt::Display,
        round: Result<bool>,
        written: &Notify,
    ) {
        self.note(way, &round);
        let longest = match round {
            Err(_) => AILING,
            Ok(true) => FIRST,
            Ok(false) if self.busy.elapsed() < self.lease => LONGEST,
            Ok(false) => IDLE,
        };
        if matches!(round, Ok(true)) {
            self.busy = Instant::now();
        }
        self.pause = (self.pause * 2).min(longest).min(self.lease / 4);
        sleep(FIRST).await;
        if timeout(self.pause, written.notified()).await.is_ok() {
            self.busy = Instant::now();
            self.pause = FIRST;
        }
    }

    /// Says once what is wrong, and once that it is over.
    pub(super) fn note<T>(&mut self, way: &impl fmt::Display, round: &Result<T>) {
        match round {
            Ok(_) if self.ails => tracing::info!(%way, "acknowledgements are heard again"),
            Err(error) if !self.ails => {
                tracing::warn!(%way, %error, "acknowledgements are not heard");
            }
            _ => {}
        }
        self.ails = round.is_err();
    }
}
