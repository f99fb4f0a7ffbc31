//! A program that keeps orders in PostgreSQL: each of its transactions writes orders, and the rows of
//! the outbox that belong to them. The orders that are there at the end tell which rows were
//! committed, also where a commit got no answer.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::{Client, Error};

use super::connect;
use crate::journal::Version;
use crate::load::FAR;

/// The kinds of its jobs.
pub(crate) const KINDS: [&str; 3] = [
    "chaos:orders:remind",
    "chaos:orders:close",
    "chaos:orders:refund",
];

/// A name that is no key.
const BAD: &str = "no key";

/// Programs that write at the same time; each has keys of its own, so that their rows have an order.
const CLERKS: u64 = 2;

/// The pause between two orders.
const PAUSE: Duration = Duration::from_millis(40);

/// The rows of one large transaction.
const CROWD: usize = 150;

/// The delay of a job that is to run, in ms.
const SOON: std::ops::Range<u64> = 0..1200;

/// The payload of a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Reminder {
    pub(crate) version: Version,
}

/// What a row of the outbox asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    /// A job that runs in this trial.
    Soon(Version),
    /// A job that does not, unless it is moved.
    Far(Version),
    Reschedule,
    Cancel,
    /// A row that cannot be passed on.
    Bad,
}

/// A row of the outbox that was committed, as the order beside it tells.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// The id of the row.
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) op: Op,
}

/// The rows of one transaction.
struct Transaction {
    rows: Vec<(String, Op)>,
    is_committed: bool,
}

/// Writes until it is stopped.
pub(crate) struct Clerk {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<BTreeSet<Version>>>,
}

impl Clerk {
    /// Makes the table of orders, and begins.
    pub(crate) async fn begin(url: &str, seed: u64) -> Result<Self, Error> {
        let make = "CREATE TABLE orders (id bigint PRIMARY KEY, key text, op text, version bigint)";
        connect(url).await?.batch_execute(make).await?;
        let (stop, stopped) = watch::channel(false);
        let tasks = (0..CLERKS).map(|number| {
            let desk = Desk {
                url: url.to_owned(),
                sql: None,
                number,
                versions: number << 32,
                orders: 0,
                random: StdRng::seed_from_u64(seed.wrapping_add(number)),
            };
            tokio::spawn(desk.write_until(stopped.clone()))
        });
        Ok(Clerk {
            stop,
            tasks: tasks.collect(),
        })
    }

    /// Stops, and returns the versions that were rolled back.
    pub(crate) async fn end(self) -> BTreeSet<Version> {
        self.stop.send_replace(true);
        let mut withdrawn = BTreeSet::new();
        for task in self.tasks {
            withdrawn.extend(task.await.expect("it does not panic"));
        }
        withdrawn
    }
}

struct Desk {
    url: String,
    sql: Option<Client>,
    number: u64,
    versions: Version,
    orders: u64,
    random: StdRng,
}

impl Desk {
    async fn write_until(mut self, stopped: watch::Receiver<bool>) -> BTreeSet<Version> {
        let mut withdrawn = BTreeSet::new();
        while !*stopped.borrow() {
            for transaction in self.imagine() {
                let wrote = self.write(&transaction).await;
                if !transaction.is_committed {
                    withdrawn.extend(transaction.rows.iter().filter_map(|(_, op)| op.version()));
                }
                if wrote.is_err() {
                    // Whether it was committed, the table tells. A caller gives such an order up.
                    self.sql = None;
                    break;
                }
                let most = self.random.random_range(0..2 * PAUSE.as_millis() as u64);
                sleep(Duration::from_millis(most)).await;
            }
        }
        withdrawn
    }

    fn version(&mut self) -> Version {
        self.versions += 1;
        self.versions
    }

    fn key(&mut self) -> String {
        self.orders += 1;
        let kind = KINDS[self.random.random_range(0..KINDS.len())];
        format!("{kind}:{}-{}", self.number, self.orders)
    }

    /// The transactions of one order.
    fn imagine(&mut self) -> Vec<Transaction> {
        let key = self.key();
        let (a, b, c) = (self.version(), self.version(), self.version());
        let committed = |ops: &[Op]| Transaction {
            rows: ops.iter().map(|op| (key.clone(), *op)).collect(),
            is_committed: true,
        };
        match self.random.random_range(0..100) {
            0..40 => vec![committed(&[Op::Soon(a)])],
            40..50 => vec![committed(&[Op::Far(a)]), committed(&[Op::Cancel])],
            50..55 => vec![committed(&[Op::Far(a), Op::Cancel])],
            55..65 => vec![committed(&[Op::Far(a)]), committed(&[Op::Reschedule])],
            65..72 => vec![committed(&[Op::Far(a), Op::Far(b), Op::Soon(c)])],
            72..80 => [a, b, c].map(|it| committed(&[Op::Soon(it)])).into(),
            80..83 => vec![committed(&[Op::Soon(a), Op::Bad])],
            83..85 => {
                let crowd = (0..CROWD).map(|_| (self.key(), Op::Soon(self.version())));
                vec![Transaction {
                    rows: crowd.collect(),
                    is_committed: true,
                }]
            }
            _ => vec![Transaction {
                is_committed: false,
                ..committed(&[Op::Far(a), Op::Soon(b), Op::Cancel])
            }],
        }
    }

    async fn write(&mut self, transaction: &Transaction) -> Result<(), Error> {
        let sql = match &mut self.sql {
            Some(sql) => sql,
            None => {
                // It may be away.
                sleep(PAUSE).await;
                self.sql.insert(connect(&self.url).await?)
            }
        };
        let change = sql.transaction().await?;
        for (key, op) in &transaction.rows {
            let delay = match op {
                Op::Far(_) => FAR.as_millis() as u64,
                _ => self.random.random_range(SOON),
            };
            let call = match op {
                Op::Soon(_) | Op::Far(_) => {
                    "keyfall_schedule($1, jsonb_build_object('version', $3), delay => $4)"
                }
                Op::Reschedule => "keyfall_reschedule($1, delay => $4)",
                Op::Cancel => "keyfall_cancel($1)",
                Op::Bad => "keyfall_schedule($5)",
            };
            let write = format!(
                "WITH asked(key, op, version, delay, bad) AS
                    (SELECT $1::text, $2::text, $3::bigint, $4::text::interval, $5::text)
                INSERT INTO orders SELECT {}, key, op, version FROM asked",
                call.replace("$1", "key")
                    .replace("$3", "version")
                    .replace("$4", "delay")
                    .replace("$5", "bad")
            );
            let version = op.version().map(Version::cast_signed);
            let delay = format!("{delay} milliseconds");
            change
                .execute(&write, &[key, &op.word(), &version, &delay, &BAD])
                .await?;
        }
        match transaction.is_committed {
            true => change.commit().await,
            false => change.rollback().await,
        }
    }
}

impl Op {
    pub(crate) fn version(self) -> Option<Version> {
        match self {
            Op::Soon(version) | Op::Far(version) => Some(version),
            Op::Reschedule | Op::Cancel | Op::Bad => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Op::Soon(_) => "soon",
            Op::Far(_) => "far",
            Op::Reschedule => "reschedule",
            Op::Cancel => "cancel",
            Op::Bad => "bad",
        }
    }

    /// The op of a row of the table.
    pub(crate) fn read(word: &str, version: Option<i64>) -> Option<Self> {
        let version = version.map(i64::cast_unsigned);
        Some(match (word, version) {
            ("soon", Some(version)) => Op::Soon(version),
            ("far", Some(version)) => Op::Far(version),
            ("reschedule", None) => Op::Reschedule,
            ("cancel", None) => Op::Cancel,
            ("bad", None) => Op::Bad,
            _ => return None,
        })
    }
}
