//! What is looked for in the archive.

use std::time::SystemTime;

use keyfall::JobKey;

use super::how::How;
use super::job::ArchivedJob;
use super::row::{time, within};
use crate::error::{Error, Result};

/// The rows of a page, unless the query says otherwise, and the most that it can ask for.
const LIMIT: usize = 100;
const MOST: usize = 1_000;

/// What is looked for in the archive. All that is set has to be true of a job; an empty query finds
/// every job.
///
/// ```
/// use keyfall_database::{ArchiveQuery, How};
///
/// let query = ArchiveQuery::new().prefix("app1:trans:").how(How::Buried).error_words("timeout");
/// ```
#[derive(Debug, Clone)]
pub struct ArchiveQuery {
    pub(super) key: Option<JobKey>,
    pub(super) prefix: Option<String>,
    pub(super) how: Vec<How>,
    pub(super) from: Option<SystemTime>,
    pub(super) until: Option<SystemTime>,
    pub(super) words: Option<String>,
    /// Ends from this time on do not count for [`ArchiveQuery::last_of_key`].
    pub(super) last_before: Option<SystemTime>,
    pub(super) limit: usize,
    after: Option<String>,
    pub(super) with_payloads: bool,
}

impl Default for ArchiveQuery {
    fn default() -> Self {
        ArchiveQuery::new()
    }
}

impl ArchiveQuery {
    /// Every job, the one that ended last first.
    pub fn new() -> Self {
        ArchiveQuery {
            key: None,
            prefix: None,
            how: Vec::new(),
            from: None,
            until: None,
            words: None,
            last_before: None,
            limit: LIMIT,
            after: None,
            with_payloads: false,
        }
    }

    /// Jobs with this key.
    #[must_use]
    pub fn key(mut self, key: JobKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Jobs whose keys begin like this: `app1:`, `app1:trans:notice:`, `app1:trans:notice:2026-`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Jobs that ended in this way; said again, in one of these ways.
    #[must_use]
    pub fn how(mut self, how: How) -> Self {
        self.how.push(how);
        self
    }

    /// Jobs that ended at this time or later.
    #[must_use]
    pub fn ended_from(mut self, time: SystemTime) -> Self {
        self.from = Some(within(time));
        self
    }

    /// Jobs that ended before this time.
    #[must_use]
    pub fn ended_until(mut self, time: SystemTime) -> Self {
        self.until = Some(within(time));
        self
    }

    /// Jobs whose error has all of these words, in upper or lower case. A host name or a path is one
    /// word.
    #[must_use]
    pub fn error_words(mut self, words: impl Into<String>) -> Self {
        self.words = Some(words.into());
        self
    }

    /// Jobs of whose names none ended later, before this time. To schedule the found jobs again, give
    /// the time at which the search began: the new ends then hide nothing from later pages.
    #[must_use]
    pub fn last_of_key(mut self, before: SystemTime) -> Self {
        self.last_before = Some(within(before));
        self
    }

    /// The most jobs of a page, up to 1,000. Defaults to 100.
    #[must_use]
    pub fn limit(mut self, most: usize) -> Self {
        self.limit = most.clamp(1, MOST);
        self
    }

    /// The jobs after a page, by its [`next`](crate::ArchivePage::next).
    #[must_use]
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }

    /// With the payloads that are stored.
    #[must_use]
    pub fn with_payloads(mut self) -> Self {
        self.with_payloads = true;
        self
    }

    pub(super) fn cursor(&self) -> Result<Option<Cursor>> {
        self.after.as_deref().map(Cursor::parse).transpose()
    }
}

/// The place of a job in the order of the archive. As text it is `ended.accepted.key`, in µs.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    pub(super) ended: SystemTime,
    pub(super) accepted: SystemTime,
    pub(super) key: String,
}

impl Cursor {
    pub(super) fn at(job: &ArchivedJob) -> String {
        let us = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |it| it.as_micros())
        };
        format!("{}.{}.{}", us(job.ended), us(job.accepted), job.key)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, '.');
        let mut time = || Some(time(parts.next()?.parse().ok()?));
        let times = time().zip(time());
        let Some(((ended, accepted), key)) = times.zip(parts.next()) else {
            return Err(Error::Search(format!(
                "the cursor {text:?} is not one that a search has returned; leave it out, and \
                 begin with the first page"
            )));
        };
        Ok(Cursor {
            ended,
            accepted,
            key: key.to_owned(),
        })
    }
}

/// The beginning of keys.
pub(super) enum Prefix<'a> {
    /// It ends within the kind, or with it: of several kinds.
    Kinds(&'a str),
    /// It has all of the kind and nothing of the id.
    Kind(&'a str),
    /// It has a part of the id.
    Keys(&'a str),
}

impl<'a> Prefix<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        match text.matches(':').count() {
            0..=2 => Ok(Prefix::Kinds(text)),
            3 => Ok(text
                .strip_suffix(':')
                .map_or(Prefix::Keys(text), Prefix::Kind)),
            _ => Err(Error::Search(format!(
                "the prefix {text:?} has more than the three colons of a job key, \
                 `app:module:biz:id`"
            ))),
        }
    }
}
