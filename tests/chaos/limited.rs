//! Jobs of limited kinds, and the rules for them: none starts beyond the rate, none has a lease beyond
//! the number, and each runs. One kind has a limit, two have one together, and the groups of two more
//! have one each, over both kinds.
//!
//! They run beside the other jobs. Where Redis can forget, it may forget starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use keyfall::{Client, GroupBy, Handler, Job, JobState, Json, Limit, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::history::Journals;
use crate::journal::{Journal, What};
use crate::series::insisted;

/// The kind with a limit.
pub(crate) const KIND: &str = "chaos:limited:job";

/// The kinds whose groups have a limit, and their prefix.
pub(crate) const GROUPED: [&str; 2] = ["chaos:grouped:one", "chaos:grouped:two"];
const GROUPS_OF: &str = "chaos:grouped:";

/// The kinds that have a limit together, and their prefix.
pub(crate) const TOGETHER: [&str; 2] = ["chaos:together:one", "chaos:together:two"];
const PREFIX: &str = "chaos:together:";

/// All of them.
pub(crate) const ALL: [&str; 5] = [KIND, GROUPED[0], GROUPED[1], TOGETHER[0], TOGETHER[1]];

/// The limit: starts in a second, starts at once, and leases. Up to eight shards share it.
const RATE: u32 = 40;
const BURST: u32 = 8;
const LEASES: u32 = 8;

/// The limit of a group.
const GROUP_RATE: u32 = 16;

/// The rate of the two kinds together.
const RATE_TOGETHER: u32 = 24;

/// How many jobs of each kind are scheduled at once, and the pause before the next: more than may
/// start at once. The first group gets most of them.
const CROWD: usize = 12;
const GROUPS: [usize; 3] = [10, 1, 1];
const CROWDS_TOGETHER: [usize; 2] = [7, 3];
const PAUSE: Duration = Duration::from_millis(1000);

/// How many ms the runs of a crowd take, in turn. After short ones the rate alone holds a crowd
/// up. Long ones hold their leases for so long that three counts would see more than the limit.
const RUNS: [u64; 2] = [50, 500];

/// How often the leases are counted.
const COUNTED: Duration = Duration::from_millis(75);

/// The least number of jobs that must have run.
const LEAST: usize = 4 * CROWD;

/// The prefixes whose leases are counted, and the least number of counts of each. In the six
/// seconds without faults there are four times as many, even if all three take a fifth of a second.
const COUNTED_OF: [&str; 3] = [KIND, PREFIX, GROUPS_OF];
const LEAST_COUNTS: usize = 5;

/// What is known at the end: the scheduled jobs, and what was wrong with the counts of leases.
#[derive(Debug, Default)]
pub(crate) struct Fed {
    pub(crate) keys: BTreeSet<String>,
    pub(crate) counts: LeaseCounts,
}

/// How often the leases of each prefix were counted, and what was wrong with them.
#[derive(Debug, Default)]
pub(crate) struct LeaseCounts {
    pub(crate) made: [usize; COUNTED_OF.len()],
    pub(crate) wrong: Vec<String>,
}

/// Tasks that schedule jobs, and count leases.
pub(crate) struct Feeder {
    stop: watch::Sender<bool>,
    feeding: JoinHandle<Result<BTreeSet<String>>>,
    counting: JoinHandle<LeaseCounts>,
}

impl Feeder {
    /// Sets the limits, and begins.
    pub(crate) async fn begin(client: Client) -> Result<Self> {
        let limit = Limit::new().burst(BURST).concurrency(LEASES);
        let second = Duration::from_secs(1);
        let grouped = limit.clone().rate(GROUP_RATE, second);
        let grouped = grouped.per(GroupBy::id_part(1));
        let together = limit.clone().rate(RATE_TOGETHER, second);
        client.limit(PREFIX, together).await?;
        client.limit(KIND, limit.rate(RATE, second)).await?;
        client.limit(GROUPS_OF, grouped).await?;
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
        let counts = self.counting.await.expect("it does not panic");
        loop {
            let mut left = 0;
            for kind in ALL {
                let stats = insisted(|| client.stats(kind)).await?;
                left += stats.pending + stats.leased;
            }
            if left == 0 {
                return Ok(Fed { keys, counts });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Schedules crowds of jobs that are due at once. Returns their keys.
async fn feed(client: Client, stopped: watch::Receiver<bool>) -> Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    let mut crowds = CROWDS_TOGETHER;
    let mut runs = RUNS.iter().cycle();
    while !*stopped.borrow() {
        let run = runs.next().expect("they go on");
        let groups = GROUPS.iter().enumerate();
        let groups = groups.flat_map(|(group, jobs)| vec![group; *jobs]);
        for group in groups {
            let kind = GROUPED[keys.len() / 2 % 2];
            for ids in [format!("{KIND}:"), format!("{kind}:{group}/")] {
                let key = format!("{ids}{:06}", keys.len());
                insisted(|| client.schedule(&key, run)).await?;
                keys.insert(key);
            }
        }
        for (kind, jobs) in TOGETHER.into_iter().zip(crowds) {
            for _ in 0..jobs {
                let key = format!("{kind}:{:06}", keys.len());
                insisted(|| client.schedule(&key, run)).await?;
                keys.insert(key);
            }
        }
        // The shares have to move.
        crowds.reverse();
        sleep(PAUSE).await;
    }
    Ok(keys)
}

/// Counts the leases.
async fn count(client: Client, stopped: watch::Receiver<bool>) -> LeaseCounts {
    let mut counts = LeaseCounts::default();
    // The two counts before, of each limit and of the groups.
    let mut before = [[0, 0]; 2];
    let mut groups_before: [BTreeMap<String, u32>; 2] = Default::default();
    while !*stopped.borrow() {
        sleep(COUNTED).await;
        for (place, scope) in [KIND, PREFIX].into_iter().enumerate() {
            // Redis may be away.
            let Ok(Some(limit)) = client.get_limit(scope).await else {
                continue;
            };
            counts.made[place] += 1;
            // The ledgers are not read at the same moment, so one count proves nothing, nor do two
            // while many runs end and begin.
            let [first, second] = before[place];
            before[place] = [second, limit.leased];
            let leased = first.min(second).min(limit.leased);
            if leased > u64::from(LEASES) {
                let told = format!("{scope} has {leased} leases");
                counts.wrong.push(told);
            }
        }
        let list = client.list(GROUPS_OF, JobState::Running).limit(1000);
        let Ok(running) = list.await else {
            continue;
        };
        counts.made[2] += 1;
        let mut leases: BTreeMap<String, u32> = BTreeMap::new();
        for job in running.jobs {
            *leases.entry(stream_of(job.key().as_str())).or_default() += 1;
        }
        for (group, now) in &leases {
            let then = groups_before.iter();
            let then = then.map(|before| before.get(group).copied().unwrap_or(0));
            let leased = then.min().unwrap_or(0).min(*now);
            if leased > LEASES {
                counts.wrong.push(format!("{group} has {leased} leases"));
            }
        }
        let [_, second] = groups_before;
        groups_before = [second, leases];
    }
    counts
}

/// Writes down each run, which takes so many ms.
pub(crate) fn handler(journal: Arc<Journal>) -> impl Handler<(Job, Json<u64>), ()> {
    async move |job: Job, Json(ms): Json<u64>| {
        journal.note(What::Started {
            key: job.key().to_string(),
            fence: job.fence(),
        });
        sleep(Duration::from_millis(ms)).await;
    }
}

/// What is wrong with the starts, which their fencing values date by the clock of Redis; and with
/// jobs that did not run. If Redis can forget, it may have forgotten starts and jobs. If its clock is
/// set back, fencing values date nothing.
pub(crate) fn judge(journals: &Journals, fed: &Fed, forgets: bool, is_set: bool) -> Vec<String> {
    let mut ran: BTreeSet<&str> = BTreeSet::new();
    let mut starts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in journals.iter().flat_map(|(_, lines)| lines) {
        if let What::Started { key, fence } = &line.what {
            ran.insert(key);
            starts.entry(stream_of(key)).or_default().push(*fence);
        }
    }
    let mut wrong = Vec::new();
    for kind in ALL {
        let ran = ran.iter().filter(|key| key.starts_with(kind)).count();
        // Two kinds together have about as many as the first one.
        let least = if kind == KIND { LEAST } else { LEAST / 4 };
        if ran < least {
            wrong.push(format!("only {ran} jobs of {kind} ran"));
        }
    }
    if forgets {
        return wrong;
    }
    wrong.extend(fed.counts.wrong.iter().cloned());
    let seldom = COUNTED_OF.iter().zip(fed.counts.made);
    let seldom = seldom.filter(|(_, made)| *made < LEAST_COUNTS);
    wrong.extend(seldom.map(|(scope, made)| {
        format!("the leases of {scope} were counted {made} times, and not {LEAST_COUNTS}")
    }));
    for key in &fed.keys {
        if !ran.contains(&**key) {
            wrong.push(format!("{key} waited for a limit, and never ran"));
        }
    }
    for (stream, mut starts) in starts.into_iter().filter(|_| !is_set) {
        let rate = match stream.as_str() {
            KIND => RATE,
            PREFIX => RATE_TOGETHER,
            _ => GROUP_RATE,
        };
        starts.sort_unstable();
        let crowd = crowded(&starts, 1_000_000 / u64::from(rate));
        wrong.extend(crowd.map(|crowd| format!("{stream}: {crowd}")));
    }
    wrong
}

/// What a key shares its limit with: its kind, its group in both kinds, or the other kind.
fn stream_of(key: &str) -> String {
    match key.split_once('/') {
        Some((group, _)) => {
            let (_, group) = group.rsplit_once(':').unwrap_or_default();
            format!("{GROUPS_OF}{group}")
        }
        None if key.starts_with(PREFIX) => PREFIX.to_owned(),
        None => KIND.to_owned(),
    }
}

/// The first span of time with more starts than the limit allows.
fn crowded(starts: &[u64], gap: u64) -> Option<String> {
    starts.iter().enumerate().find_map(|(first, begin)| {
        let mut behind = starts.iter().enumerate().skip(first);
        behind.find_map(|(last, end)| {
            let count = (last - first + 1) as u64;
            let most = u64::from(BURST) + (end - begin) / gap;
            (count > most).then(|| format!("{count} jobs started in {} µs", end - begin))
        })
    })
}
