//! Jobs of a limited kind, and the rules for them: none starts beyond the rate, none has a lease
//! beyond the number, and each runs.
//!
//! They run beside the other jobs. Where Redis can forget, it may forget starts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use keyfall::{Client, Handler, Job, Limit, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::history::Journals;
use crate::journal::{Journal, What};
use crate::series::insisted;

/// Their kind.
pub(crate) const KIND: &str = "chaos:limited:job";

/// The limit: starts in a second, starts at once, and leases. Each of up to eight shards gets a part.
const RATE: u32 = 40;
const BURST: u32 = 8;
const LEASES: u32 = 8;

/// How many jobs are scheduled at once, and the pause before the next: more than may start at once.
const CROWD: usize = 15;
const PAUSE: Duration = Duration::from_millis(500);

/// How long a run takes: all leases together are about as many as the rate can use.
const RUN: Duration = Duration::from_millis(150);

/// How often the leases are counted.
const COUNTED: Duration = Duration::from_millis(50);

/// The least number of jobs that must have run.
const LEAST: usize = 4 * CROWD;

/// What is known at the end: the scheduled jobs, and what was wrong with the counts of leases.
#[derive(Debug, Default)]
pub(crate) struct Fed {
    pub(crate) keys: BTreeSet<String>,
    pub(crate) wrong: Vec<String>,
}

/// Tasks that schedule jobs, and count leases.
pub(crate) struct Feeder {
    stop: watch::Sender<bool>,
    feeding: JoinHandle<Result<BTreeSet<String>>>,
    counting: JoinHandle<Vec<String>>,
}

impl Feeder {
    /// Sets the limit, and begins.
    pub(crate) async fn begin(client: Client) -> Result<Self> {
        let limit = Limit::new()
            .rate(RATE, Duration::from_secs(1))
            .burst(BURST)
            .concurrency(LEASES);
        client.limit(KIND, limit).await?;
        let (stop, stopped) = watch::channel(false);
        Ok(Feeder {
            feeding: tokio::spawn(feed(client.clone(), stopped.clone())),
            counting: tokio::spawn(count(client, stopped)),
            stop,
        })
    }

    /// Schedules no more, and waits until all have run.
    pub(crate) async fn end(self, client: &Client) -> Result<Fed> {
        self.stop.send_replace(true);
        let keys = self.feeding.await.expect("it does not panic")?;
        let wrong = self.counting.await.expect("it does not panic");
        loop {
            let stats = insisted(|| client.stats(KIND)).await?;
            if stats.pending + stats.leased == 0 {
                return Ok(Fed { keys, wrong });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Schedules crowds of jobs that are due at once. Returns their keys.
async fn feed(client: Client, stopped: watch::Receiver<bool>) -> Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    while !*stopped.borrow() {
        for _ in 0..CROWD {
            let key = format!("{KIND}:{:06}", keys.len());
            insisted(|| client.schedule(&key, "")).await?;
            keys.insert(key);
        }
        sleep(PAUSE).await;
    }
    Ok(keys)
}

/// Counts the leases, and returns what was wrong.
async fn count(client: Client, stopped: watch::Receiver<bool>) -> Vec<String> {
    let mut wrong = Vec::new();
    while !*stopped.borrow() {
        sleep(COUNTED).await;
        // Redis may be away.
        let Ok(Some(limit)) = client.get_limit(KIND).await else {
            continue;
        };
        if limit.leased > u64::from(LEASES) {
            wrong.push(format!("{KIND} has {} leases", limit.leased));
        }
    }
    wrong
}

/// Writes down each run.
pub(crate) fn handler(journal: Arc<Journal>) -> impl Handler<(Job,), ()> {
    async move |job: Job| {
        journal.note(What::Started {
            key: job.key().to_string(),
            fence: job.fence(),
        });
        sleep(RUN).await;
    }
}

/// What is wrong with the starts, which their fencing values date by the clock of Redis; and with
/// jobs that did not run. If Redis can forget, it may have forgotten starts and jobs. If its clock is
/// set back, fencing values date nothing.
pub(crate) fn judge(journals: &Journals, fed: &Fed, forgets: bool, is_set: bool) -> Vec<String> {
    let mut ran: BTreeSet<&str> = BTreeSet::new();
    let mut starts: Vec<u64> = Vec::new();
    for line in journals.iter().flat_map(|(_, lines)| lines) {
        if let What::Started { key, fence } = &line.what {
            ran.insert(key);
            starts.push(*fence);
        }
    }
    let mut wrong = Vec::new();
    if ran.len() < LEAST {
        wrong.push(format!("only {} jobs of a limited kind ran", ran.len()));
    }
    if forgets {
        return wrong;
    }
    wrong.extend(fed.wrong.iter().cloned());
    for key in &fed.keys {
        if !ran.contains(&**key) {
            wrong.push(format!("{key} waited for a limit, and never ran"));
        }
    }
    if !is_set {
        starts.sort_unstable();
        wrong.extend(crowded(&starts));
    }
    wrong
}

/// The first span of time with more starts than the limit allows.
fn crowded(starts: &[u64]) -> Option<String> {
    let gap = 1_000_000 / u64::from(RATE);
    starts.iter().enumerate().find_map(|(first, begin)| {
        let mut behind = starts.iter().enumerate().skip(first);
        behind.find_map(|(last, end)| {
            let count = (last - first + 1) as u64;
            let most = u64::from(BURST) + (end - begin) / gap;
            (count > most).then(|| {
                format!(
                    "{count} jobs of a limited kind started in {} µs",
                    end - begin
                )
            })
        })
    })
}
