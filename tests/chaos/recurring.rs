//! Recurring jobs, and the rules for their occurrences: none is lost, none has two times, and exactly
//! one is pending.
//!
//! They run beside the other jobs. Where Redis can forget, an occurrence may come again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use keyfall::{Client, Handler, Job, JobState, Occurrence, Rule};

use crate::history::Journals;
use crate::journal::{Journal, What};

/// Their kind.
pub(crate) const KIND: &str = "chaos:again:job";

/// How many there are.
const JOBS: u64 = 8;

/// The time between two occurrences.
const EACH: Duration = Duration::from_secs(1);

/// The least number of occurrences of all of them together that must have begun.
const LEAST: usize = 3 * JOBS as usize;

/// From this number on, the times that were left out at once are not all counted.
const COUNTED: u64 = 1000;

/// An occurrence of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) number: u64,
    /// The time that the rule names, Unix ms.
    pub(crate) at: u64,
    /// The number of times that were left out before it.
    pub(crate) skipped: u64,
}

/// The number of the occurrence of each job that is pending at the end; `None` if none is.
pub(crate) type Stored = BTreeMap<String, Option<u64>>;

fn keys() -> impl Iterator<Item = String> {
    (0..JOBS).map(|id| format!("{KIND}:{id}"))
}

impl From<&Occurrence> for Seen {
    fn from(it: &Occurrence) -> Self {
        let at = it.scheduled_for.duration_since(UNIX_EPOCH);
        Seen {
            number: it.number,
            at: at.unwrap_or_default().as_millis() as u64,
            skipped: it.skipped,
        }
    }
}

/// Schedules them.
pub(crate) async fn begin(client: &Client) -> keyfall::Result<()> {
    for key in keys() {
        let rule = Rule::every(EACH)?;
        client.schedule(&key, "").recurring(rule).await?;
    }
    Ok(())
}

/// Writes down each run.
pub(crate) fn handler(journal: Arc<Journal>) -> impl Handler<(Job,), ()> {
    async move |job: Job| {
        let occurrence = job.occurrence().expect("each of them recurs");
        let Seen {
            number,
            at,
            skipped,
        } = Seen::from(occurrence);
        journal.note(What::Recurred {
            key: job.key().to_string(),
            number,
            at,
            skipped,
        });
    }
}

/// Pauses the rules, reads the occurrences that are pending then, and ends the rules.
pub(crate) async fn end(client: &Client) -> keyfall::Result<Stored> {
    let mut stored = Stored::new();
    for key in keys() {
        client.pause_rule(&key).await?;
        let number = loop {
            let Some(job) = client.get(&key).await? else {
                break None;
            };
            let occurrence = job.occurrence();
            let paused = occurrence.filter(|it| it.paused_since.is_some());
            match paused {
                Some(it) if job.state() == JobState::Pending => break Some(it.number),
                // A run is under way, behind which the paused occurrence waits.
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        client.cancel(&key).await?;
        stored.insert(key, number);
    }
    Ok(stored)
}

/// What is wrong with the occurrences that began, and with those that are left. If Redis can forget,
/// an occurrence may come again, with another time.
pub(crate) fn judge(journals: &Journals, stored: &Stored, forgets: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut begun: BTreeMap<&str, BTreeMap<u64, Seen>> = BTreeMap::new();
    for line in journals.iter().flat_map(|(_, lines)| lines) {
        if let What::Recurred {
            key,
            number,
            at,
            skipped,
        } = &line.what
        {
            let seen = Seen {
                number: *number,
                at: *at,
                skipped: *skipped,
            };
            let first = *begun.entry(key).or_default().entry(*number).or_insert(seen);
            if first != seen && !forgets {
                wrong.push(format!("{key}: one occurrence was {first:?} and {seen:?}"));
            }
        }
    }
    let count: usize = begun.values().map(BTreeMap::len).sum();
    if count < LEAST {
        wrong.push(format!("only {count} occurrences of recurring jobs began"));
    }
    for (key, next) in stored {
        let all = begun.remove(&**key).unwrap_or_default();
        match next {
            None => wrong.push(format!("{key}: no occurrence is pending")),
            Some(next) if all.contains_key(next) && !forgets => {
                wrong.push(format!("{key}: occurrence {next} is pending, and has run"));
            }
            Some(_) => {}
        }
        let numbers: BTreeSet<u64> = all.keys().copied().chain(*next).collect();
        let told = lost(&numbers).into_iter();
        let torn = torn(&all).filter(|_| !forgets);
        wrong.extend(told.chain(torn).map(|told| format!("{key}: {told}")));
    }
    wrong
}

/// The first number that is missing among these of one job, from 1 on.
fn lost(numbers: &BTreeSet<u64>) -> Option<String> {
    let mut lost = (1..)
        .zip(numbers)
        .filter(|(expected, number)| expected != *number);
    let (it, _) = lost.next()?;
    Some(format!("occurrence {it} is lost"))
}

/// The occurrences of one job whose time does not follow the one before.
fn torn(all: &BTreeMap<u64, Seen>) -> impl Iterator<Item = String> {
    let pairs = all.values().zip(all.values().skip(1));
    let torn = pairs.filter(|(one, next)| {
        let (between, each) = (next.at.saturating_sub(one.at), EACH.as_millis() as u64);
        let left_out = next.skipped.checked_sub(one.skipped);
        let is_counted = left_out.is_some_and(|it| it + 1 == between / each || it >= COUNTED);
        // All times of the rule lie on one grid, to the millisecond.
        let is_drifting = !between.is_multiple_of(each);
        next.number == one.number + 1 && (!is_counted || is_drifting)
    });
    torn.map(|(one, next)| format!("{next:?} does not follow {one:?}"))
}
