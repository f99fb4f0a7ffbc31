//! The copy of the pending jobs, and whether it is what the ledgers have.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use keyfall::{Client, JobState, Shards};

use super::accounts::Result;

/// Pending jobs by their keys.
pub(crate) type Pending = BTreeMap<String, PendingJob>;

/// What the copy must have of a pending job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingJob {
    /// Unix ms.
    pub(crate) due: u64,
    /// As text.
    pub(crate) payload: String,
}

/// How many differences are told.
const TOLD: usize = 5;

/// The least number of jobs that the copy has, or had.
const LEAST: u64 = 30;

/// What the ledgers have, and what the copy has.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) ledgers: Pending,
    pub(crate) copy: Pending,
    /// How many jobs the copy knows to have ended.
    pub(crate) ended: u64,
    /// Why the copy was stopped, if it was.
    pub(crate) stopped: Option<String>,
}

impl Copied {
    pub(super) async fn read(sql: &tokio_postgres::Client, client: &Client) -> Result<Self> {
        let mut copied = Copied::default();
        let copy = "SELECT key, (extract(epoch FROM due_at) * 1000)::bigint, ended_at IS NOT NULL,
                record
            FROM keyfall_copy";
        for row in sql.query(copy, &[]).await? {
            match row.get(2) {
                true => copied.ended += 1,
                false => {
                    let job = PendingJob {
                        due: row.get::<_, i64>(1).cast_unsigned(),
                        payload: payload(row.get(3)),
                    };
                    copied.copy.insert(row.get(0), job);
                }
            }
        }
        let stopped = "SELECT stopped FROM keyfall_copy_state";
        copied.stopped = sql.query_one(stopped, &[]).await?.get(0);
        for kind in &*client.kinds().await? {
            let mut after = None;
            loop {
                let list = client.list(kind.as_str(), JobState::Pending).limit(1000);
                let page = match after.take() {
                    Some(cursor) => list.after(cursor).await?,
                    None => list.await?,
                };
                copied.ledgers.extend(page.jobs.iter().map(|job| {
                    let pending = PendingJob {
                        due: ms(job.due()),
                        payload: String::from_utf8_lossy(job.payload()).into_owned(),
                    };
                    (job.key().to_string(), pending)
                }));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(copied)
    }

    /// What is wrong with the copy.
    pub(super) fn judge(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(why) = &self.stopped {
            wrong.push(format!(
                "the copy is stopped, and Redis has lost nothing since: {why}"
            ));
        }
        let had = self.copy.len() as u64 + self.ended;
        if had < LEAST {
            wrong.push(format!("the copy has had {had} jobs, and not {LEAST}"));
        }
        let lacking = self
            .ledgers
            .keys()
            .filter(|key| !self.copy.contains_key(*key));
        let lacking = lacking.map(|key| format!("the copy lacks {key}, which is pending"));
        let differing = self.copy.iter().filter_map(|(key, copied)| {
            let pending = self.ledgers.get(key);
            let (due, in_redis) = (copied.due, pending.map(|it| it.due));
            if in_redis != Some(due) {
                return Some(format!(
                    "{key} is due at {due} in the copy, and in Redis at {in_redis:?}"
                ));
            }
            let is_other = pending.is_some_and(|it| it.payload != copied.payload);
            is_other.then(|| format!("{key} is {copied:?} in the copy, and in Redis {pending:?}"))
        });
        wrong.extend(lacking.take(TOLD));
        wrong.extend(differing.take(TOLD));
        wrong
    }
}

/// What still waits for the copy, if anything does.
pub(super) async fn still_to_do(
    sql: &tokio_postgres::Client,
    client: &Client,
) -> Result<Option<String>> {
    let filled = "SELECT count(*) FROM keyfall_copy_ledgers WHERE kind = $1 AND filled";
    for kind in client.copied_kinds().await? {
        let changes = client.changes(&kind, Shards::All, 0).await?;
        let filled: i64 = sql.query_one(filled, &[&kind.as_str()]).await?.get(0);
        let shards = &changes.shards;
        let waits = shards.iter().any(|it| it.waiting > 0 || !it.is_noting);
        if waits || filled < shards.len() as i64 {
            return Ok(Some(format!(
                "{filled} shards of {kind} are copied whole: {shards:?}"
            )));
        }
    }
    Ok(None)
}

/// The payload of a record, behind the lines of its header and of its steps.
fn payload(record: &[u8]) -> String {
    let payload = record.splitn(3, |byte| *byte == b'\n').nth(2);
    String::from_utf8_lossy(payload.unwrap_or_default()).into_owned()
}

fn ms(time: SystemTime) -> u64 {
    let since: Duration = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}
