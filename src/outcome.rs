//! The end of a run: the outcome that a handler returns, and the values that become one.
//!
//! `crate::ending` derives the consequence for the job from the outcome and the retry policy.

mod failure;

use std::error::Error as StdError;
use std::time::Duration;

pub use failure::{Failure, MAX_FAILURE_BYTES};

/// The end of one run of a job.
///
/// | outcome | the job | is a failure | uses an attempt |
/// |---|---|---|---|
/// | `Done` | has ended | no | |
/// | `Retry` | runs again | yes | yes |
/// | `Again` | runs again | no | yes |
/// | `Snooze`, `SnoozeBecause` | runs again | no | no |
/// | `Bury` | is a dead letter | yes | |
/// | `HandedOver` | stays leased | | yes |
///
/// A job that has used its last attempt becomes a dead letter instead of running again after
/// `Retry` or `Again`, even if a delay was given. Delays are at most ten years; longer ones are cut
/// to that. A handler returns an `Outcome`, or any other value that is [`IntoOutcome`].
///
/// ```
/// use keyfall::{Job, Outcome};
/// use std::time::Duration;
/// # struct Refund { through: bool, denied: bool }
/// # async fn refund(_: &Job) -> Result<Refund, std::io::Error> { unimplemented!() }
///
/// async fn check_refund(job: Job) -> Outcome {
///     match refund(&job).await {
///         Err(error) => Outcome::retry(error),
///         Ok(Refund { denied: true, .. }) => Outcome::bury("the bank denied the refund"),
///         Ok(Refund { through: true, .. }) => Outcome::Done,
///         Ok(_) => Outcome::again(),
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job has done its work. It is deleted.
    Done,
    /// The run failed, and the job runs again. The attempt counts.
    Retry {
        /// The delay from the end of this run. `None`: the delay of the retry policy.
        after: Option<Duration>,
        /// The reason of the failure; kept with the job.
        error: Failure,
    },
    /// Nothing failed, and the job runs once more, for example to check a refund until it is
    /// through. The attempt counts, so the delays follow the policy and its attempts run out; no
    /// failure is recorded.
    Again {
        /// The delay from the end of this run. `None`: the delay of the retry policy.
        after: Option<Duration>,
    },
    /// The job runs later, as if this run had not taken place. The attempt does not count, so a job
    /// may snooze for ever.
    Snooze {
        /// The delay from the end of this run.
        after: Duration,
    },
    /// [`Snooze`](Self::Snooze) with a reason, which [`JobView::put_off`](crate::JobView::put_off)
    /// returns while the job waits.
    SnoozeBecause {
        /// The delay from the end of this run.
        after: Duration,
        /// The reason; kept with the job until its next run.
        reason: Failure,
    },
    /// The run failed, and another attempt cannot help. The job becomes a dead letter at once,
    /// however many attempts are left.
    Bury {
        /// The reason; kept with the dead letter.
        reason: Failure,
    },
    /// Another program goes on with the job: it was given the [lease](crate::Job::lease), and
    /// [settles](crate::Client::settle) the job with it. This worker does not renew the lease any
    /// more: if it lapses, the job runs again, as another attempt. The
    /// [route](crate::Handler::lease) sets the length of the lease.
    HandedOver,
}

/// An error of any type, or text: `&str`, `String`, every `std::error::Error` and `anyhow::Error`
/// convert into it.
type AnyError = Box<dyn StdError + Send + Sync>;

impl Outcome {
    /// [`Retry`](Self::Retry) after the delay of the policy. The attempt counts.
    pub fn retry(error: impl Into<AnyError>) -> Self {
        Outcome::Retry {
            after: None,
            error: Failure::new(error),
        }
    }

    /// [`Retry`](Self::Retry) after this delay, if the policy has an attempt left. The attempt
    /// counts.
    ///
    /// ```
    /// use keyfall::Outcome;
    /// use std::time::Duration;
    /// # struct Answer { retry_after: Option<u64> }
    ///
    /// fn refused(answer: &Answer) -> Outcome {
    ///     let error = "too many requests";
    ///     match answer.retry_after {
    ///         Some(seconds) => Outcome::retry_after(Duration::from_secs(seconds), error),
    ///         None => Outcome::retry(error),
    ///     }
    /// }
    /// ```
    pub fn retry_after(after: Duration, error: impl Into<AnyError>) -> Self {
        Outcome::Retry {
            after: Some(after),
            error: Failure::new(error),
        }
    }

    /// [`Again`](Self::Again) after the delay of the policy. The attempt counts.
    pub fn again() -> Self {
        Outcome::Again { after: None }
    }

    /// [`Again`](Self::Again) after this delay, if the policy has an attempt left. The attempt
    /// counts.
    pub fn again_after(after: Duration) -> Self {
        Outcome::Again { after: Some(after) }
    }

    /// [`Snooze`](Self::Snooze) for this long. The attempt does not count.
    pub fn snooze(after: Duration) -> Self {
        Outcome::Snooze { after }
    }

    /// [`SnoozeBecause`](Self::SnoozeBecause), for this long and for this reason. The attempt does
    /// not count.
    pub fn snooze_because(after: Duration, reason: impl Into<AnyError>) -> Self {
        Outcome::SnoozeBecause {
            after,
            reason: Failure::new(reason),
        }
    }

    /// The outcome of a run that took longer than its `limit`: a retry.
    pub(crate) fn timed_out(limit: Duration) -> Self {
        Outcome::Retry {
            after: None,
            error: Failure::written(format_args!("it took longer than {limit:?}")),
        }
    }

    /// [`Bury`](Self::Bury) for this reason.
    pub fn bury(reason: impl Into<AnyError>) -> Self {
        Outcome::Bury {
            reason: Failure::new(reason),
        }
    }
}

/// A value that a handler may return.
///
/// | returned | outcome |
/// |---|---|
/// | `()` | [`Outcome::Done`] |
/// | [`Outcome`] | itself |
/// | `Ok(value)` | the outcome of `value` |
/// | `Err(error)` | [`Outcome::Retry`] after the delay of the policy |
///
/// The error of a `Result` may be any `std::error::Error`, `anyhow::Error`, `String` or `&str`. Its
/// causes are kept too, see [`Failure`].
///
/// Implement it for a type of your own to return that from handlers:
///
/// ```
/// use keyfall::{IntoOutcome, Outcome};
/// use std::time::Duration;
///
/// enum Refund { Through, Waiting }
///
/// impl IntoOutcome for Refund {
///     fn into_outcome(self) -> Outcome {
///         match self {
///             Refund::Through => Outcome::Done,
///             Refund::Waiting => Outcome::snooze(Duration::from_secs(60)),
///         }
///     }
/// }
///
/// async fn check_refund() -> Result<Refund, std::io::Error> {
///     Ok(Refund::Waiting)
/// }
/// # let _app: keyfall::Router = keyfall::Router::new().route("a:b:c:*", check_refund);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how a job ends",
    label = "a handler cannot return this",
    note = "return `()`, `Outcome`, or a `Result` of one of them; the error may be any \
            `std::error::Error + Send + Sync`, `anyhow::Error` or `String`"
)]
pub trait IntoOutcome {
    /// The outcome that the value stands for.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<T: IntoOutcome, E: Into<AnyError>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => Outcome::retry(error),
        }
    }
}
