//! A job that has ended, as it is stored. Any value can be stored: what PostgreSQL would refuse is
//! replaced, so that no job can stop the archive.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use keyfall::JobKey;
use serde_json::Value;

use super::how::How;

/// The most bytes of an error that are stored. PostgreSQL cannot index the words of a text of 1 MiB.
const MOST_ERROR_BYTES: usize = 64 << 10;

/// The longest time for which a record is kept, beside for ever: each time has partitions of its own.
const MOST_MONTHS: u16 = 1_200;

/// A job that has ended. Times are µs since 1970, by the clock of Redis.
#[derive(Debug, Clone)]
pub struct Row {
    /// When it ended; with `key` and `accepted_us`, the identity of the row.
    pub ended_us: i64,
    /// Its name.
    pub key: JobKey,
    /// When it was accepted.
    pub accepted_us: i64,
    /// How it has ended.
    pub how: How,
    /// For how many months it is kept after its end, 0 for ever. It is chosen when the job ends, and
    /// must be the same when the row is handed in again.
    pub keep_months: u16,
    /// When it was due last.
    pub due_us: Option<i64>,
    /// When its last run began.
    pub begun_us: Option<i64>,
    /// The attempts that have ended and count.
    pub attempts: u32,
    /// The instance that has run it last.
    pub worker: Option<String>,
    /// Why it failed last.
    pub error: Option<String>,
    /// The headers that it was scheduled with.
    pub headers: BTreeMap<String, String>,
    /// The header of the record, JSON: with it the job can be scheduled again on the same terms.
    pub header: Option<String>,
    /// Its payload; `None` if it is not to be stored.
    pub payload: Option<Bytes>,
    /// The size of the payload, whether it is stored or not.
    pub payload_bytes: u64,
    /// The fencing value of its last lease.
    pub fence: Option<u64>,
    /// The number of the dead letter.
    pub letter: Option<u64>,
    /// The occurrence of a recurring job.
    pub occurrence_us: Option<i64>,
}

/// A day, in µs.
const DAY_US: i64 = 86_400_000_000;

/// The end of the times that are stored, in 9999; a clock beyond it is broken.
const LAST_US: i64 = 253_402_207_200_000_000;

impl Row {
    pub(super) fn months(&self) -> i16 {
        self.keep_months.min(MOST_MONTHS).cast_signed()
    }

    /// The beginning of the day on which it ended.
    pub(super) fn day(&self) -> i64 {
        let ended = self.ended_us.clamp(0, LAST_US);
        ended - ended % DAY_US
    }

    /// How long after its due time the last run began.
    pub(super) fn lag_ms(&self) -> Option<i64> {
        Some(self.begun_us?.saturating_sub(self.due_us?) / 1000)
    }

    /// How long the last run took.
    pub(super) fn duration_ms(&self) -> Option<i64> {
        Some(self.ended_us.saturating_sub(self.begun_us?) / 1000)
    }

    pub(super) fn error(&self) -> Option<Cow<'_, str>> {
        let error = self.error.as_deref()?;
        if error.len() <= MOST_ERROR_BYTES {
            return Some(text(error));
        }
        let whole = |at: &usize| error.is_char_boundary(*at);
        let end = (0..=MOST_ERROR_BYTES).rev().find(whole)?;
        Some(Cow::Owned(format!("{}…", text(&error[..end]))))
    }

    pub(super) fn headers(&self) -> Option<Value> {
        let pairs = self.headers.iter();
        let headers = pairs.map(|(name, value)| (text(name).into(), text(value).into()));
        (!self.headers.is_empty()).then(|| Value::Object(headers.collect()))
    }

    /// The header; a JSON text of it if it does not parse.
    pub(super) fn header(&self) -> Option<Value> {
        let header = self.header.as_deref()?;
        let parsed = serde_json::from_str(header);
        Some(clean(parsed.unwrap_or_else(|_| header.into())))
    }
}

/// A time that PostgreSQL and its readers can represent.
pub(super) fn time(us: i64) -> SystemTime {
    let since = Duration::from_micros(us.clamp(0, LAST_US).unsigned_abs());
    SystemTime::UNIX_EPOCH + since
}

/// The nearest time that is stored.
pub(super) fn within(it: SystemTime) -> SystemTime {
    it.clamp(time(0), time(LAST_US))
}

/// PostgreSQL stores no NUL in a text: it becomes its symbol.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => Cow::Owned(text.replace('\0', "␀")),
        false => Cow::Borrowed(text),
    }
}

/// Nor in the texts of a `jsonb`.
fn clean(value: Value) -> Value {
    match value {
        Value::String(it) => text(&it).into(),
        Value::Array(items) => items.into_iter().map(clean).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let clean = fields.map(|(name, value)| (text(&name).into_owned(), clean(value)));
            Value::Object(clean.collect())
        }
        other => other,
    }
}
