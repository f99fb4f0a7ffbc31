//! The archive on a real PostgreSQL.
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | each row is stored once, whatever it holds |
//! | [`crashes`] | PostgreSQL is killed while rows are stored |
//! | [`retention`] | months are dropped when their time is over |
//! | [`rights`] | the rights that a role needs |
//! | [`search`] | jobs are found by key, prefix, end, time and words, page by page |
//! | [`plans`] | an index serves each search |
//! | [`rates`] | how fast rows are stored and found |

mod crashes;
mod plans;
mod rates;
mod retention;
mod rights;
mod search;
mod store;

use std::collections::BTreeMap;

use keyfall_database::internals::Row;
use keyfall_database::{Database, How, Settings};

use crate::site::Site;

/// 2026-11-27 12:00 UTC.
pub(crate) const NOON: i64 = 1_795_780_800_000_000;

const HOUR: i64 = 3_600_000_000;

impl Site {
    async fn archived_rows(&self) -> i64 {
        self.one("SELECT count(*) FROM keyfall_archive").await
    }

    /// All partitions, in order.
    async fn partitions(&self) -> Vec<String> {
        let read = "SELECT relid::regclass::text FROM pg_partition_tree('keyfall_archive')
            WHERE isleaf AND level = 2 ORDER BY 1";
        let rows = self.sql.query(read, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

fn open(url: &str) -> Database {
    Database::open(&Settings::new(url)).unwrap()
}

/// A job that was done, kept for a year.
pub(crate) fn row(key: &str, ended_us: i64) -> Row {
    Row {
        ended_us,
        key: key.parse().unwrap(),
        accepted_us: ended_us - HOUR,
        how: How::Done,
        keep_months: 12,
        due_us: Some(ended_us - 5_000),
        begun_us: Some(ended_us - 2_000),
        attempts: 1,
        worker: Some("worker-1".into()),
        error: None,
        headers: BTreeMap::new(),
        header: Some(r#"{"v":1}"#.into()),
        payload: None,
        payload_bytes: 0,
        fence: Some(7),
        letter: None,
        occurrence_us: None,
    }
}
