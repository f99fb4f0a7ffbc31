//! The stored record of a job, three parts: `header JSON \n accepted-ms step@ms … \n payload`.
//!
//! Clients compose and read the header; scripts append the steps; the payload is handed on as it
//! came, byte for byte. The header is open: fields that this version does not know are kept. The
//! reason for each part is in `docs/design.md`.

#[cfg(test)]
mod properties;

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::JobKey;
use crate::lateness::MaxLateness;
use crate::recurrence::{Plan, Recurring, Shift};
use crate::retry::RetryPolicy;
use crate::settings::MAX_DELAY;
use crate::time::UnixMs;

/// The newest version of the format that this crate reads. It refuses a record of a newer version.
pub(crate) const VERSION: u32 = 3;

/// The version of a record that every version of this crate can serve.
const FIRST: u32 = 1;

/// The version of a record whose job recurs: a worker that knows nothing of that would end it.
const RECURRING: u32 = 2;

/// The version of a record that is the plan of a series: a worker that knows nothing of that would
/// hand it to a handler.
const PLAN: u32 = 3;

/// The header with which nearly every job is scheduled, a constant so that it need not be rendered.
pub(crate) const PLAIN: &str = r#"{"v":1}"#;

/// The beginning of the plain header after a script has added its microseconds. Nearly every stored
/// record begins with it, so such headers are read without a JSON parser.
const TIMED: &str = r#"{"v":1,"us":"#;

/// The first line of a record: all that it says of its job beside steps and payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The occurrence, if the job recurs. The first field: scripts look for it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recur: Option<Box<Recurring>>,
    /// The version of the format.
    v: u32,
    /// The microseconds between the millisecond in the second line and the acceptance of the job, 0
    /// to 999; written by scripts. 0 in records of versions that did not write it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) us: u32,
    /// The number of attempts that have ended and count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) attempts: u32,
    /// The reason why the last attempt failed, or why the job was buried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The reason why the last run snoozed, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) put_off: Option<String>,
    /// A digest of the value of the plain key from which the job was adopted; written by
    /// `lua/adopt.lua`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adopted: Option<String>,
    /// The reason why that value cannot be a payload, such as its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unusable: Option<String>,
    /// The plan, if the job is the plan of a series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    series: Option<Box<Plan>>,
    /// The change of the due time by quiet hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shift: Option<Box<Shift>>,
    /// The headers that the job was scheduled with.
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    pub(crate) headers: Headers,
    /// The span in which the last attempt ended, if it was traced, in the format of `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<String>,
    /// The order number among jobs of several ledgers that stand for the same reminder, of which
    /// only the latest is to stay; read by `lua/lib/overtaken.lua`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<u64>,
    /// The job's own policy, attempts and timeout.
    #[serde(flatten)]
    pub(crate) terms: Terms,
    /// Fields that a newer version wrote, which are written back unchanged.
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// The terms that a job brings itself. They take precedence over its route's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Terms {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryPolicy>,
    /// The number of attempts, 1 or more, under the policy of the job or of its route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_attempts: Option<u32>,
    /// The limit of one run, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    /// The limit of lateness, and what becomes of a job beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_lateness: Option<MaxLateness>,
}

/// A record, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The first line.
    pub(crate) header: Header,
    /// The millisecond in which `schedule` accepted the job.
    pub(crate) accepted: UnixMs,
    /// The last steps of the job, the oldest first; scripts keep eight.
    pub(crate) steps: Vec<Step>,
    /// The payload; shares the memory of the record.
    pub(crate) payload: Bytes,
}

/// One step in the life of a job; [`JobView::steps`](crate::JobView::steps) returns the last eight.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The name of the step: `postponed`, `fired`, `updated`, `failed`, `again`, `snoozed`,
    /// `returned`, `buried` or `requeued`. Newer versions may write others.
    pub what: String,
    /// The time of the step, by the clock of Redis, in whole milliseconds.
    pub at: SystemTime,
}

impl Record {
    /// When a worker gave the job back without a result, if that was its last step.
    #[cfg(feature = "worker")]
    pub(crate) fn given_back_at(&self) -> Option<UnixMs> {
        let last = self.steps.last().filter(|step| step.what == "returned")?;
        UnixMs::from_system(last.at)
    }
}

/// The fault of a record that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordFault {
    /// The ledger holds no record of the job.
    Missing,
    /// No version wrote it like this; the text names the fault.
    Damaged(String),
    /// A newer version, with this number, wrote it.
    Newer(u32),
}

impl Terms {
    /// Checks the terms of the job `key`, which has no limit of lateness. A timeout is rounded up to
    /// whole milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`], naming the option, the rule and the remedy.
    pub(crate) fn new(
        key: &JobKey,
        retry: Option<RetryPolicy>,
        timeout: Option<Duration>,
        max_attempts: Option<u32>,
    ) -> Result<Self> {
        let invalid = |fault| {
            Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("{key}: {fault}"),
            ))
        };
        if max_attempts == Some(0) {
            return invalid(
                "`attempts` is 0, and the first run counts as one: write 1 or more".to_owned(),
            );
        }
        if let Some(limit) = timeout
            && !(Duration::from_millis(1)..=MAX_DELAY).contains(&limit)
        {
            return invalid(format!(
                "`timeout` is {limit:?}, and it is from 1 ms to 10 years: is the unit right?"
            ));
        }
        let rounded_up = |limit: Duration| limit.as_nanos().div_ceil(1_000_000);
        Ok(Terms {
            retry,
            max_attempts,
            timeout_ms: timeout.and_then(|limit| u64::try_from(rounded_up(limit)).ok()),
            max_lateness: None,
        })
    }

    /// The same terms of the job `key` with a limit of lateness.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`], naming the option, the rule and the remedy.
    pub(crate) fn max_lateness(mut self, key: &JobKey, it: Option<MaxLateness>) -> Result<Self> {
        let checked = it.map(MaxLateness::check).transpose();
        self.max_lateness = checked
            .map_err(|error| Error::new(ErrorKind::InvalidSetting, format!("{key}: {error}")))?;
        Ok(self)
    }

    /// The policy of the job, on a route that has the policy `of_route`: its own or the route's,
    /// with its own number of attempts.
    #[cfg(feature = "worker")]
    pub(crate) fn policy<'a>(&'a self, of_route: &'a RetryPolicy) -> Cow<'a, RetryPolicy> {
        let policy = self.retry.as_ref().unwrap_or(of_route);
        match self.max_attempts {
            None => Cow::Borrowed(policy),
            Some(limit) => Cow::Owned(policy.clone().attempts(limit)),
        }
    }

    /// The limit of one run, if the job brings one.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }
}

impl Header {
    /// The header of a job that was never tried.
    pub(crate) fn new(headers: Headers, terms: Terms) -> Self {
        Header {
            recur: None,
            v: FIRST,
            us: 0,
            attempts: 0,
            error: None,
            put_off: None,
            adopted: None,
            unusable: None,
            series: None,
            shift: None,
            headers,
            before: None,
            order: None,
            terms,
            other: Map::new(),
        }
    }

    /// The header of a job that was tried before: `attempts` have ended, the last one with `error`.
    pub(crate) fn told(
        headers: Headers,
        terms: Terms,
        attempts: u32,
        error: Option<String>,
    ) -> Self {
        Header {
            attempts,
            error,
            ..Header::new(headers, terms)
        }
    }

    /// The same header with this occurrence, or without one.
    pub(crate) fn with_recur(mut self, recur: Option<Recurring>) -> Self {
        self.v = if recur.is_some() { RECURRING } else { FIRST };
        self.recur = recur.map(Box::new);
        self
    }

    /// The occurrence, if the job recurs.
    pub(crate) fn recur(&self) -> Option<&Recurring> {
        self.recur.as_deref()
    }

    /// The same header with this plan, or without one.
    pub(crate) fn with_plan(mut self, plan: Option<Plan>) -> Self {
        self.v = if plan.is_some() { PLAN } else { FIRST };
        self.series = plan.map(Box::new);
        self
    }

    /// The plan, if the job is the plan of a series.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        self.series.as_deref()
    }

    /// The header of the next occurrence, as a line: like a job that is accepted now.
    #[cfg(feature = "worker")]
    pub(crate) fn followed_by(&self, next: Recurring) -> String {
        let mut header = self.untried().with_recur(Some(next));
        header.us = 0;
        header.to_line().into_owned()
    }

    /// Whether every field but `v` and `us` is empty.
    fn is_plain(&self) -> bool {
        self.recur.is_none()
            && self.attempts == 0
            && self.error.is_none()
            && self.put_off.is_none()
            && self.adopted.is_none()
            && self.unusable.is_none()
            && self.series.is_none()
            && self.shift.is_none()
            && self.headers.is_empty()
            && self.before.is_none()
            && self.order.is_none()
            && self.terms == Terms::default()
            && self.other.is_empty()
    }

    /// The same header for a job that begins anew: without attempts and without the outcome of the
    /// last.
    pub(crate) fn untried(&self) -> Self {
        Header {
            attempts: 0,
            error: None,
            put_off: None,
            before: None,
            shift: None,
            ..self.clone()
        }
    }

    /// The header as one line of JSON, without the line end.
    pub(crate) fn to_line(&self) -> Cow<'static, str> {
        if self.is_plain() {
            return match self.us {
                0 => PLAIN.into(),
                us => format!("{TIMED}{us}}}").into(),
            };
        }
        let line = serde_json::to_string(self);
        line.expect("a map of strings and numbers is JSON").into()
    }

    /// Reads the reason why a job failed or was buried from the line of its header. `None` if there
    /// is none or the line cannot be read.
    #[cfg(feature = "worker")]
    pub(crate) fn reason(line: &str) -> Option<String> {
        Header::parse(line.as_bytes()).ok()?.error
    }

    /// Reads the reason of a snooze from the line of a header. `None` if there is none or the line
    /// cannot be read.
    #[cfg(feature = "worker")]
    pub(crate) fn put_off(line: &str) -> Option<String> {
        Header::parse(line.as_bytes()).ok()?.put_off
    }

    /// Reads the last attempt from the line of a header: its number, and its failure. `None` if it
    /// did not fail or the line cannot be read.
    #[cfg(feature = "worker")]
    pub(crate) fn told_by(line: &str) -> Option<(u32, String)> {
        let header = Header::parse(line.as_bytes()).ok()?;
        Some((header.attempts, header.error?))
    }

    /// Reads the line of a header.
    ///
    /// # Errors
    /// [`RecordFault::Newer`] for a version above [`VERSION`], [`RecordFault::Damaged`] for any
    /// other text that is no header.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, RecordFault> {
        if line == PLAIN.as_bytes() {
            return Ok(Header::default());
        }
        if let Some(us) = plain_us(line) {
            return Ok(Header {
                us,
                ..Header::default()
            });
        }
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let damaged = |error: serde_json::Error| RecordFault::Damaged(error.to_string());
        let Version { v } = serde_json::from_slice(line).map_err(damaged)?;
        if v > VERSION {
            return Err(RecordFault::Newer(v));
        }
        serde_json::from_slice(line).map_err(damaged)
    }
}

impl Default for Header {
    fn default() -> Self {
        Header::new(Headers::new(), Terms::default())
    }
}

impl Record {
    /// The time at which the job was accepted, to the microsecond. No two jobs of one name share
    /// it.
    pub(crate) fn first_scheduled_at(&self) -> SystemTime {
        self.accepted.to_system() + Duration::from_micros(self.header.us.into())
    }

    /// Takes a record apart. The payload is not copied.
    ///
    /// # Errors
    /// [`RecordFault::Missing`] for no bytes at all, otherwise as [`Header::parse`].
    pub(crate) fn parse(bytes: impl Into<Bytes>) -> Result<Self, RecordFault> {
        let bytes: Bytes = bytes.into();
        if bytes.is_empty() {
            return Err(RecordFault::Missing);
        }
        let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
        let (Some(header), Some(steps), Some(payload)) = (lines.next(), lines.next(), lines.next())
        else {
            return Err(RecordFault::Damaged("it has no header".into()));
        };
        let (accepted, steps) = parse_steps(steps)?;
        Ok(Record {
            header: Header::parse(header)?,
            accepted,
            steps,
            payload: bytes.slice_ref(payload),
        })
    }
}

/// The microseconds in a header that has no other field. `None` for any other header.
fn plain_us(line: &[u8]) -> Option<u32> {
    let digits = line.strip_prefix(TIMED.as_bytes())?.strip_suffix(b"}")?;
    let is_json = digits == b"0" || digits.first().is_some_and(|it| (b'1'..=b'9').contains(it));
    is_json.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

/// Reads the second line: the time of acceptance and the steps.
fn parse_steps(line: &[u8]) -> Result<(UnixMs, Vec<Step>), RecordFault> {
    let damaged = || RecordFault::Damaged("its steps do not parse".into());
    let line = std::str::from_utf8(line).map_err(|_| damaged())?;
    let mut words = line.split(' ');
    let accepted = words.next().and_then(|ms| ms.parse().ok());
    let steps = words.map(|word| {
        let (what, at) = word.split_once('@')?;
        Some(Step {
            what: what.into(),
            at: UnixMs(at.parse().ok()?).to_system(),
        })
    });
    Ok((
        UnixMs(accepted.ok_or_else(damaged)?),
        steps.collect::<Option<_>>().ok_or_else(damaged)?,
    ))
}

// `skip_serializing_if` passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
impl Header {
    /// Whether the job was adopted from a plain key.
    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl RecordFault {
    /// The error for a caller that needed the record of this job: [`ErrorKind::Incompatible`] for a
    /// newer version, [`ErrorKind::Damaged`] otherwise.
    pub(crate) fn of(&self, key: &JobKey) -> Error {
        let (kind, remedy) = match self {
            RecordFault::Newer(_) => (ErrorKind::Incompatible, ": use the version that wrote it"),
            _ => (ErrorKind::Damaged, ""),
        };
        Error::new(kind, format!("{key}: {self}{remedy}"))
    }
}

impl fmt::Display for RecordFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordFault::Missing => f.write_str("the ledger holds no record of this job"),
            RecordFault::Damaged(how) => write!(f, "the record of this job is damaged: {how}"),
            RecordFault::Newer(version) => write!(
                f,
                "the record of this job has version {version}, and this program knows {VERSION}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_record_is_taken_apart_without_touching_the_payload() {
        let record = Record::parse(&b"{\"v\":1}\n1763712345678\na\nb\0\xff"[..]).unwrap();
        assert_eq!(record.header, Header::default());
        assert_eq!(record.accepted, UnixMs(1_763_712_345_678));
        assert_eq!(&record.payload[..], b"a\nb\0\xff");
        assert!(record.steps.is_empty());
    }

    #[test]
    fn unknown_fields_of_a_newer_header_are_kept() {
        let line = r#"{"v":1,"attempts":2,"tenant":{"id":7,"share":123.45678901234567}}"#;
        let header = Header::parse(line.as_bytes()).unwrap();
        assert_eq!(header.attempts, 2);
        assert_eq!(header.to_line(), line);
    }

    #[test]
    fn the_plain_header_equals_the_serialised_one() {
        let header = Header::default();
        assert_eq!(serde_json::to_string(&header).unwrap(), PLAIN);
        assert_eq!(header.to_line(), PLAIN);
    }

    #[test]
    fn a_header_with_only_a_time_is_written_alike_by_serialiser_and_scripts() {
        for us in [0, 7, 999] {
            let header = Header {
                us,
                ..Header::default()
            };
            let line = header.to_line();
            assert_eq!(serde_json::to_string(&header).unwrap(), line);
            assert_eq!(Header::parse(line.as_bytes()), Ok(header.clone()));
            let scripted = format!("{{\"v\":1,\"us\":{us}}}");
            assert_eq!(Header::parse(scripted.as_bytes()), Ok(header));
        }
        // Not JSON, so the short cut must refuse them too.
        for line in [
            r#"{"v":1,"us":}"#,
            r#"{"v":1,"us":+7}"#,
            r#"{"v":1,"us":07}"#,
        ] {
            assert!(Header::parse(line.as_bytes()).is_err(), "{line}");
        }
        let more = Header::parse(br#"{"v":1,"us":42,"attempts":2}"#).unwrap();
        assert_eq!((more.us, more.attempts), (42, 2));
    }

    #[test]
    fn terms_are_written_in_readable_form_and_read_back() {
        let retry = RetryPolicy::ladder([15, 180].map(Duration::from_secs)).unwrap();
        let key: JobKey = "a:b:c:d".parse().unwrap();
        let timeout = Some(Duration::from_micros(1_500_001));
        let terms = Terms::new(&key, Some(retry), timeout, Some(2)).unwrap();
        let header = Header::new(Headers::new(), terms);
        let line = r#"{"v":1,"retry":{"ladder":["15s","3m"]},"max_attempts":2,"timeout_ms":1501}"#;
        assert_eq!(header.to_line(), line);
        assert_eq!(Header::parse(line.as_bytes()).unwrap(), header);
    }

    #[test]
    fn a_fresh_start_clears_only_attempts_and_error() {
        let kept = r#""headers":{"a":"1"},"max_attempts":2,"tenant":7}"#;
        let line = format!(r#"{{"v":1,"attempts":3,"error":"no",{kept}"#);
        let untried = Header::parse(line.as_bytes()).unwrap().untried();
        assert_eq!(untried.to_line(), format!(r#"{{"v":1,{kept}"#));
    }

    #[test]
    fn faults_are_distinguished() {
        let fault = |bytes: &'static [u8]| Record::parse(bytes).unwrap_err();
        assert_eq!(fault(b""), RecordFault::Missing);
        assert_eq!(fault(b"{\"v\":4,\"x\":1}\n1\n"), RecordFault::Newer(4));
        assert!(matches!(fault(b"payload"), RecordFault::Damaged(_)));
        assert!(matches!(fault(b"{}\n1\n"), RecordFault::Damaged(_)));
        assert!(matches!(
            fault(b"{\"v\":1}\nsoon\n"),
            RecordFault::Damaged(_)
        ));
        assert!(matches!(
            fault(b"{\"v\":1}\n1 x\n"),
            RecordFault::Damaged(_)
        ));
    }

    #[test]
    fn steps_come_in_order() {
        let record = Record::parse(&b"{\"v\":1}\n1 postponed@2 failed@3\n"[..]).unwrap();
        let what: Vec<_> = record.steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(what, ["postponed", "failed"]);
    }
}
