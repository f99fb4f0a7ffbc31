//! The layouts in which other systems keep jobs beside a sorted set of due times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use keyfall::JobKey;
use redis::Cmd;
use serde::Deserialize;

use super::Fault;
use super::entry::Entry;
use super::foreign::Delayed;
use super::template::Template;
use keyfall_daemon::classic::{Names, TTR};
use keyfall_daemon::shapes::Time;

/// The earliest plausible due time, in 1973: a smaller score is a number of seconds.
const EARLIEST_MS: f64 = 100_000_000_000.0;

/// The end of the calendar.
const LATEST_MS: f64 = 253_402_300_799_000.0;

#[derive(ValueEnum, Debug, Clone, Copy)]
pub(super) enum Unit {
    /// Seconds since 1970
    S,
    /// Milliseconds since 1970
    Ms,
}

/// The data of the members.
pub(super) enum Layout {
    /// A hash holds the payloads of the members.
    Hash {
        payload_key: String,
        unit: Unit,
        template: Template,
    },
    /// The members are ids of a classic delay queue, which keeps each job under its bare id; the
    /// scores are seconds.
    Classic(Names),
    /// Jobs of another system.
    Foreign(Delayed),
}

/// A job as such queues keep it, in MessagePack.
#[derive(Deserialize)]
struct Record {
    #[serde(rename = "Topic", alias = "topic")]
    topic: String,
    #[serde(rename = "Id", alias = "id")]
    id: String,
    /// When it is due, in seconds since 1970.
    #[serde(rename = "Delay", alias = "delay")]
    delay: i64,
    /// In seconds.
    #[serde(rename = "TTR", alias = "ttr")]
    ttr: i64,
    #[serde(rename = "Body", alias = "body")]
    body: String,
}

impl Layout {
    /// A key that has to exist, and its type.
    pub(super) fn needs(&self) -> Option<(&str, &'static str)> {
        match self {
            Layout::Hash { payload_key, .. } => Some((payload_key, "hash")),
            Layout::Classic(_) | Layout::Foreign(_) => None,
        }
    }

    /// The command that reads the data of a member, unless it holds the job itself.
    pub(super) fn ask(&self, member: &[u8]) -> Option<Cmd> {
        match self {
            Layout::Hash { payload_key, .. } => {
                Some(redis::cmd("HMGET").arg(payload_key).arg(member).to_owned())
            }
            Layout::Classic(_) => Some(redis::cmd("MGET").arg(member).to_owned()),
            Layout::Foreign(delayed) => delayed.ask(member),
        }
    }

    /// The job of a member, or its fault. `None` if the job has ended there.
    pub(super) fn entry(
        &self,
        member: &[u8],
        score: f64,
        kept: &[Option<Vec<u8>>],
    ) -> Option<Result<Entry, Fault>> {
        let first = || kept.first().and_then(Option::as_deref);
        match self {
            Layout::Hash {
                payload_key,
                unit,
                template,
            } => {
                let due = due(score, *unit);
                let read = in_hash(member, due, first(), payload_key, template);
                Some(read.map_err(Fault::Invalid))
            }
            // Such a queue removes the member when its time comes, and the job when it is finished
            // or deleted.
            Layout::Classic(names) => Some(classic(names, score, first()?).map_err(Fault::Invalid)),
            Layout::Foreign(delayed) => delayed.entry(member, score, kept),
        }
    }
}

fn in_hash(
    member: &[u8],
    due: Result<SystemTime, String>,
    payload: Option<&[u8]>,
    payload_key: &str,
    template: &Template,
) -> Result<Entry, String> {
    let member = std::str::from_utf8(member).map_err(|_| "it is not UTF-8".to_owned())?;
    let key = template.fill(member)?;
    let key = JobKey::parse(&key).map_err(|error| error.to_string())?;
    let due = Time(due?);
    let payload = payload.ok_or_else(|| format!("it has no payload in {payload_key}"))?;
    Ok(Entry::new(key, due, payload))
}

fn classic(names: &Names, score: f64, kept: &[u8]) -> Result<Entry, String> {
    let job: Record = rmp_serde::from_slice(kept)
        .map_err(|error| format!("the value under its id is not a job in MessagePack: {error}"))?;
    let kind = names.kind(&job.topic).map_err(|error| error.to_string())?;
    let key = Names::key(&kind, &job.id).map_err(|error| error.to_string())?;
    // A consumer may have the job, or a newer push may have made it later: the later time counts.
    let due = due(score.max(job.delay as f64), Unit::S)?;
    let entry = Entry::new(key, Time(due), job.body.as_bytes());
    Ok(entry.header(TTR, job.ttr.to_string()))
}

/// Rounded up, so that no job is early.
pub(super) fn due(score: f64, unit: Unit) -> Result<SystemTime, String> {
    let ms = match unit {
        Unit::S => (score * 1000.0).ceil(),
        Unit::Ms => score.ceil(),
    };
    if !(EARLIEST_MS..=LATEST_MS).contains(&ms) {
        return Err(format!(
            "its score {score} is not a plausible due time: is `--due-unit` right?"
        ));
    }
    Ok(UNIX_EPOCH + Duration::from_millis(ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the library of such a queue writes it.
    const KEPT: &[u8] = b"\x85\xa5Topic\xa1t\xa2Id\xa3a:1\xa5Delay\xd3\0\0\0\0\x69\x20\x1c\x59\
        \xa3TTR\xd3\0\0\0\0\0\0\0\x5a\xa4Body\xa2hi";

    #[test]
    fn a_job_of_a_classic_queue_is_read_from_its_record() {
        let layout = Layout::Classic(Names::new("app1:queue"));
        let read = |score, kept: &[u8]| layout.entry(b"a:1", score, &[Some(kept.into())]).unwrap();
        let due = |score| {
            read(score, KEPT)
                .unwrap()
                .due()
                .0
                .duration_since(UNIX_EPOCH)
        };
        assert_eq!(due(1_763_712_000.0).unwrap().as_secs(), 0x6920_1c59);
        assert_eq!(due(1_763_799_999.0).unwrap().as_secs(), 1_763_799_999);
        let entry = read(1_763_712_345.0, KEPT).unwrap();
        assert_eq!(entry.key.as_str(), "app1:queue:t:a%3A1");
        let line = String::from_utf8(entry.restored(false).unwrap()).unwrap();
        assert!(line.contains(r#""headers":{"ttr":"90"}"#), "{line}");
        let Err(Fault::Invalid(told)) = read(1_763_712_345.0, b"no job") else {
            panic!("it was read");
        };
        assert!(told.contains("MessagePack"), "{told}");
        assert!(layout.entry(b"a:1", 1.0, &[None]).is_none());
    }

    #[test]
    fn scores_are_read_in_the_stated_unit() {
        let at = |ms| Ok(UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(due(1_763_712_345.0, Unit::S), at(1_763_712_345_000));
        assert_eq!(due(1_763_712_345.5, Unit::S), at(1_763_712_345_500));
        assert_eq!(due(1_763_712_345_678.0, Unit::Ms), at(1_763_712_345_678));
        for (score, unit) in [
            (1_763_712_345.0, Unit::Ms),
            (1_763_712_345_678.0, Unit::S),
            (f64::INFINITY, Unit::S),
            (f64::NAN, Unit::Ms),
            (-1.0, Unit::S),
        ] {
            assert!(due(score, unit).unwrap_err().contains("--due-unit"));
        }
    }
}
