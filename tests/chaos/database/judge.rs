//! The rules: each ended job once in the archive, as the ledgers count them and as the journals of
//! the handlers tell; each committed row of the outbox once in Redis, in the order of its key;
//! nothing of a transaction that was rolled back; and a copy that has the jobs of the ledgers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::accounts::{Accounts, Archived};
use super::clerk::{KINDS, Op, Order};
use super::copied::Copied;
use super::rebuilt;
use crate::checker::WORKER;
use crate::history::Journals;
use crate::journal::{Version, What};

/// The least number of orders, and of rows of the archive.
const LEAST: usize = 30;

/// The runs that the journals tell of, each by its key and fencing value.
#[derive(Default)]
pub(super) struct Runs<'a> {
    /// Runs of all jobs but those of the clerk.
    began: HashSet<(&'a str, u64)>,
    /// Runs that came to their end, and whose end Redis took.
    ended: HashSet<(&'a str, u64)>,
    /// Runs of jobs of the clerk.
    pub(super) reminded: HashMap<(&'a str, u64), Version>,
}

/// What is wrong with the accounts.
pub(crate) fn judge(journals: &Journals, accounts: &Accounts) -> Vec<String> {
    let runs = Runs::read(journals);
    let mut wrong = Vec::new();
    if accounts.orders.len() < LEAST || accounts.archive.len() < LEAST {
        let (orders, rows) = (accounts.orders.len(), accounts.archive.len());
        wrong.push(format!(
            "only {orders} orders, and {rows} rows of the archive"
        ));
    }
    match accounts.lost {
        None => {
            wrong.extend(compare_with_ledgers(accounts));
            wrong.extend(runs.compare(&accounts.archive));
            wrong.extend(compare_with_orders(accounts));
        }
        Some(kept) => wrong.extend(rebuilt::judge(accounts, &runs, kept)),
    }
    wrong.extend(compare_refused(accounts));
    wrong.extend(find_strangers(accounts, &runs));
    wrong.extend(accounts.copied.iter().flat_map(Copied::judge));
    wrong
}

impl<'a> Runs<'a> {
    fn read(journals: &'a Journals) -> Self {
        let mut runs = Runs::default();
        for (process, lines) in journals {
            let (mut last, mut taken) = (HashSet::new(), HashSet::new());
            for line in lines {
                match &line.what {
                    What::Began { key, fence, .. } => {
                        runs.began.insert((&**key, *fence));
                    }
                    What::Ended {
                        key,
                        fence,
                        last: true,
                    } => {
                        last.insert((&**key, *fence));
                    }
                    What::Settled {
                        key,
                        fence,
                        taken: true,
                    } => {
                        taken.insert((&**key, *fence));
                    }
                    What::Reminded {
                        key,
                        version,
                        fence,
                    } => {
                        runs.reminded.insert((&**key, *fence), *version);
                    }
                    _ => {}
                }
            }
            if process.starts_with(WORKER) {
                runs.ended.extend(last.intersection(&taken));
            }
        }
        runs
    }

    /// Runs that ended and are not in the archive, and rows of the archive without a run.
    fn compare(&self, archive: &[Archived]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut rows: HashMap<(&str, u64), usize> = HashMap::new();
        for row in archive {
            let Some(fence) = row.fence else { continue };
            *rows.entry((&row.key, fence)).or_default() += 1;
            let run = (&*row.key, fence);
            let is_known = self.began.contains(&run) || self.reminded.contains_key(&run);
            if row.how == "done" && !is_known && is_journaled(&row.key) {
                wrong.push(format!("no handler ran {row:?}"));
            }
        }
        for run in &self.ended {
            let stored = rows.get(run).copied().unwrap_or(0);
            if stored != 1 {
                wrong.push(format!(
                    "{run:?} has ended, and is {stored} times in the archive"
                ));
            }
        }
        wrong
    }
}

/// Whether handlers write down the runs of this job.
fn is_journaled(key: &str) -> bool {
    let kind = key.rsplit_once(':').map_or("", |(kind, _)| kind);
    KINDS.contains(&kind) || crate::load::KINDS.contains(&kind)
}

/// The archive has as many rows for each kind and end as its ledgers have counted.
fn compare_with_ledgers(accounts: &Accounts) -> Vec<String> {
    let mut stored: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for row in &accounts.archive {
        let kind = row.key.rsplit_once(':').map_or("", |(kind, _)| kind);
        *stored.entry((kind.to_owned(), &*row.how)).or_default() += 1;
    }
    let keys: BTreeSet<(String, &str)> = stored.keys().cloned().collect();
    let counted = accounts.ended.keys().cloned();
    let all: BTreeSet<(String, &str)> = keys.into_iter().chain(counted).collect();
    let differing = all.into_iter().filter_map(|key| {
        let counted = accounts.ended.get(&(key.0.clone(), word(key.1)));
        let counted = counted.copied().unwrap_or(0);
        let stored = stored.get(&key).copied().unwrap_or(0);
        (counted != stored).then(|| {
            let (kind, how) = key;
            format!("{counted} jobs of {kind} are {how}, and {stored} in the archive")
        })
    });
    differing.collect()
}

/// The word of an end as a constant; empty if there is no such end.
fn word(how: &str) -> &'static str {
    let all = keyfall::JobEnd::ALL.map(keyfall::JobEnd::as_str);
    all.into_iter().find(|word| *word == how).unwrap_or("")
}

/// Each committed row had its effect once, in the order of its key.
fn compare_with_orders(accounts: &Accounts) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut ends: HashMap<Version, Vec<&Archived>> = HashMap::new();
    for row in &accounts.archive {
        if let Some(version) = row.version {
            ends.entry(version).or_default().push(row);
        }
    }
    let mut schedules = 0;
    for (key, orders) in by_key(accounts) {
        let mut last = i64::MIN;
        for (version, fates) in fates(&orders) {
            schedules += 1;
            let rows = ends.get(&version).map_or(&[][..], Vec::as_slice);
            let mut found: Vec<&str> = rows.iter().map(|row| &*row.how).collect();
            found.extend(accounts.pending.contains(&version).then_some(PENDING));
            if !matches!(found[..], [fate] if fates.contains(&fate)) {
                wrong.push(format!(
                    "version {version} of {key} is {found:?}, and should be one of {fates:?}: \
                     {orders:?}"
                ));
            }
            for row in rows {
                if row.accepted < last {
                    wrong.push(format!("{row:?} came before an earlier row of its key"));
                }
                last = row.accepted;
            }
        }
    }
    if accounts.accepted != schedules {
        let accepted = accounts.accepted;
        wrong.push(format!(
            "{schedules} jobs were committed, and {accepted} accepted"
        ));
    }
    wrong
}

/// The rows of each key, in their order.
pub(super) fn by_key(accounts: &Accounts) -> BTreeMap<&str, Vec<&Order>> {
    let mut by_key: BTreeMap<&str, Vec<&Order>> = BTreeMap::new();
    for order in accounts.orders.iter().filter(|it| it.op != Op::Bad) {
        by_key.entry(&order.key).or_default().push(order);
    }
    by_key
}

/// Exactly the rows that are no calls were refused.
fn compare_refused(accounts: &Accounts) -> Option<String> {
    let bad = accounts.orders.iter().filter(|it| it.op == Op::Bad);
    let bad: Vec<i64> = bad.map(|order| order.id).collect();
    let refused = &accounts.refused;
    (bad != *refused)
        .then(|| format!("the rows {bad:?} are no calls, and {refused:?} were refused"))
}

/// The fate of a job that has not ended.
pub(super) const PENDING: &str = "pending";

/// The fates that each version of a key can have, given the rows in their order.
pub(super) fn fates(orders: &[&Order]) -> Vec<(Version, Vec<&'static str>)> {
    let all = orders.iter().enumerate().filter_map(|(place, order)| {
        let version = order.op.version()?;
        let later = &orders[place + 1..];
        let end = later.iter().position(|it| it.op != Op::Reschedule);
        let is_moved = end.unwrap_or(later.len()) > 0;
        let mut fates = Vec::new();
        if matches!(order.op, Op::Soon(_)) || is_moved {
            fates.push("done");
        }
        match end.map(|end| later[end].op) {
            Some(Op::Cancel) => fates.push("cancelled"),
            Some(_) => fates.push("replaced"),
            None if fates.is_empty() => fates.push(PENDING),
            None => {}
        }
        Some((version, fates))
    });
    all.collect()
}

/// Jobs that no committed row has scheduled.
fn find_strangers(accounts: &Accounts, runs: &Runs) -> Vec<String> {
    let orders = accounts.orders.iter();
    let committed: BTreeSet<Version> = orders.filter_map(|it| it.op.version()).collect();
    let archived = accounts.archive.iter().filter_map(|row| row.version);
    let seen: BTreeSet<Version> = archived
        .chain(runs.reminded.values().copied())
        .chain(accounts.pending.iter().copied())
        .collect();
    let strangers = seen.into_iter().filter(|it| !committed.contains(it));
    let mut wrong: Vec<String> = strangers
        .map(|version| {
            let why = match accounts.withdrawn.contains(&version) {
                true => "was rolled back",
                false => "was not committed",
            };
            format!("there is a job of version {version}, which {why}")
        })
        .collect();
    let kept = accounts.withdrawn.intersection(&committed);
    wrong.extend(kept.map(|version| format!("version {version} was rolled back, and is there")));
    wrong
}
