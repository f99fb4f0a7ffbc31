//! One error type for the whole library. It tells the caller what to do:
//! its [kind](ErrorKind), and whether [trying again](Error::is_retryable) can help.

use std::error::Error as StdError;
use std::fmt;

/// The result of a fallible Keyfall call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one opaque type.
///
/// The message names the field, the rule and the remedy. Match on
/// [`kind`](Error::kind), never on the text.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What kind of error it is, and so who can mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is no job key.
    InvalidKey,
    /// The text is no route pattern, or the route clashes with another one.
    InvalidRoute,
    /// A delay or due time is out of range.
    InvalidTime,
    /// A retry policy contradicts itself or does not parse.
    InvalidPolicy,
    /// A setting is out of range or does not parse.
    InvalidSetting,
    /// The payload cannot be serialised, or is larger than the limit.
    InvalidPayload,
    /// A job has too many headers, or too large ones.
    InvalidHeaders,
    /// Redis cannot be reached, is loading, or is busy. Nothing was done.
    Unavailable,
    /// The call was sent and no answer came back: it may have been carried out.
    /// Repeating it is safe, but for three calls that say so: postponing *by* a while, and
    /// requeueing or deleting a dead letter without its number.
    OutcomeUnknown,
    /// The kind was never used, and this client may begin no more of them for now. Nothing was done.
    TooManyKinds,
    /// Redis is at its memory limit and refuses writes. Nothing was done.
    Full,
    /// Redis refuses writes: it is a replica, or it cannot persist. Nothing was done.
    ReadOnly,
    /// Redis refuses this user, or one side the certificate of the other: a wrong password, an
    /// ACL that is too narrow, a CA that is not trusted.
    Denied,
    /// This server or this data set cannot carry Keyfall: too old a version, an
    /// eviction policy that would drop the ledger, another schema, a job of a newer version.
    Incompatible,
    /// What is stored is not what Keyfall wrote.
    Damaged,
}

impl Error {
    /// An error of this kind; `message` names the field, the rule and the remedy.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
        }))
    }

    /// The same error, with the cause that led to it.
    pub(crate) fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error for another caller of the same batch; without the cause, which cannot
    /// be copied.
    pub(crate) fn duplicate(&self) -> Self {
        Error::new(self.0.kind, self.0.message.clone())
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call can succeed later without anything being changed.
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

/// The sentence, then the kind: what a `main` that returns an error prints.
impl fmt::Debug for Error {
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
