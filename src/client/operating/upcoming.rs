//! [`Upcoming`]: how many jobs fall due in each of several spans of time, such as the next sixty
//! minutes.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use crate::client::{Pending, Selection, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::time::UnixMs;

/// The default number of spans, and the largest.
const SPANS: usize = 60;
const MOST_SPANS: usize = 100;

/// The shortest and the longest span.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The latest beginning of the first span: the end of the year 9999. No due time is later.
const LATEST: UnixMs = UnixMs(253_402_300_799_999);

/// A call to [`Selection::upcoming`]; sent when it is awaited. Answers [`Upcoming`].
#[must_use = "nothing is counted until it is awaited"]
pub struct CountUpcoming<'a> {
    selection: Selection<'a>,
    step: Duration,
    spans: usize,
    from: Option<SystemTime>,
}

/// The number of pending jobs that fall due in each span of time; from [`Selection::upcoming`].
/// `overdue`, `earlier`, `spans` and `later` add up to all pending jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upcoming {
    /// The time of the answer, by Redis' clock.
    pub at: SystemTime,
    /// The beginning of the first span.
    pub from: SystemTime,
    /// The length of each span.
    pub step: Duration,
    /// Jobs that are due by now; they are in no span.
    pub overdue: u64,
    /// Other jobs that fall due before the first span.
    pub earlier: u64,
    /// The number of jobs in each span. A span has its beginning, and lacks its end.
    pub spans: Vec<u64>,
    /// Jobs that fall due after the last span.
    pub later: u64,
    /// The shards that were not counted, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl<'a> Selection<'a> {
    /// Counts the pending jobs by the span of time in which they fall due. `step` is the length of
    /// each span, from 1 second to 366 days.
    ///
    /// Costs one call for each shard, which reads no job: a few microseconds for each span, however
    /// many jobs there are.
    ///
    /// # Errors
    /// When it is awaited: if the prefix is not valid or extends into the id, the step or the
    /// [number of spans](CountUpcoming::spans) is out of range, or Redis does not answer in time.
    pub fn upcoming(self, step: Duration) -> CountUpcoming<'a> {
        CountUpcoming {
            selection: self,
            step,
            spans: SPANS,
            from: None,
        }
    }
}

impl CountUpcoming<'_> {
    /// The number of spans, from 1 to 100. Defaults to 60.
    pub fn spans(mut self, spans: usize) -> Self {
        self.spans = spans;
        self
    }

    /// The beginning of the first span. Defaults to the last multiple of the step since the epoch:
    /// with a step of a minute, the beginning of this minute; with a step of a day, the last
    /// midnight of UTC.
    pub fn from(mut self, time: SystemTime) -> Self {
        self.from = Some(time);
        self
    }

    async fn count(self) -> Result<Upcoming> {
        let Selection { client, prefix } = self.selection;
        let prefix = prefix?.of_kinds("counted by the time at which their jobs fall due")?;
        if !(SHORTEST..=LONGEST).contains(&self.step) {
            return Err(invalid(format!(
                "a span is from 1 second to 366 days long, not {:?}",
                self.step
            )));
        }
        if !(1..=MOST_SPANS).contains(&self.spans) {
            return Err(invalid(format!(
                "there are from 1 to {MOST_SPANS} spans, not {}",
                self.spans
            )));
        }
        let from = self
            .from
            .map(|time| UnixMs::from_system(time).unwrap_or_default());
        if from.is_some_and(|from| from > LATEST) {
            return Err(invalid(
                "the first span begins in the year 9999 at the latest: is the unit right?"
                    .to_owned(),
            ));
        }
        let until = client.deadline();
        let now = client.store().time(until).await?.floor_ms();
        let from = match from {
            Some(from) => from,
            None => UnixMs(now.0 - now.0 % self.step.as_millis() as u64),
        };
        let mut due = Upcoming {
            at: now.to_system(),
            from: from.to_system(),
            step: self.step,
            overdue: 0,
            earlier: 0,
            spans: vec![0; self.spans],
            later: 0,
            unseen: Vec::new(),
        };
        let (kinds, mut view) = client.kinds_in_view(&prefix, until).await?;
        let mut ledgers = Vec::new();
        for kind in kinds {
            let kind_shards = client.kind_shards_to_look(kind.as_str())?;
            let all = kind_shards.all().map(|one| one.ledger.clone());
            ledgers.extend(all.filter(|ledger| !view.misses(ledger)));
        }
        let asked = ledgers
            .iter()
            .map(|ledger| ledger.upcoming(now, from, self.step, self.spans, until));
        for (ledger, answer) in ledgers.iter().zip(join_all(asked).await) {
            let Some(answer) = view.take(ledger, answer)? else {
                continue;
            };
            due.overdue += answer.overdue;
            due.earlier += answer.earlier;
            for (span, more) in due.spans.iter_mut().zip(&answer.spans) {
                *span += more;
            }
            let counted = answer.overdue + answer.earlier + answer.spans.iter().sum::<u64>();
            due.later += answer.pending - counted;
        }
        due.unseen = view.unseen();
        Ok(due)
    }
}

fn invalid(rule: String) -> Error {
    Error::new(ErrorKind::InvalidSetting, rule)
}

impl<'a> IntoFuture for CountUpcoming<'a> {
    type Output = Result<Upcoming>;
    type IntoFuture = Pending<'a, Upcoming>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.count())
    }
}
