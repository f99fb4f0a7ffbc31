//! The names of jobs, `app:module:biz:id`, and of kinds, `app:module:biz`.
//!
//! [`JobKey`] and [`Kind`] exist only parsed; every other module takes them instead of text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The longest `app`, `module` or `biz`, in bytes.
pub const MAX_SEGMENT_BYTES: usize = 64;

/// The longest `id`, in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// The names of the four segments, in order.
pub(crate) const NAMES: [&str; 4] = ["app", "module", "biz", "id"];

/// The name of one job: `app:module:biz:id`, exactly four segments, case-sensitive.
///
/// | segment | bytes | alphabet |
/// |---|---|---|
/// | `app`, `module`, `biz` | 1 to 64 | ASCII letters, digits, `_`, `-`, `.` |
/// | `id` | 1 to 256 | any UTF-8 but `:`, `*`, `{`, `}`, white space and control characters |
///
/// The id may be a UUID, an order number, an e-mail address. The first three segments are the job's
/// [`Kind`]; their alphabet is narrower because they name Redis keys, routes and metrics.
///
/// Clones share the text, so cloning is cheap. Keys are ordered by their text.
///
/// ```
/// let key: keyfall::JobKey = "app1:trans:notice:1615283234".parse()?;
/// assert_eq!(key.kind(), "app1:trans:notice");
/// assert_eq!(key.id(), "1615283234");
/// # Ok::<(), keyfall::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    text: Arc<str>,
    /// The byte at which the id begins; at most `3 * (MAX_SEGMENT_BYTES + 1)`.
    id_at: u8,
}

/// The first three segments of a job key, `app:module:biz`: a queue or topic in other systems.
///
/// Routes, limits, counts and metrics go by kind. Clones share the text.
///
/// ```
/// let kind = keyfall::Kind::parse("app1:trans:notice")?;
/// assert_eq!(kind.key("42")?.as_str(), "app1:trans:notice:42");
/// # Ok::<(), keyfall::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind(Arc<str>);

impl JobKey {
    /// Parses a job key, by the rules of [`JobKey`].
    ///
    /// ```
    /// use keyfall::{ErrorKind, JobKey};
    ///
    /// let error = JobKey::parse("app1:trans:notice").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidKey);
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`], naming the segment, the rule and the offending part.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let segments: [_; 4] = std::array::from_fn(|_| parts.next());
        let ([_, _, _, Some(id)], None) = (segments, parts.next()) else {
            let count = text.split(':').count();
            return Err(invalid(
                "job key",
                text,
                format_args!(
                    "it has {count} segment{}, and a job key has exactly four, `app:module:biz:id`",
                    if count == 1 { "" } else { "s" }
                ),
            ));
        };
        for (name, segment) in NAMES.into_iter().zip(segments.into_iter().flatten()) {
            check_segment(name, segment)
                .map_err(|fault| invalid("job key", text, format_args!("{fault}")))?;
        }
        let kind = text.len() - id.len() - 1;
        Ok(JobKey::checked(text.into(), kind))
    }

    /// A key of a text that keeps the rules, with the length of its kind.
    fn checked(text: Arc<str>, kind: usize) -> Self {
        JobKey {
            text,
            id_at: u8::try_from(kind + 1).expect("three checked segments and colons fit"),
        }
    }

    /// The whole key, `app:module:biz:id`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first three segments, `app:module:biz`.
    pub fn kind(&self) -> &str {
        &self.text[..usize::from(self.id_at) - 1]
    }

    /// The last segment, which tells the jobs of one kind apart.
    pub fn id(&self) -> &str {
        &self.text[usize::from(self.id_at)..]
    }

    /// All four segments: app, module, biz, id.
    pub fn segments(&self) -> [&str; 4] {
        let mut parts = self.text.splitn(4, ':');
        std::array::from_fn(|_| parts.next().expect("a parsed key has four segments"))
    }
}

impl Kind {
    /// Parses a kind, `app:module:biz`, by the rules of [`JobKey`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`], naming the segment, the rule and the offending part.
    pub fn parse(text: &str) -> Result<Self> {
        let segments: Vec<&str> = text.split(':').collect();
        if segments.len() != 3 {
            return Err(invalid(
                "kind",
                text,
                format_args!(
                    "it has {} segment{}, and a kind has exactly three, `app:module:biz`",
                    segments.len(),
                    if segments.len() == 1 { "" } else { "s" }
                ),
            ));
        }
        for (name, segment) in NAMES.into_iter().zip(&segments) {
            check_segment(name, segment)
                .map_err(|fault| invalid("kind", text, format_args!("{fault}")))?;
        }
        Ok(Kind(text.into()))
    }

    /// The kind as text, `app:module:biz`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of the job of this kind with this id.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if the id breaks a rule of [`JobKey`].
    pub fn key(&self, id: &str) -> Result<JobKey> {
        let text = [self.as_str(), ":", id].concat();
        if check_segment("id", id).is_ok() {
            return Ok(JobKey::checked(text.into(), self.0.len()));
        }
        JobKey::parse(&text)
    }
}

/// Checks one segment; `name` is `app`, `module`, `biz` or `id`.
///
/// # Errors
/// A phrase that names the segment, the rule and the offending part.
pub(crate) fn check_segment(name: &str, segment: &str) -> Result<(), String> {
    let limit = if name == "id" {
        MAX_ID_BYTES
    } else {
        MAX_SEGMENT_BYTES
    };
    if segment.is_empty() {
        return Err(format!(
            "its `{name}` is empty, and a segment has at least one character"
        ));
    }
    if segment.len() > limit {
        return Err(format!(
            "its `{name}` has {} bytes, and the limit is {limit}",
            segment.len()
        ));
    }
    let (allowed, rule): (fn(char) -> bool, _) = if name == "id" {
        (
            is_id_char,
            "an id may hold any character but `:`, `*`, `{`, `}`, white space and control characters",
        )
    } else {
        (
            is_kind_char,
            "app, module and biz hold ASCII letters, digits, `_`, `-` and `.`",
        )
    };
    match segment.char_indices().find(|&(_, c)| !allowed(c)) {
        None => Ok(()),
        Some((at, c)) => Err(format!("its `{name}` holds {c:?} at byte {at}, and {rule}")),
    }
}

/// Whether an app, module or biz may contain `c`.
pub(crate) fn is_kind_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether an id may contain `c`.
pub(crate) fn is_id_char(c: char) -> bool {
    !matches!(c, ':' | '*' | '{' | '}') && !c.is_whitespace() && !c.is_control()
}

/// The error for a text that is no `what`, such as `job key`. The text is cut after 120 characters.
fn invalid(what: &str, text: &str, fault: fmt::Arguments<'_>) -> Error {
    const SHOWN: usize = 120;
    let shown: String = text.chars().take(SHOWN).collect();
    let cut = if shown.len() < text.len() { "…" } else { "" };
    Error::new(
        ErrorKind::InvalidKey,
        format!("{shown:?}{cut} is not a {what}: {fault}"),
    )
}

impl FromStr for JobKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        JobKey::parse(text)
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Kind::parse(text)
    }
}

/// The name of a job in a call: a parsed [`JobKey`], or text that the call parses.
///
/// Implemented for `JobKey`, `&JobKey`, `&str`, `String` and `&String`.
pub trait IntoJobKey {
    /// The parsed key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if the text breaks a rule of [`JobKey`].
    fn into_job_key(self) -> Result<JobKey>;
}

impl IntoJobKey for JobKey {
    fn into_job_key(self) -> Result<JobKey> {
        Ok(self)
    }
}

impl IntoJobKey for &JobKey {
    fn into_job_key(self) -> Result<JobKey> {
        Ok(self.clone())
    }
}

impl IntoJobKey for &str {
    fn into_job_key(self) -> Result<JobKey> {
        JobKey::parse(self)
    }
}

impl IntoJobKey for &String {
    fn into_job_key(self) -> Result<JobKey> {
        JobKey::parse(self)
    }
}

impl IntoJobKey for String {
    fn into_job_key(self) -> Result<JobKey> {
        JobKey::parse(&self)
    }
}

// Allowed because `Kind` derives hash and order from its text.
impl std::borrow::Borrow<str> for Kind {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobKey({})", self.text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kind({})", self.0)
    }
}

#[cfg(test)]
mod tests;
