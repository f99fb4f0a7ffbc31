//! Leases: the right to run a job, in a form that can be handed to another program.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;

/// The right to end a job or to extend its time: the name of the job and the token of the claim. It
/// stands for one attempt and no other, so it can be stored, and presented by any process that can
/// reach the same Redis. A lease that has lapsed, or whose job has ended, is refused by Redis.
///
/// As text it is `app:module:biz:id@token`; the token is at most 64 characters.
///
/// ```
/// use keyfall::Lease;
///
/// let text = "app1:trans:notice:42@0123456789abcdef01234567-17";
/// let lease: Lease = text.parse()?;
/// assert_eq!(lease.key().id(), "42");
/// assert_eq!(lease.to_string(), text);
/// # Ok::<(), keyfall::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    key: JobKey,
    token: Arc<str>,
}

impl Lease {
    /// A lease of this job with a token as Redis gave it; not checked.
    pub(crate) fn new(key: JobKey, token: Arc<str>) -> Self {
        Lease { key, token }
    }

    /// The job that the lease is for.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The name of the claim: `lane-number`.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// The lane of the claim, which tells the claiming worker. Empty for a token without a `-`.
    pub(crate) fn claimer(&self) -> &str {
        self.token.split_once('-').map_or("", |(lane, _)| lane)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.token)
    }
}

impl FromStr for Lease {
    type Err = Error;

    /// Reads the text form. This checks the form alone, not whether the lease is valid.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if the text is no lease.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |fault: &str| {
            let shown: String = text.chars().take(120).collect();
            Error::new(
                ErrorKind::InvalidKey,
                format!("{shown:?} is not a lease: {fault}; pass the lease on unchanged"),
            )
        };
        // An id may have an `@`, a token has none.
        let (key, token) = text
            .rsplit_once('@')
            .ok_or_else(|| invalid("it has no `@` between key and token"))?;
        let is_token = |(lane, number): (&str, &str)| {
            let is_hex = lane.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            is_hex && is_number && !lane.is_empty() && !number.is_empty() && token.len() <= 64
        };
        if !token.split_once('-').is_some_and(is_token) {
            return Err(invalid("the text after the `@` is not a token"));
        }
        let key = key
            .parse::<JobKey>()
            .map_err(|error| invalid(&error.to_string()))?;
        Ok(Lease::new(key, token.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_as_it_is_written() {
        let text = "app1:trans:notice:me@example.org@0123456789abcdef01234567-17";
        let lease: Lease = text.parse().unwrap();
        assert_eq!(lease.key().id(), "me@example.org");
        assert_eq!(lease.token(), "0123456789abcdef01234567-17");
        assert_eq!(lease.to_string(), text);
    }

    #[test]
    fn a_text_that_is_no_lease_is_refused_with_the_reason() {
        for (text, fault) in [
            ("app1:trans:notice:42", "no `@`"),
            ("app1:trans:notice:42@", "not a token"),
            ("app1:trans:notice:42@abc", "not a token"),
            ("app1:trans:notice:42@xyz-1", "not a token"),
            ("app1:trans:notice:42@ab-1 2", "not a token"),
            ("app1:trans:42@ab-1", "3 segments"),
        ] {
            let error = text.parse::<Lease>().unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
