//! What is stored of one job: `header JSON \n accepted-ms step@ms … \n payload`.
//!
//! The header is open: fields that this version does not know are kept. The payload is
//! handed on as it came, byte for byte. Scripts append the steps.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::headers::Headers;
use crate::time::UnixMs;

/// The version of the format that this crate writes. A record of a newer one is left to
/// those who know it.
const VERSION: u32 = 1;

/// The header of nearly every record, so that it is neither rendered nor parsed.
const PLAIN: &str = r#"{"v":1}"#;

/// What a record says of its job beside the payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    v: u32,
    /// The attempts that have ended, counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) attempts: u32,
    /// How the last attempt failed, or why the job was buried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Headers::is_empty")]
    pub(crate) headers: Headers,
    /// What a newer version wrote.
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// A record, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) header: Header,
    /// When `schedule` accepted the job.
    pub(crate) accepted: UnixMs,
    /// What happened to it lately, the oldest first.
    pub(crate) steps: Vec<Step>,
    pub(crate) payload: Bytes,
}

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// What: `postponed`, `fired`, `updated`, `failed`, `again`, `snoozed`, `returned`, `buried`
    /// or `requeued`.
    pub what: String,
    /// When, by Redis' clock.
    pub at: SystemTime,
}

/// Why a record cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecordFault {
    /// Nothing is stored for the job.
    Missing,
    /// It is not what any version wrote.
    Damaged(String),
    /// A newer version wrote it.
    Newer(u32),
}

impl Header {
    pub(crate) fn new(headers: Headers) -> Self {
        Header {
            v: VERSION,
            attempts: 0,
            error: None,
            headers,
            other: Map::new(),
        }
    }

    /// The same header for a job that begins anew: no attempts, and no error of the last.
    pub(crate) fn untried(&self) -> Self {
        Header {
            attempts: 0,
            error: None,
            ..self.clone()
        }
    }

    /// One line of JSON.
    pub(crate) fn to_line(&self) -> String {
        if self.attempts == 0
            && self.error.is_none()
            && self.headers.is_empty()
            && self.other.is_empty()
        {
            return PLAIN.into();
        }
        serde_json::to_string(self).expect("a map of strings and numbers is JSON")
    }

    fn parse(line: &[u8]) -> Result<Self, RecordFault> {
        if line == PLAIN.as_bytes() {
            return Ok(Header::new(Headers::new()));
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

impl Record {
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

// `skip_serializing_if` calls with a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u32) -> bool {
    *number == 0
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
        assert_eq!(record.header, Header::new(Headers::new()));
        assert_eq!(record.accepted, UnixMs(1_763_712_345_678));
        assert_eq!(&record.payload[..], b"a\nb\0\xff");
        assert!(record.steps.is_empty());
    }

    #[test]
    fn what_a_newer_version_added_to_the_header_is_kept() {
        let line = r#"{"v":1,"attempts":2,"tenant":{"id":7}}"#;
        let header = Header::parse(line.as_bytes()).unwrap();
        assert_eq!(header.attempts, 2);
        assert_eq!(header.to_line(), line);
    }

    #[test]
    fn the_plain_header_is_what_the_serialiser_writes() {
        let header = Header::new(Headers::new());
        assert_eq!(serde_json::to_string(&header).unwrap(), PLAIN);
        assert_eq!(header.to_line(), PLAIN);
    }

    #[test]
    fn faults_are_told_apart() {
        let fault = |bytes: &'static [u8]| Record::parse(bytes).unwrap_err();
        assert_eq!(fault(b""), RecordFault::Missing);
        assert_eq!(fault(b"{\"v\":2,\"x\":1}\n1\n"), RecordFault::Newer(2));
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
