//! A job as the archive has it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use tokio_postgres::Row;
use tokio_postgres::types::Json;

/// The columns of a job, for [`ArchivedJob::read`], beside the payload.
pub(super) const COLUMNS: &str = "key, kind, how, keep_months, ended_at, accepted_at, due_at,
    begun_at, attempts, lag_ms, duration_ms, worker, error, headers, payload_bytes, fence, letter,
    occurrence_at, header, payload IS NOT NULL AS has_payload";

/// A job that has ended, as the archive has it. Times are by the clock of Redis; serialised, they are
/// texts of RFC 3339.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ArchivedJob {
    /// Its name, `app:module:biz:id`.
    pub key: String,
    /// Its kind, `app:module:biz`.
    pub kind: String,
    /// How it ended, the word of a [`How`](crate::How). Newer versions may write others.
    pub how: String,
    /// For how many months it is kept after the month in which it ended; 0 for ever.
    pub keep_months: u32,
    /// When it ended.
    #[serde(serialize_with = "time")]
    pub ended: SystemTime,
    /// When it was accepted.
    #[serde(serialize_with = "time")]
    pub accepted: SystemTime,
    /// When it was due last.
    #[serde(serialize_with = "optional_time")]
    pub due: Option<SystemTime>,
    /// When its last run began; `None` if it did not run.
    #[serde(serialize_with = "optional_time")]
    pub begun: Option<SystemTime>,
    /// The attempts that had ended and counted.
    pub attempts: u32,
    /// How long after the due time the last run began, in ms.
    pub lag_ms: Option<i64>,
    /// How long the last run took, in ms.
    pub duration_ms: Option<i64>,
    /// The instance that ran it last.
    pub worker: Option<String>,
    /// Why it failed last, or was buried.
    pub error: Option<String>,
    /// The headers that it was scheduled with.
    pub headers: BTreeMap<String, String>,
    /// Its payload, if it is stored and was [asked for](crate::ArchiveQuery::with_payloads). It can be
    /// any bytes, and is not serialised.
    #[serde(skip)]
    pub payload: Option<Vec<u8>>,
    /// Whether its payload is stored.
    pub has_payload: bool,
    /// The size of its payload, whether it is stored or not.
    pub payload_bytes: u32,
    /// The fencing value of its last lease.
    pub fence: Option<u64>,
    /// The number of its dead letter.
    pub letter: Option<u64>,
    /// Its occurrence, if it recurred.
    #[serde(serialize_with = "optional_time")]
    pub occurrence: Option<SystemTime>,
    /// The header of its record in Redis, with its terms: retries, attempts, timeout.
    pub header: Option<serde_json::Value>,
}

impl ArchivedJob {
    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let headers: Option<Json<BTreeMap<String, String>>> = row.try_get("headers")?;
        Ok(ArchivedJob {
            key: row.try_get("key")?,
            kind: row.try_get("kind")?,
            how: row.try_get("how")?,
            keep_months: unsigned(row.try_get::<_, i16>("keep_months")?.into()),
            ended: row.try_get("ended_at")?,
            accepted: row.try_get("accepted_at")?,
            due: row.try_get("due_at")?,
            begun: row.try_get("begun_at")?,
            attempts: unsigned(row.try_get("attempts")?),
            lag_ms: row.try_get("lag_ms")?,
            duration_ms: row.try_get("duration_ms")?,
            worker: row.try_get("worker")?,
            error: row.try_get("error")?,
            headers: headers.map(|it| it.0).unwrap_or_default(),
            payload: row.try_get("payload")?,
            has_payload: row.try_get("has_payload")?,
            payload_bytes: unsigned(row.try_get("payload_bytes")?),
            fence: row
                .try_get::<_, Option<i64>>("fence")?
                .map(i64::cast_unsigned),
            letter: row
                .try_get::<_, Option<i64>>("letter")?
                .map(i64::cast_unsigned),
            occurrence: row.try_get("occurrence_at")?,
            header: row.try_get("header")?,
        })
    }
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn time<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    Timestamp::try_from(*time)
        .unwrap_or(Timestamp::MAX)
        .serialize(to)
}

fn optional_time<S: Serializer>(it: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    match it {
        Some(it) => time(it, to),
        None => to.serialize_none(),
    }
}
