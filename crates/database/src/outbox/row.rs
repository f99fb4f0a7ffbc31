//! A row of the outbox as a call of Keyfall.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::SignedDuration;
use keyfall::{MaxLateness, NewJob, NumberedCall, RetryPolicy, Rule};
use serde::Deserialize;
use tokio_postgres::Row;

/// The columns of a row, for [`OutboxRow::read`]. The time that is left of a delay is by the clock of
/// the database, which also has written the time of the insert.
pub(super) const COLUMNS: &str = "id, op, key,
    (extract(epoch FROM due) * 1000000)::bigint AS due_us,
    (extract(epoch FROM inserted_at + delay - clock_timestamp()) * 1000)::bigint AS left_ms,
    payload, terms::text";

/// A row of the outbox.
pub(super) struct OutboxRow {
    pub(super) id: i64,
    op: String,
    /// Or why it cannot be read: a database in SQL_ASCII keeps any bytes.
    key: Result<String, String>,
    due_us: Option<i64>,
    left_ms: Option<i64>,
    payload: Option<Vec<u8>>,
    terms: Result<Option<String>, String>,
}

/// The settings of a schedule, with the names that they have over HTTP.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    #[serde(default)]
    headers: BTreeMap<String, String>,
    retry: Option<RetryPolicy>,
    attempts: Option<u32>,
    timeout: Option<SignedDuration>,
    max_lateness: Option<MaxLateness>,
    recurring: Option<Rule>,
    #[serde(rename = "if")]
    condition: Option<Condition>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Condition {
    Absent,
    Present,
}

impl OutboxRow {
    pub(super) fn read(row: &Row) -> Self {
        OutboxRow {
            id: row.get(0),
            op: row.get(1),
            key: row.try_get(2).map_err(|error| format!("`key`: {error}")),
            due_us: row.get(3),
            left_ms: row.get(4),
            payload: row.get(5),
            terms: row.try_get(6).map_err(|error| format!("`terms`: {error}")),
        }
    }

    /// The call. A row that is none keeps its place, with the reason.
    pub(super) fn into_call(self) -> NumberedCall {
        self.call().unwrap_or_else(NumberedCall::invalid)
    }

    fn call(self) -> Result<NumberedCall, String> {
        let key = self.key?;
        let due = self.due_us.map(time);
        let left = self
            .left_ms
            .map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        Ok(match (self.op.as_str(), due, left) {
            ("schedule", ..) => {
                let terms = match &self.terms? {
                    None => Terms::default(),
                    Some(text) => {
                        serde_json::from_str(text).map_err(|error| format!("`terms`: {error}"))?
                    }
                };
                let payload = self.payload.unwrap_or_else(|| b"null".to_vec());
                let job = NewJob::from_bytes(key, payload);
                let job = match (due, left) {
                    (Some(due), _) => job.at(due),
                    (None, Some(left)) => job.after(left),
                    (None, None) => job,
                };
                NumberedCall::schedule(terms.of(job)?)
            }
            ("reschedule", Some(due), _) => NumberedCall::reschedule_at(key, due),
            ("reschedule", None, Some(left)) => NumberedCall::reschedule_after(key, left),
            ("reschedule", None, None) => NumberedCall::reschedule_now(key),
            ("cancel", ..) => NumberedCall::cancel(key),
            (op, ..) => return Err(format!("`op` is {op:?}: schedule, reschedule or cancel")),
        })
    }
}

impl Terms {
    /// The job with these settings.
    fn of(self, mut job: NewJob) -> Result<NewJob, String> {
        for (name, value) in self.headers {
            job = job.header(name, value);
        }
        if let Some(policy) = self.retry {
            job = job.retry(policy);
        }
        if let Some(limit) = self.attempts {
            job = job.attempts(limit);
        }
        if let Some(limit) = self.timeout {
            let limit = Duration::try_from(limit)
                .map_err(|_| "`terms`: `timeout` is negative: write `30s`".to_owned())?;
            job = job.timeout(limit);
        }
        if let Some(MaxLateness { limit, then }) = self.max_lateness {
            job = job.max_lateness(limit, then);
        }
        if let Some(rule) = self.recurring {
            job = job.recurring(rule);
        }
        Ok(match self.condition {
            None => job,
            Some(Condition::Absent) => job.if_absent(),
            Some(Condition::Present) => job.if_present(),
        })
    }
}

/// A time in µs since 1970; one before is refused when the call is sent.
fn time(us: i64) -> SystemTime {
    let since = Duration::from_micros(us.unsigned_abs());
    let time = match us {
        0.. => SystemTime::UNIX_EPOCH.checked_add(since),
        _ => SystemTime::UNIX_EPOCH.checked_sub(since),
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}
