//! What waits in the outbox.

use std::time::Duration;

use crate::connection::Database;
use crate::error::{Error, Result};

/// The most rows that are counted.
const MOST: i64 = 100_000;

/// The state of an outbox.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct OutboxStatus {
    /// How many rows wait to be passed on; counted up to 100,000.
    pub waiting: u64,
    /// Whether there are more than were counted.
    pub is_more: bool,
    /// How long the oldest row has waited; `None` if none waits.
    pub oldest: Option<Duration>,
    /// How many rows are among the refused ones.
    pub refused: u64,
}

impl Database {
    /// The state of the outbox.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub async fn outbox(&self) -> Result<OutboxStatus> {
        let read = format!(
            "SELECT (SELECT count(*) FROM (SELECT FROM keyfall_outbox LIMIT {MOST} + 1) counted),
                (SELECT (extract(epoch FROM clock_timestamp() - inserted_at) * 1000)::bigint
                    FROM keyfall_outbox ORDER BY id LIMIT 1),
                (SELECT count(*) FROM keyfall_outbox_refused)"
        );
        let connection = self.connection().await?;
        let row = connection.query_one(&read, &[]).await;
        let row = row.map_err(Error::of("to read the outbox"))?;
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        let waiting: i64 = row.get(0);
        let oldest: Option<i64> = row.get(1);
        Ok(OutboxStatus {
            waiting: unsigned(waiting.min(MOST)),
            is_more: waiting > MOST,
            oldest: oldest.map(|ms| Duration::from_millis(unsigned(ms))),
            refused: unsigned(row.get(2)),
        })
    }
}
