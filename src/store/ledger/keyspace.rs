//! Search for plain keys of other programs, for adoption. One instance at a time searches a server,
//! page by page. The progress of each glob is stored, so that another instance can go on with it.

use std::time::{Duration, Instant};

use redis::Value;

use crate::error::Result;
use crate::key::JobKey;
use crate::store::{Ledger, Server, from_value};
use crate::time::UnixMs;

/// About how many keys of the database one page looks at.
const PAGE: usize = 500;

/// The progress of the search for one glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The start of the search by the clock of Redis, Unix milliseconds.
    pub(crate) began: UnixMs,
    /// The cursor of the next page; `None` if the search has ended.
    pub(crate) cursor: Option<String>,
}

/// The key of an adopted job, as Redis has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainKey {
    /// There is no such key.
    Missing,
    /// It has no time to live.
    Lasting,
    /// It expires.
    Timed {
        /// The time to live that is left.
        left: Duration,
        /// Whether it holds the payload of the job.
        is_same: bool,
    },
}

impl Ledger {
    /// Compares the key of a job with this payload. `None` if this user may not read it.
    pub(crate) async fn plain_key(
        &self,
        key: &JobKey,
        payload: &[u8],
        until: Instant,
    ) -> Result<Option<PlainKey>> {
        let mut both = redis::pipe();
        both.cmd("PTTL").arg(key.as_str());
        // One byte more than the payload, to notice a longer value.
        let more = payload.len();
        both.cmd("GETRANGE").arg(key.as_str()).arg(0).arg(more);
        let answers = self.server.each(&mut both, until).await?;
        let is_same = match answers.get(1) {
            Some(Value::BulkString(value)) => value == payload,
            _ => false,
        };
        Ok(match answers.first() {
            Some(Value::Int(-2)) => Some(PlainKey::Missing),
            Some(Value::Int(-1)) => Some(PlainKey::Lasting),
            Some(Value::Int(ms)) => Some(PlainKey::Timed {
                left: Duration::from_millis(ms.unsigned_abs()),
                is_same,
            }),
            _ => None,
        })
    }

    /// The time of its server, rounded down to milliseconds.
    pub(crate) async fn time(&self, until: Instant) -> Result<UnixMs> {
        Ok(self.server.time(until).await?.floor_ms())
    }
}

impl Server {
    /// One page of the keys that match a glob, and the cursor of the next page, `None` at the end.
    /// The first cursor is `0`. Names that are not UTF-8 are left out. As with every `SCAN`, a page
    /// may be empty, and a key may come twice.
    pub(crate) async fn scan_keys(
        &self,
        glob: &str,
        cursor: &str,
        until: Instant,
    ) -> Result<(Option<String>, Vec<String>)> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(glob);
        scan.arg("COUNT").arg(PAGE);
        let (next, keys): (String, Vec<Vec<u8>>) = from_value(self.command(&scan, until).await?)?;
        // A name that is not UTF-8 is not a job key.
        let keys = keys
            .into_iter()
            .filter_map(|key| String::from_utf8(key).ok());
        Ok((going_on(next), keys.collect()))
    }

    /// The keys among these that do not exist.
    pub(crate) async fn missing_of(
        &self,
        keys: Vec<JobKey>,
        until: Instant,
    ) -> Result<Vec<JobKey>> {
        if keys.is_empty() {
            // The client library waits for the answers of a pipeline that has none.
            return Ok(keys);
        }
        let mut looks = redis::pipe();
        for key in &keys {
            looks.cmd("PTTL").arg(key.as_str());
        }
        let left: Vec<i64> = from_value(self.pipeline(&looks, until).await?)?;
        let looked = keys.into_iter().zip(left);
        Ok(looked
            .filter(|(_, left)| *left == -2)
            .map(|(key, _)| key)
            .collect())
    }

    /// Takes the lock of the search for `length`, or extends it. Returns whether this instance has
    /// the lock; no other instance searches meanwhile. The lock expires by itself if the instance
    /// dies.
    pub(crate) async fn may_search(
        &self,
        instance: &str,
        length: Duration,
        until: Instant,
    ) -> Result<bool> {
        let name = self.names.searching();
        let mut take = redis::cmd("SET");
        take.arg(&name).arg(instance).arg("NX");
        take.arg("PX").arg(length.as_millis() as u64);
        let taken: Option<String> = from_value(self.command(&take, until).await?)?;
        if taken.is_some() {
            return Ok(true);
        }
        if self.searcher(until).await? != instance {
            return Ok(false);
        }
        let mut extend = redis::cmd("PEXPIREAT");
        let now = self.time(until).await?.floor_ms();
        extend.arg(&name).arg(now.plus(length).0);
        let extended: u64 = from_value(self.command(&extend, until).await?)?;
        Ok(extended == 1)
    }

    /// Releases the lock of the search. Between the check and the deletion another instance may get
    /// the lock; then two search for a while, which does no harm.
    pub(crate) async fn end_search(&self, instance: &str, until: Instant) -> Result<()> {
        if self.searcher(until).await? == instance {
            let mut end = redis::cmd("DEL");
            end.arg(self.names.searching());
            self.command(&end, until).await?;
        }
        Ok(())
    }

    /// The instance that has the lock; empty if none has it.
    async fn searcher(&self, until: Instant) -> Result<String> {
        let mut look = redis::cmd("GETRANGE");
        look.arg(self.names.searching()).arg(0).arg(-1);
        from_value(self.command(&look, until).await?)
    }

    /// The stored progress of the search for this glob, which any instance may have made. `None` if
    /// there is none, or it cannot be read.
    pub(crate) async fn search_progress(
        &self,
        glob: &str,
        until: Instant,
    ) -> Result<Option<Progress>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.search()).arg(glob);
        let text: Option<String> = from_value(self.command(&get, until).await?)?;
        Ok(text.and_then(|text| {
            let (began, cursor) = text.split_once(' ')?;
            Some(Progress {
                began: UnixMs(began.parse().ok()?),
                cursor: going_on(cursor.to_owned()),
            })
        }))
    }

    /// Stores the progress of the search for this glob.
    pub(crate) async fn note_search(
        &self,
        glob: &str,
        progress: &Progress,
        until: Instant,
    ) -> Result<()> {
        let Progress { began, cursor } = progress;
        let mut set = redis::cmd("HSET");
        set.arg(self.names.search()).arg(glob);
        set.arg(format!("{began} {}", cursor.as_deref().unwrap_or("0")));
        self.command(&set, until).await.map(drop)
    }
}

impl Ledger {
    /// One page of the ids of adopted jobs whose keys have not expired by `now`, and the cursor of
    /// the next page, `None` at the end.
    pub(crate) async fn adopted(
        &self,
        cursor: &str,
        now: UnixMs,
        until: Instant,
    ) -> Result<(Option<String>, Vec<String>)> {
        let mut scan = redis::cmd("ZSCAN");
        scan.arg(&self.names.adopted).arg(cursor);
        scan.arg("COUNT").arg(PAGE);
        let page = self.server.command(&scan, until).await?;
        let (next, members): (String, Vec<(String, f64)>) = from_value(page)?;
        let is_there = |at: f64| at > now.0 as f64 && at.is_finite();
        let there = members.into_iter().filter(|(_, at)| is_there(*at));
        Ok((going_on(next), there.map(|(id, _)| id).collect()))
    }
}

/// The cursor of the next page, unless it is `0`, the end.
fn going_on(cursor: String) -> Option<String> {
    (cursor != "0").then_some(cursor)
}
