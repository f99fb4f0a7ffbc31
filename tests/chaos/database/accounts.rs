//! What the database and Redis hold when all has come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use keyfall::{Client, JobState, Shards};
use tokio::time::{Instant, sleep};

use super::Database;
use super::clerk::{KINDS, Op, Order, Reminder};
use super::copied::{self, Copied};
use crate::journal::Version;
use crate::load::FAR;

/// How long a busy machine may take to work off what waits.
const REST: Duration = Duration::from_secs(120);

pub(super) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// All that is judged.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// The rows that were committed, by their ids.
    pub(crate) orders: Vec<Order>,
    /// The versions that were rolled back.
    pub(crate) withdrawn: BTreeSet<Version>,
    pub(crate) archive: Vec<Archived>,
    /// The ids of the refused rows.
    pub(crate) refused: Vec<i64>,
    /// How many jobs of each kind have ended in each way, as the ledgers count them.
    pub(crate) ended: BTreeMap<(String, &'static str), u64>,
    /// How many jobs of the clerk the ledgers have accepted.
    pub(crate) accepted: u64,
    /// The jobs of the clerk that have not ended.
    pub(crate) pending: BTreeSet<Version>,
    /// The copy of all pending jobs, if there is one.
    pub(crate) copied: Option<Copied>,
    /// If Redis has lost jobs: the last order that it may have kept by itself.
    pub(crate) lost: Option<i64>,
}

/// A row of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Archived {
    pub(crate) key: String,
    pub(crate) how: String,
    pub(crate) fence: Option<u64>,
    /// When the job was accepted, in µs since 1970.
    pub(crate) accepted: i64,
    /// Of a job of the clerk.
    pub(crate) version: Option<Version>,
}

impl Accounts {
    /// Waits until nothing is on its way, and reads.
    pub(crate) async fn read(
        database: &Database,
        client: &Client,
        withdrawn: BTreeSet<Version>,
    ) -> Result<Self> {
        let sql = database.connect().await?;
        let deadline = Instant::now() + REST;
        while let Some(rest) = still_to_do(&sql, client, database.copies).await? {
            if Instant::now() > deadline {
                return Err(format!("{REST:?} after the load: {rest}").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        let mut accounts = Accounts {
            withdrawn,
            lost: database.lost,
            ..Accounts::default()
        };
        let orders = "SELECT id, key, op, version FROM orders ORDER BY id";
        for row in sql.query(orders, &[]).await? {
            let op: &str = row.get(2);
            accounts.orders.push(Order {
                id: row.get(0),
                key: row.get(1),
                op: Op::read(op, row.get(3)).ok_or_else(|| format!("an order says {op}"))?,
            });
        }
        let archive = "SELECT key, how, fence, (extract(epoch FROM accepted_at) * 1000000)::bigint,
                payload FROM keyfall_archive";
        for row in sql.query(archive, &[]).await? {
            let (key, payload): (String, Option<&[u8]>) = (row.get(0), row.get(4));
            let is_clerks = KINDS.iter().any(|kind| key.starts_with(kind));
            let reminder = match payload.filter(|_| is_clerks) {
                Some(payload) => Some(serde_json::from_slice::<Reminder>(payload)?),
                None => None,
            };
            accounts.archive.push(Archived {
                key,
                how: row.get(1),
                fence: row.get::<_, Option<i64>>(2).map(i64::cast_unsigned),
                accepted: row.get(3),
                version: reminder.map(|it| it.version),
            });
        }
        let refused = "SELECT id FROM keyfall_outbox_refused ORDER BY id";
        let refused = sql.query(refused, &[]).await?;
        accounts.refused = refused.iter().map(|row| row.get(0)).collect();
        accounts.read_ledgers(client).await?;
        if database.copies {
            accounts.copied = Some(Copied::read(&sql, client).await?);
        }
        Ok(accounts)
    }

    async fn read_ledgers(&mut self, client: &Client) -> Result<()> {
        for kind in &*client.kinds().await? {
            let stats = client.stats(kind.as_str()).await?;
            for (how, count) in [
                ("done", stats.done),
                ("buried", stats.buried),
                ("cancelled", stats.cancelled),
                ("replaced", stats.replaced),
                ("skipped", stats.skipped),
            ] {
                self.ended.insert((kind.to_string(), how), count);
            }
            if KINDS.contains(&kind.as_str()) {
                self.accepted += stats.accepted;
            }
        }
        for kind in KINDS {
            let mut after = None;
            loop {
                let list = client.list(kind, JobState::Pending).limit(1000);
                let page = match after.take() {
                    Some(cursor) => list.after(cursor).await?,
                    None => list.await?,
                };
                for job in &page.jobs {
                    self.pending.insert(job.json::<Reminder>()?.version);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// What is still on its way, if anything is.
async fn still_to_do(
    sql: &tokio_postgres::Client,
    client: &Client,
    copies: bool,
) -> Result<Option<String>> {
    let waiting = "SELECT count(*) FROM keyfall_outbox";
    let waiting: i64 = sql.query_one(waiting, &[]).await?.get(0);
    if waiting > 0 {
        return Ok(Some(format!("{waiting} rows of the outbox wait")));
    }
    for kind in KINDS {
        let stats = client.stats(kind).await?;
        let page = client.list(kind, JobState::Pending).limit(1).await?;
        let is_near = |due: SystemTime| due < SystemTime::now() + FAR / 2;
        let near = page.jobs.iter().any(|job| is_near(job.due()));
        if near || stats.leased + stats.successors + stats.overdue > 0 {
            return Ok(Some(format!("{kind} is not at rest: {stats:?}")));
        }
    }
    for kind in client.archived_kinds().await? {
        let ended = client.ended(&kind, Shards::All, 1).await?;
        if ended.waiting > 0 {
            let (waiting, dropped) = (ended.waiting, ended.dropped);
            return Ok(Some(format!(
                "{waiting} records of {kind} wait, {dropped} were dropped"
            )));
        }
    }
    match copies {
        true => copied::still_to_do(sql, client).await,
        false => Ok(None),
    }
}
