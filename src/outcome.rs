//! How a run ends.

mod failure;

use std::error::Error as StdError;
use std::time::Duration;

pub use failure::{Failure, MAX_FAILURE_BYTES};

/// How one run of a job ends.
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
/// A job that would run again and has used its last attempt is buried, whatever time was
/// asked for. A handler returns an `Outcome`, or anything else that is [`IntoOutcome`].
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
    /// The job has done what it was for. It is deleted.
    Done,
    /// The run failed, and the job is to be tried again. The attempt counts.
    Retry {
        /// When, counted from the end of this run. `None`: as the retry policy says.
        after: Option<Duration>,
        /// Why it failed; kept with the job.
        error: Failure,
    },
    /// Nothing failed, and the job is to run once more: check the refund until it is
    /// through. The attempt counts, so that the policy's ladder is climbed and ends; no
    /// failure is recorded.
    Again {
        /// When, counted from the end of this run. `None`: at the ladder's next rung.
        after: Option<Duration>,
    },
    /// Not now: the job is to run later, as if this run had not been. The attempt does not
    /// count, so a job may snooze for ever.
    Snooze {
        /// When, counted from the end of this run.
        after: Duration,
    },
    /// [`Snooze`](Self::Snooze) for a reason, which is told of the job while it waits.
    SnoozeBecause {
        /// When, counted from the end of this run.
        after: Duration,
        /// Why; kept with the job until its next run.
        reason: Failure,
    },
    /// The run failed, and trying again cannot help. The job becomes a dead letter at once,
    /// however many attempts are left.
    Bury {
        /// Why; kept with the dead letter.
        reason: Failure,
    },
    /// Somebody else goes on with it, who was given its [lease](crate::Job::lease), and who
    /// [settles](crate::Client::settle) it. Nobody renews the lease here any more: if it lapses,
    /// the job runs again, as another attempt. How long it is, the
    /// [route](crate::Handler::lease) says.
    HandedOver,
}

/// Any error, or text. `&str`, `String`, every `std::error::Error` and `anyhow::Error` fit.
type AnyError = Box<dyn StdError + Send + Sync>;

impl Outcome {
    /// [`Retry`](Self::Retry) as the policy says. The attempt counts.
    pub fn retry(error: impl Into<AnyError>) -> Self {
        Outcome::Retry {
            after: None,
            error: Failure::new(error),
        }
    }

    /// [`Retry`](Self::Retry) after this time, if the policy has an attempt left. The
    /// attempt counts.
    pub fn retry_after(after: Duration, error: impl Into<AnyError>) -> Self {
        Outcome::Retry {
            after: Some(after),
            error: Failure::new(error),
        }
    }

    /// [`Again`](Self::Again) at the ladder's next rung. The attempt counts.
    pub fn again() -> Self {
        Outcome::Again { after: None }
    }

    /// [`Again`](Self::Again) after this time, if the policy has an attempt left. The
    /// attempt counts.
    pub fn again_after(after: Duration) -> Self {
        Outcome::Again { after: Some(after) }
    }

    /// [`Snooze`](Self::Snooze) for this time. The attempt does not count.
    pub fn snooze(after: Duration) -> Self {
        Outcome::Snooze { after }
    }

    /// [`SnoozeBecause`](Self::SnoozeBecause): for this time and this reason.
    pub fn snooze_because(after: Duration, reason: impl Into<AnyError>) -> Self {
        Outcome::SnoozeBecause {
            after,
            reason: Failure::new(reason),
        }
    }

    /// Of a run that went on for longer than it may.
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

/// What a handler may return.
///
/// | returned | outcome |
/// |---|---|
/// | `()` | [`Outcome::Done`] |
/// | [`Outcome`] | itself |
/// | `Ok(value)` | what `value` becomes |
/// | `Err(error)` | [`Outcome::Retry`] as the policy says |
///
/// The error of a `Result` may be any `std::error::Error`, `anyhow::Error`, `String` or
/// `&str`. Its causes are kept too, see [`Failure`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how a job ends",
    label = "a handler cannot return this",
    note = "return `()`, `Outcome`, or a `Result` of one of them; the error may be any \
            `std::error::Error + Send + Sync`, `anyhow::Error` or `String`"
)]
pub trait IntoOutcome {
    /// The outcome it stands for.
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
