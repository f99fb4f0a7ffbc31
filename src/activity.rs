//! The sums behind the charts of rates and lag: how many runs of a kind began and ended in each
//! minute, and how late they began.
//!
//! Each handle of a ledger sums in memory, and a worker writes the sums to Redis once a minute,
//! in `src/worker/activity_writer.rs`. An idle kind costs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::key::Kind;
use crate::time::UnixUs;

/// The upper bounds of the buckets of lags, in ms; one more bucket is for longer lags. The same as
/// in the metrics.
const LAGS_MS: [u64; 17] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 15_000, 60_000, 300_000, 900_000, 1_800_000,
    3_600_000,
];

/// A run with a longer lag began late.
const LATE_MS: u64 = 1000;

/// The most minutes that are kept until they can be written.
const MINUTES: usize = 60;

/// The starts and ends of runs in one span of time, summed over all workers; from
/// [`Client::activity`](crate::Client::activity).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Runs that ended with success.
    pub done: u64,
    /// Attempts that failed, and whose jobs are tried again or were replaced.
    pub failed: u64,
    /// Runs after which the job was a dead letter.
    pub buried: u64,
    /// The longest lag of a run, in ms.
    longest_ms: u64,
    /// The number of runs that began, by their lag.
    lags: [u64; LAGS_MS.len() + 1],
}

impl Activity {
    /// The number of runs that began.
    pub fn started(&self) -> u64 {
        self.lags.iter().sum()
    }

    /// The number of runs that began more than a second after their due time.
    pub fn late(&self) -> u64 {
        let bounds = LAGS_MS.iter().position(|bound| *bound == LATE_MS);
        let first = bounds.map_or(self.lags.len(), |last| last + 1);
        self.lags[first..].iter().sum()
    }

    /// Whether no run began or ended.
    pub fn is_empty(&self) -> bool {
        self.started() + self.done + self.failed + self.buried == 0
    }

    /// The lag that this share of the runs did not exceed, such as 0.5 for the median: an estimate
    /// within the bounds of a bucket. `None` if no run began.
    pub fn lag(&self, share: f64) -> Option<Duration> {
        let started = self.started();
        if started == 0 {
            return None;
        }
        let rank = ((started as f64 * share).ceil() as u64).clamp(1, started);
        let (mut before, mut lower) = (0, 0);
        for (place, count) in self.lags.iter().enumerate() {
            let upper = LAGS_MS.get(place).copied().unwrap_or(u64::MAX);
            let upper = upper.min(self.longest_ms).max(lower);
            if before + count >= rank {
                let part = (rank - before) as f64 / *count as f64;
                let ms = lower as f64 + (upper - lower) as f64 * part;
                return Some(Duration::from_secs_f64(ms / 1000.0));
            }
            (before, lower) = (before + count, upper);
        }
        None
    }

    /// The longest lag. `None` if no run began.
    pub fn longest_lag(&self) -> Option<Duration> {
        (self.started() > 0).then(|| Duration::from_millis(self.longest_ms))
    }

    /// Adds another activity.
    pub fn add(&mut self, other: &Activity) {
        self.done += other.done;
        self.failed += other.failed;
        self.buried += other.buried;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        for (sum, more) in self.lags.iter_mut().zip(other.lags) {
            *sum += more;
        }
    }

    /// Counts the start of a run.
    fn begin(&mut self, lag: Duration) {
        let ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
        // A lag of 1.5 ms is above the first bound.
        let place = LAGS_MS.partition_point(|bound| Duration::from_millis(*bound) < lag);
        self.lags[place] += 1;
        self.longest_ms = self.longest_ms.max(ms);
    }

    /// Counts the end of a run; `outcome` is a label of the metrics.
    fn end(&mut self, outcome: &str) {
        match outcome {
            "done" => self.done += 1,
            "failed" => self.failed += 1,
            "buried" => self.buried += 1,
            _ => {}
        }
    }

    /// Reads the counts that [`Display`](fmt::Display) writes. Numbers that are missing are zero.
    pub(crate) fn parse<'a>(numbers: impl Iterator<Item = &'a str>) -> Self {
        let mut numbers = numbers.map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        let mut activity = Activity {
            done: next(),
            failed: next(),
            buried: next(),
            longest_ms: next(),
            ..Activity::default()
        };
        activity.lags.fill_with(next);
        activity
    }
}

/// Writes the counts as `lua/activity.lua` takes them, without the zeros at the end.
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Activity {
            done,
            failed,
            buried,
            longest_ms,
            lags,
        } = self;
        write!(f, "{done} {failed} {buried} {longest_ms}")?;
        let end = lags.iter().rposition(|count| *count > 0);
        for count in &lags[..end.map_or(0, |last| last + 1)] {
            write!(f, " {count}")?;
        }
        Ok(())
    }
}

/// The activity of some minutes, by their number since the epoch.
pub(crate) type Minutes = BTreeMap<u64, Activity>;

/// Adds minutes to others, and drops the oldest ones above the number that is kept.
pub(crate) fn merge(into: &mut Minutes, minutes: Minutes) {
    for (minute, more) in minutes {
        into.entry(minute).or_default().add(&more);
    }
    while into.len() > MINUTES {
        into.pop_first();
    }
}

/// The sums of all ledgers of a process, until they are written.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Whether somebody writes them; otherwise nothing is summed.
    is_written: AtomicBool,
    /// The sums that are not empty. A handle that is gone, such as the handle of a kind that was
    /// dropped, takes its sum with it.
    begun: Mutex<Vec<Weak<LedgerSum>>>,
}

/// The sum of one ledger handle.
#[derive(Debug)]
pub(crate) struct LedgerSum {
    all: Arc<Sums>,
    kind: Kind,
    minutes: Mutex<Minutes>,
}

impl Sums {
    /// Begins to sum, for somebody who writes the sums from now on.
    pub(crate) fn will_be_written(&self) {
        self.is_written.store(true, Ordering::Relaxed);
    }

    /// Takes the sums of all kinds, which begin anew.
    pub(crate) fn take(&self) -> BTreeMap<Kind, Minutes> {
        let begun = std::mem::take(&mut *self.begun.lock().expect("no panic while held"));
        let mut all = BTreeMap::<Kind, Minutes>::new();
        for sum in begun.iter().filter_map(Weak::upgrade) {
            let minutes = std::mem::take(&mut *sum.minutes.lock().expect("no panic while held"));
            merge(all.entry(sum.kind.clone()).or_default(), minutes);
        }
        all
    }
}

impl LedgerSum {
    /// An empty sum for a handle of a ledger of this kind.
    pub(crate) fn new(all: &Arc<Sums>, kind: &Kind) -> Arc<Self> {
        Arc::new(LedgerSum {
            all: all.clone(),
            kind: kind.clone(),
            minutes: Mutex::default(),
        })
    }

    /// Counts the start of a run.
    pub(crate) fn begun(self: &Arc<Self>, now: Option<UnixUs>, lag: Duration) {
        self.count(now, |activity| activity.begin(lag));
    }

    /// Counts the end of a run; `outcome` is a label of the metrics.
    pub(crate) fn ended(self: &Arc<Self>, now: Option<UnixUs>, outcome: &str) {
        self.count(now, |activity| activity.end(outcome));
    }

    /// Counts something that happens now, by the clock of Redis as far as it is known.
    fn count(self: &Arc<Self>, now: Option<UnixUs>, count: impl FnOnce(&mut Activity)) {
        if let Some(now) = now
            && self.all.is_written.load(Ordering::Relaxed)
        {
            self.add(now.0 / 60_000_000, count);
        }
    }

    fn add(self: &Arc<Self>, minute: u64, count: impl FnOnce(&mut Activity)) {
        let is_first = {
            let mut minutes = self.minutes.lock().expect("no panic while held");
            let is_first = minutes.is_empty();
            count(minutes.entry(minute).or_default());
            if minutes.len() > MINUTES {
                minutes.pop_first();
            }
            is_first
        };
        if is_first {
            let mut begun = self.all.begun.lock().expect("no panic while held");
            begun.push(Arc::downgrade(self));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn begun(lags: impl IntoIterator<Item = Duration>) -> Activity {
        let mut activity = Activity::default();
        lags.into_iter().for_each(|lag| activity.begin(lag));
        activity
    }

    #[test]
    fn lags_are_estimated_within_their_bucket() {
        assert_eq!((begun([]).lag(0.5), begun([]).longest_lag()), (None, None));
        let one = begun([7 * MS]);
        assert_eq!((one.lag(0.5), one.lag(0.99)), (Some(7 * MS), Some(7 * MS)));
        let most = begun([3 * MS; 98].into_iter().chain([700 * MS, 90_000 * MS]));
        let (median, p99) = (most.lag(0.5).unwrap(), most.lag(0.99).unwrap());
        assert!(median > 2 * MS && median <= 5 * MS, "{median:?}");
        assert!(p99 > 500 * MS && p99 <= 1000 * MS, "{p99:?}");
        assert_eq!(most.longest_lag(), Some(90_000 * MS));
        assert_eq!((most.started(), most.late()), (100, 1));
        // A lag of a second is not late, and a longer one than all bounds is.
        assert_eq!(begun([1000 * MS, 1001 * MS, 1_000_000_000 * MS]).late(), 2);
    }

    #[test]
    fn sums_are_taken_by_kind_and_minute() {
        let sums = Arc::new(Sums::default());
        let kind = |name: &str| Kind::parse(name).unwrap();
        let ledgers = ["a:b:c", "a:b:c", "a:b:d"].map(|name| LedgerSum::new(&sums, &kind(name)));
        let at = |minute: u64| Some(UnixUs(minute * 60_000_000 + 5));
        ledgers[0].begun(at(7), MS);
        assert!(sums.take().is_empty(), "nobody writes them");
        sums.will_be_written();
        ledgers[0].begun(at(7), MS);
        ledgers[1].begun(at(7), 2000 * MS);
        ledgers[1].ended(at(8), "done");
        ledgers[2].ended(at(8), "snoozed");
        ledgers[2].ended(None, "done");
        let taken = sums.take();
        let of_c = &taken[&kind("a:b:c")];
        assert_eq!(Vec::from_iter(of_c.keys()), [&7, &8]);
        assert_eq!(
            (of_c[&7].started(), of_c[&7].late(), of_c[&8].done),
            (2, 1, 1)
        );
        assert!(taken[&kind("a:b:d")][&8].is_empty());
        assert!(sums.take().is_empty());
        // The oldest minutes are dropped.
        (100..200).for_each(|minute| ledgers[0].ended(at(minute), "done"));
        let mut kept = sums.take().remove(&kind("a:b:c")).unwrap();
        assert_eq!(
            (kept.len(), kept.first_key_value().unwrap().0),
            (MINUTES, &140)
        );
        let more = [(150, kept[&150].clone()), (200, Activity::default())];
        merge(&mut kept, Minutes::from(more));
        assert_eq!((kept.len(), kept[&150].done), (MINUTES, 2));
        // The sum of a handle that is gone is gone.
        let [one, ..] = ledgers;
        one.ended(at(1), "done");
        drop(one);
        assert!(sums.take().is_empty());
    }

    proptest! {
        #[test]
        fn an_activity_survives_its_text(lags in prop::collection::vec(0u64..1 << 40, 0..50), done in 0u64..1 << 40) {
            let mut activity = begun(lags.into_iter().map(Duration::from_micros));
            activity.done = done;
            let text = activity.to_string();
            prop_assert_eq!(Activity::parse(text.split(' ')), activity);
        }
    }
}
