//! Whether adopted keys and the ledgers of their kinds agree once all changes have ended: from then
//! on the future of a key depends on the stored data alone.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use keyfall::{Client, JobState};
use redis::aio::MultiplexedConnection;

use crate::journal::Version;
use crate::load::FAR;
use crate::order::Order;
use crate::plain::{CANCEL, PLAIN, RUN};

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// `None` if the program does not set such values.
    pub(crate) version: Option<Version>,
    /// The expiry in Unix ms, if the key has one.
    pub(crate) expiry: Option<u64>,
}

/// All adopted keys with their values.
pub(crate) async fn keys(
    redis: &mut MultiplexedConnection,
) -> redis::RedisResult<HashMap<String, Value>> {
    let mut keys = HashMap::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{PLAIN}:*"));
        let (next, page): (u64, Vec<String>) =
            scan.arg("COUNT").arg(1000).query_async(redis).await?;
        for key in page {
            let mut both = redis::pipe();
            both.cmd("GET").arg(&key).cmd("PEXPIRETIME").arg(&key);
            let (value, expiry): (Option<String>, i64) = both.query_async(redis).await?;
            let Some(value) = value else {
                continue;
            };
            let order: Option<Order> = serde_json::from_str(&value).ok();
            let value = Value {
                version: order.map(|order| order.version),
                expiry: expiry.try_into().ok(),
            };
            keys.insert(key, value);
        }
        cursor = next;
        if cursor == 0 {
            return Ok(keys);
        }
    }
}

/// The first disagreement, or a change that is still to come.
pub(crate) async fn disagreement(
    client: &Client,
    redis: &mut MultiplexedConnection,
) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let keys = keys(redis).await?;
    let jobs = jobs(client).await?;
    // An evicted key is missing without an event.
    let stats: String = redis::cmd("INFO").arg("stats").query_async(redis).await?;
    let evicted = !stats.contains("evicted_keys:0\r\n");
    for (key, value) in &keys {
        let job = jobs.get(key);
        let agrees = match (value.expiry, job) {
            (Some(expiry), Some((version, due))) => {
                value.version == *version && expiry == *due && !is_near(expiry)
            }
            (expiry, job) => expiry.is_none() && job.is_none(),
        };
        if !agrees {
            return Ok(Some(format!("{key} has {value:?}, and its job {job:?}")));
        }
    }
    let lone = jobs.keys().find(|key| {
        let cancels = key.starts_with(&format!("{CANCEL}:"));
        cancels && !evicted && !keys.contains_key(*key)
    });
    Ok(lone.map(|key| format!("{key} is missing, and has a job: {:?}", jobs[key])))
}

fn is_near(expiry: u64) -> bool {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(expiry);
    at < SystemTime::now() + FAR / 2
}

/// The pending jobs of these keys: their versions and when they are due, Unix ms.
async fn jobs(client: &Client) -> keyfall::Result<HashMap<String, (Option<Version>, u64)>> {
    let mut jobs = HashMap::new();
    for kind in [RUN, CANCEL] {
        let mut after = None;
        loop {
            let list = client.list(kind, JobState::Pending).limit(1000);
            let page = match after.take() {
                Some(cursor) => list.after(cursor).await?,
                None => list.await?,
            };
            for job in &page.jobs {
                let due = job.due().duration_since(SystemTime::UNIX_EPOCH);
                let due = due.unwrap_or_default().as_millis();
                let version = job.json::<Order>().ok().map(|order| order.version);
                let due = due.try_into().unwrap_or(u64::MAX);
                jobs.insert(job.key().to_string(), (version, due));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(jobs)
}
