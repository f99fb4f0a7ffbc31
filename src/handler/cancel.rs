//! The signal that tells a running handler to stop.
//!
//! The worker raises it; handlers poll it or wait for it.

use tokio_util::sync::CancellationToken;

/// Tells a running handler to stop. Clones share one signal, and a raised signal stays raised.
///
/// The worker raises it
/// - when the job is cancelled while it runs,
/// - when the lease is about to be lost, because renewing it failed for too long; a handler that
///   goes on may still keep the lease, if a later renewal succeeds,
/// - when the timeout of the run passes,
/// - at the end of the grace period of a graceful stop.
///
/// A handler that looks at the signal can tidy up first. Take it as an argument, or from
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
    /// A new signal, not raised, for a [`SampleJob`](super::SampleJob).
    pub fn new() -> Self {
        CancelSignal::default()
    }

    /// Raises the signal. A handler that raises the signal of its own job stops only the tasks that
    /// wait for that signal: the job goes on, and the worker does not hear of it.
    pub fn raise(&self) {
        self.0.cancel();
    }

    /// Whether the signal has been raised.
    pub fn is_raised(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Returns as soon as the signal is raised, at once if it is already. Cancel-safe, so it can
    /// stand in `select!`:
    ///
    /// ```
    /// use keyfall::{CancelSignal, Outcome};
    /// # async fn send() {}
    ///
    /// async fn notify(stop: CancelSignal) -> Outcome {
    ///     tokio::select! {
    ///         () = send() => Outcome::Done,
    ///         () = stop.raised() => Outcome::again(),
    ///     }
    /// }
    /// ```
    pub async fn raised(&self) {
        self.0.cancelled().await;
    }
}
