//! The pauses between the rounds of a route task: short after jobs were written or acknowledged,
//! long while nothing happens.
//!
//! A pause never exceeds a quarter of the lease, so that no lease lapses for lack of a look.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::client::Settled;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Lease;

/// The pause after a round with acknowledgements. Later pauses double.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause while jobs may be in the hands of consumers.
const LONGEST: Duration = Duration::from_millis(500);
/// The longest pause after a lease without work.
const IDLE: Duration = Duration::from_secs(5);
/// The longest pause after an error.
const AILING: Duration = Duration::from_secs(1);

/// The shortest patience with a call.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a round waits for a call on a job with a lease of this length: a server that is away
/// must not delay the jobs of others until their leases lapse.
pub(super) fn patience(lease: Duration) -> Duration {
    (lease / 6).max(PATIENCE)
}

/// A settlement of this lease, or the error that it takes too long; the next round tries again.
pub(super) async fn in_time(
    settled: impl IntoFuture<Output = Result<Settled>>,
    lease: &Lease,
    limit: Duration,
) -> Result<Settled> {
    timeout(limit, settled.into_future())
        .await
        .unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the Redis of the job {} did not settle it within {limit:?}",
                    lease.key()
                ),
            ))
        })
}

/// The pace of one route task.
pub(super) struct Pace {
    /// The length of a lease on this route.
    lease: Duration,
    /// The present pause.
    pause: Duration,
    /// The last time that there was work, or that a job was written.
    busy: Instant,
    /// Whether the last round failed; each change is logged once.
    ails: bool,
}

impl Pace {
    /// A pace that looks at least four times in a lease of this length.
    pub(super) fn new(lease: Duration) -> Self {
        Pace {
            lease,
            pause: FIRST,
            busy: Instant::now(),
            ails: false,
        }
    }

    /// Waits until the next round is due, or until a job was `written`, and 10 ms at least. `round`
    /// is the result of the last round: whether there was work. `way` names the target in the log.
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

    /// Logs the first error of a series, and the first success after it.
    pub(super) fn note<T>(&mut self, way: &impl fmt::Display, round: &Result<T>) {
        match round {
            Ok(_) if self.ails => tracing::info!(%way, "acknowledgements arrive again"),
            Err(error) if !self.ails => {
                tracing::warn!(%way, %error, "acknowledgements do not arrive");
            }
            _ => {}
        }
        self.ails = round.is_err();
    }
}
