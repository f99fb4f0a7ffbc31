//! Jobs as many systems keep them: a sorted set of due times, and a hash of payloads. Both are
//! read, and left as they are.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::ValueEnum;
use keyfall::JobKey;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::entry::Entry;
use super::template::Template;
use super::{Batch, Read};
use crate::cli::stop::Stop;
use crate::daemon::shapes::Time;

/// How long the source may take: it may be busy, and what it is asked for is much.
const PATIENCE: Duration = Duration::from_secs(30);

/// About how many members come at a time.
const MEMBERS: usize = 500;

/// Milliseconds before this were in 1973: whoever has them has seconds.
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

pub(super) struct Zset {
    redis: MultiplexedConnection,
    due_key: String,
    payload_key: String,
    unit: Unit,
    template: Template,
    /// Of `ZSCAN`; `None` when all was read.
    cursor: Option<u64>,
    /// How many there were at the beginning.
    pub(super) size: u64,
}

impl Zset {
    pub(super) async fn open(
        source: &redis::Client,
        (due_key, payload_key): (String, String),
        unit: Unit,
        template: Template,
        after: Option<&str>,
    ) -> anyhow::Result<Self> {
        let cursor = match after {
            Some("end") => None,
            text => Some(text.unwrap_or("0").parse().map_err(|_| {
                Stop::wrong("`--after` is no place: use one that such an import named")
            })?),
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connected = source.get_multiplexed_async_connection_with_config(&config);
        let mut redis = connected
            .await
            .context("the Redis to import from cannot be reached")?;
        for (key, wanted) in [(&due_key, "zset"), (&payload_key, "hash")] {
            let found: String = redis::cmd("TYPE").arg(key).query_async(&mut redis).await?;
            match found.as_str() {
                "none" => bail!(Stop::absent(format!(
                    "there is no key {key} to import from"
                ))),
                found if found != wanted => {
                    bail!("the key {key} is a {found}, and it has to be a {wanted}")
                }
                _ => {}
            }
        }
        let size = redis::cmd("ZCARD")
            .arg(&due_key)
            .query_async(&mut redis)
            .await?;
        Ok(Zset {
            redis,
            due_key,
            payload_key,
            unit,
            template,
            cursor,
            size,
        })
    }

    /// `ZSCAN` meets all that stays while it goes; it may meet some twice, which are there by
    /// then.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        let Some(cursor) = self.cursor else {
            return Ok(None);
        };
        let (next, members): (u64, Vec<(Vec<u8>, f64)>) = redis::cmd("ZSCAN")
            .arg(&self.due_key)
            .arg(cursor)
            .arg("COUNT")
            .arg(MEMBERS)
            .query_async(&mut self.redis)
            .await?;
        let mut payloads: Vec<Option<Vec<u8>>> = Vec::new();
        if !members.is_empty() {
            let mut call = redis::cmd("HMGET");
            call.arg(&self.payload_key);
            for (member, _) in &members {
                call.arg(member);
            }
            payloads = call.query_async(&mut self.redis).await?;
        }
        self.cursor = (next != 0).then_some(next);
        let size = members.len();
        let read = |((member, score), payload): ((Vec<u8>, f64), Option<Vec<u8>>)| Read {
            place: format!(
                "the member {}",
                String::from_utf8_lossy(&member).escape_debug()
            ),
            job: self.entry(&member, score, payload),
        };
        Ok(Some(Batch {
            jobs: members.into_iter().zip(payloads).map(read).collect(),
            after: self
                .cursor
                .map_or("end".to_owned(), |next| next.to_string()),
            size,
        }))
    }

    fn entry(&self, member: &[u8], score: f64, payload: Option<Vec<u8>>) -> Result<Entry, String> {
        let member = std::str::from_utf8(member).map_err(|_| "it is not UTF-8".to_owned())?;
        let key = self.template.fill(member)?;
        let key = JobKey::parse(&key).map_err(|error| error.to_string())?;
        let due = Time(due(score, self.unit)?);
        let payload =
            payload.ok_or_else(|| format!("it has no payload in {}", self.payload_key))?;
        Ok(Entry::new(key, due, &payload))
    }
}

/// Rounded up, so that nothing is early.
fn due(score: f64, unit: Unit) -> Result<SystemTime, String> {
    let ms = match unit {
        Unit::S => (score * 1000.0).ceil(),
        Unit::Ms => score.ceil(),
    };
    if !(EARLIEST_MS..=LATEST_MS).contains(&ms) {
        return Err(format!(
            "its score {score} is no due time of our days: is `--due-unit` right?"
        ));
    }
    Ok(UNIX_EPOCH + Duration::from_millis(ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_read_in_the_unit_that_was_stated() {
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
