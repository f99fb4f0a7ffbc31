//! Drops the partitions whose time is over.

use std::time::{Duration, SystemTime};

use tokio_postgres::error::SqlState;

use crate::connection::Database;
use crate::error::{Error, Result};

/// By how much the clocks of the database and of this process may differ.
const MOST_DIFFERENCE: Duration = Duration::from_secs(86_400);

impl Database {
    /// Drops the months of the archive whose time is over, by the clock of the database: a job is
    /// kept for its number of months after the month in which it ended. Returns the names of the
    /// dropped partitions. Jobs that are kept for ever stay; so do those of a clock that was wrong,
    /// which ended before 2020 or after 2099.
    ///
    /// It waits 200 ms for queries that hold a partition, and leaves the rest to the next call.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Refused`] if this role may not, or if the clock of the
    /// database differs from the clock of this process by more than a day.
    pub async fn drop_expired(&self) -> Result<Vec<String>> {
        self.in_time(self.drop_all_expired()).await
    }

    async fn drop_all_expired(&self) -> Result<Vec<String>> {
        let failed = Error::of("to drop partitions of the archive");
        let connection = self.connection().await?;
        let now = connection.query_one("SELECT clock_timestamp()", &[]).await;
        check_clock(now.map_err(&failed)?.get(0))?;
        let mut dropped = Vec::new();
        loop {
            // A transaction for each: none holds its locks while it waits for the next.
            let drop = "SELECT keyfall_archive_drop_expired()";
            let expired: Option<String> = match connection.query_one(drop, &[]).await {
                Ok(row) => row.get(0),
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    tracing::info!("a partition of the archive is in use and is dropped later");
                    None
                }
                Err(error) => return Err(failed(error)),
            };
            let Some(expired) = expired else {
                return Ok(dropped);
            };
            tracing::info!(
                partition = expired,
                "the time of a month of the archive is over"
            );
            dropped.push(expired);
        }
    }
}

/// A clock that is wrong must not drop what is to be kept.
fn check_clock(database: SystemTime) -> Result<()> {
    let here = SystemTime::now();
    let difference = match here.duration_since(database) {
        Ok(behind) => behind,
        Err(error) => error.duration(),
    };
    if difference <= MOST_DIFFERENCE {
        return Ok(());
    }
    Err(Error::Refused {
        what: "to drop partitions of the archive",
        message: format!("its clock differs from the clock of this process by {difference:?}"),
        remedy: "; set both clocks: by one of them, jobs would be dropped too early",
    })
}
