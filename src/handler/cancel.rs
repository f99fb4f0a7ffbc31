//! How a running handler learns that it should stop.

use tokio_util::sync::CancellationToken;

/// Tells a running handler to stop. Clones share one signal, and once raised it stays so.
///
/// It is raised
/// - when the job is cancelled while it runs,
/// - when its lease is about to be lost, because renewing it failed for too long; should it be
///   renewed after all, a handler that goes on may,
/// - when the timeout of its route passes,
/// - at the end of the grace period of a graceful stop.
///
/// A handler that looks at it can tidy up first. Take it as an argument, or from
/// [`Job::cancellation`](super::Job::cancellation):
///
/// ```
/// use keyfall::{CancelSignal, Outcome};
/// # async fn copy_next_file() -> bool { false }
///
/// async fn copy(stop: CancelSignal) -> Outcome {
///     while !stop.is_raised() {
///         if !copy_next_file().await {
///             return Outcome::Done;
///         }
///     }
///     Outcome::again()
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelSignal(CancellationToken);

impl CancelSignal {
    /// A signal of its own, for a [`SampleJob`](super::SampleJob).
    pub fn new() -> Self {
        CancelSignal::default()
    }

    /// Raises it. A handler that raises the signal of its own job stops only those who wait
    /// for that signal: the job goes on, and the worker does not hear of it.
    pub fn raise(&self) {
        self.0.cancel();
    }

    /// Whether it has been raised.
    pub fn is_raised(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Returns as soon as it has been raised. Safe to use in `select!`.
    pub async fn raised(&self) {
        self.0.cancelled().await;
    }
}
