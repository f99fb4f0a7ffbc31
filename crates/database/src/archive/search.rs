//! Finds jobs in the archive, newest first, by statements that an index serves.
//!
//! A search goes back in time by windows, and ends when its page is full: most pages need the last
//! month alone, and what is sorted is never more than a window has.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::job::ArchivedJob;
use super::query::{ArchiveQuery, Cursor};
use super::statement::Statement;
use crate::connection::Database;
use crate::error::{Error, Result, with_causes};

/// The days that each window but the last goes back; the last has the rest.
const WINDOWS: [u64; 3] = [31, 124, 496];

/// A part of the jobs that a query finds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ArchivePage {
    /// The jobs, the one that ended last first.
    pub jobs: Vec<ArchivedJob>,
    /// The cursor for the jobs after these, if there are more. It can be kept, and used at any time.
    pub next: Option<String>,
}

impl Database {
    /// Looks for jobs in the archive. Jobs that come in between two pages appear on neither unless
    /// they ended before the first of them; no job appears twice.
    ///
    /// # Errors
    /// [`Error::Search`] if the query is not valid, or takes longer than the time of a statement;
    /// [`Error::Unreachable`]; [`Error::Refused`] if this role may not; [`Error::Schema`] if a row
    /// cannot be read.
    pub async fn archived(&self, query: &ArchiveQuery) -> Result<ArchivePage> {
        let cursor = query.cursor()?;
        self.in_time(async {
            // Searches leave half of the connections to those who pass on and store.
            let _turn = self.searches.acquire().await;
            self.page(query, cursor.as_ref()).await
        })
        .await
    }

    async fn page(&self, query: &ArchiveQuery, cursor: Option<&Cursor>) -> Result<ArchivePage> {
        let bounds = [cursor.map(|it| it.ended), query.until];
        let now = SystemTime::now();
        let newest = bounds.into_iter().flatten().fold(now, SystemTime::min);
        let connection = self.connection().await?;
        let mut jobs = Vec::new();
        let mut until = query.until;
        for days in WINDOWS.map(Some).into_iter().chain([None]) {
            let back = days.and_then(|it| newest.checked_sub(Duration::from_secs(it * 86_400)));
            let from = back.max(query.from);
            // One more than the page has tells whether there is a next one.
            let most = query.limit + 1 - jobs.len();
            let statement = Statement::of(query, cursor, from, until, most)?;
            let values = statement.values();
            let rows = connection.query_typed(&statement.sql, &values).await;
            for row in rows.map_err(failed)? {
                jobs.push(ArchivedJob::read(&row).map_err(unreadable)?);
            }
            if jobs.len() > query.limit || from == query.from {
                break;
            }
            until = from;
        }
        let is_more = jobs.len() > query.limit;
        jobs.truncate(query.limit);
        let next = jobs.last().filter(|_| is_more).map(Cursor::at);
        Ok(ArchivePage { jobs, next })
    }
}

fn failed(error: tokio_postgres::Error) -> Error {
    if error.code() != Some(&SqlState::QUERY_CANCELED) {
        return Error::of("to search the archive")(error);
    }
    Error::Search(format!(
        "the search of the archive was given up: {}; name a key, a kind or a shorter time",
        with_causes(&error)
    ))
}

fn unreadable(error: tokio_postgres::Error) -> Error {
    Error::Schema(format!(
        "a row of the archive cannot be read: {}; if no program beside Keyfall has written it, \
         use the version that has",
        with_causes(&error)
    ))
}
