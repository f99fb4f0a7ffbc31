//! The one error type of the library. It tells the caller how to react: by its [kind](ErrorKind),
//! and by whether [trying again](Error::is_retryable) can help.

use std::error::Error as StdError;
use std::fmt;

/// The result of a fallible Keyfall call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of every fallible call, in one opaque type.
///
/// The message names the field, the rule and the remedy. Match on [`kind`](Error::kind), never on
/// the text. [`source`](std::error::Error::source) returns the cause, where there is one.
///
/// ```
/// use keyfall::{ErrorKind, JobKey};
///
/// let error = JobKey::parse("app 1:trans:notice:42").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidKey);
/// assert!(!error.is_retryable());
/// println!("{error}");
/// ```
pub struct Error(Box<Inner>);

/// The fields, in a box, so that a `Result` stays small.
struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    is_refusal: bool,
}

/// The kind of an error, which tells who can mend it: the caller, for the `Invalid…` kinds; time,
/// for the [retryable](Error::is_retryable) ones; the operator, for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is no job key.
    InvalidKey,
    /// The text is no route pattern, or the route clashes with another one, or there are two
    /// fallbacks.
    InvalidRoute,
    /// A delay or due time is out of range.
    InvalidTime,
    /// A retry policy contradicts itself or does not parse.
    InvalidPolicy,
    /// A rule of a recurring job contradicts itself, does not parse, or names no time; or a series or
    /// quiet hours are not valid.
    InvalidRule,
    /// A setting is out of range or does not parse.
    InvalidSetting,
    /// The payload cannot be serialised, or is larger than the limit.
    InvalidPayload,
    /// A job has too many headers, headers that are too large, or a header without a name.
    InvalidHeaders,
    /// Redis cannot be reached, is loading, or is busy. Nothing was done.
    Unavailable,
    /// The call was sent and no answer came back: it may have been carried out. Repeating it is
    /// safe, except for three calls: postponing *by* a delay, and requeueing or deleting a dead
    /// letter without its number.
    OutcomeUnknown,
    /// The kind was never used, and this client may not begin another new kind for now. Nothing was
    /// done.
    TooManyKinds,
    /// Redis is at its memory limit and refuses writes. Nothing was done.
    Full,
    /// Redis refuses writes: it is a replica, or it cannot persist. Nothing was done.
    ReadOnly,
    /// Redis refuses this user, or one side refuses the certificate of the other: a wrong password,
    /// an ACL that is too narrow, a CA that is not trusted.
    Denied,
    /// This server or this data set cannot carry Keyfall: the server is too old, an eviction policy
    /// would drop the ledger, the data have another schema, or a newer version wrote the job.
    Incompatible,
    /// The stored data are not in the form that Keyfall writes.
    Damaged,
}

impl Error {
    /// An error of this kind; `message` names the field, the rule and the remedy.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
            is_refusal: false,
        }))
    }

    /// The same error, with the cause that led to it.
    pub(crate) fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error for another caller of the same batch; without the cause, which cannot be
    /// copied.
    pub(crate) fn duplicate(&self) -> Self {
        Error::new(self.0.kind, self.0.message.clone())
    }

    /// The same error, of a call that was refused before anything was sent.
    pub(crate) fn refusal(mut self) -> Self {
        self.0.is_refusal = true;
        self
    }

    /// Whether the call itself is wrong and was never sent. Only calls that must tell this from a
    /// wrong setting of the connection say so:
    /// [`Client::send_numbered`](crate::Client::send_numbered).
    pub fn is_refusal(&self) -> bool {
        self.0.is_refusal
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call can succeed later without any change by the caller: `Unavailable`,
    /// `OutcomeUnknown`, `TooManyKinds`, `Full` and `ReadOnly`.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// use std::time::Duration;
    ///
    /// let delay = Duration::from_secs(900);
    /// while let Err(error) = client.schedule("app1:trans:notice:42", "").after(delay).await {
    ///     if !error.is_retryable() {
    ///         return Err(error);
    ///     }
    ///     tokio::time::sleep(Duration::from_secs(1)).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Unavailable
                | ErrorKind::OutcomeUnknown
                | ErrorKind::TooManyKinds
                | ErrorKind::Full
                | ErrorKind::ReadOnly
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    /// The message, the kind, and the cause: the text that is printed when `main` returns an error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0.message, self.0.kind)?;
        match &self.0.source {
            Some(source) => write!(f, ", because {source}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source: &(dyn StdError + 'static) = self.0.source.as_deref()?;
        Some(source)
    }
}
