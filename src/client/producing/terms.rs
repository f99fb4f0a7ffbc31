//! [`JobTerms`]: headers and terms of a job that has ended, for a job that is scheduled in its place.

use std::time::Duration;

use crate::client::NewJob;
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::JobKey;
use crate::lateness::MaxLateness;
use crate::record::Header;
use crate::retry::RetryPolicy;

/// The headers and the terms that a job brought itself, as an archive has them.
///
/// ```
/// use keyfall::{JobKey, JobTerms, NewJob};
///
/// # fn main() -> keyfall::Result<()> {
/// let key = JobKey::parse("app1:mail:send:42")?;
/// let terms = JobTerms::read(&key, r#"{"v":1,"attempts":3,"max_attempts":3}"#)?;
/// assert_eq!(terms.max_attempts, Some(3));
/// let again = NewJob::from_bytes(key, "{}").terms(terms).if_absent();
/// # drop(again);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct JobTerms {
    /// The headers that it was scheduled with.
    pub headers: Headers,
    /// Its own retry policy.
    pub retry: Option<RetryPolicy>,
    /// Its own limit of attempts.
    pub max_attempts: Option<u32>,
    /// Its own timeout.
    pub timeout: Option<Duration>,
    /// Its own limit of lateness.
    pub max_lateness: Option<MaxLateness>,
}

impl JobTerms {
    /// Reads the [`header`](crate::EndedJob::header) of an ended job. A rule is not read: an
    /// occurrence that is scheduled again runs once.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] for a header that a newer version wrote, [`ErrorKind::Damaged`] for
    /// a text that is no header, [`ErrorKind::InvalidSetting`] for the plan of a series, which no
    /// handler runs.
    pub fn read(key: &JobKey, header: &str) -> Result<Self> {
        let header = Header::parse(header.as_bytes()).map_err(|fault| fault.of(key))?;
        if header.plan().is_some() {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{key} was the plan of a series, which no handler runs: plan the series anew"
                ),
            ));
        }
        Ok(JobTerms {
            timeout: header.terms.timeout(),
            headers: header.headers,
            retry: header.terms.retry,
            max_attempts: header.terms.max_attempts,
            max_lateness: header.terms.max_lateness,
        })
    }
}

impl NewJob {
    /// The headers and terms of a job that has ended, in place of those that were set before.
    pub fn terms(mut self, terms: JobTerms) -> Self {
        self.headers = terms.headers;
        self.retry = terms.retry;
        self.attempts = terms.max_attempts;
        self.timeout = terms.timeout;
        self.max_lateness = terms.max_lateness;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lateness::Late;
    use crate::record::Terms;

    fn key() -> JobKey {
        JobKey::parse("app1:mail:send:42").unwrap()
    }

    #[test]
    fn terms_come_back_as_they_were_stored() {
        let retry = RetryPolicy::ladder([Duration::from_secs(15)]).unwrap();
        let timeout = Duration::from_secs(7);
        let late = MaxLateness {
            limit: Duration::from_secs(60),
            then: Late::Skip,
        };
        let stored = Terms::new(&key(), Some(retry.clone()), Some(timeout), Some(4)).unwrap();
        let stored = stored.max_lateness(&key(), Some(late)).unwrap();
        let mut headers = Headers::new();
        headers.insert("tenant", "a\nb");
        let line = Header::told(headers.clone(), stored, 4, Some("no".into()));
        let read = JobTerms::read(&key(), &line.to_line()).unwrap();
        let expected = JobTerms {
            headers,
            retry: Some(retry),
            max_attempts: Some(4),
            timeout: Some(timeout),
            max_lateness: Some(late),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn headers_that_no_job_can_have_are_refused() {
        for (header, kind) in [
            (r#"{"v":99}"#, ErrorKind::Incompatible),
            ("\"no object\"", ErrorKind::Damaged),
        ] {
            assert_eq!(JobTerms::read(&key(), header).unwrap_err().kind(), kind);
        }
    }
}
