//! Follows the changes of jobs as they happen, line by line. A tail that breaks is opened again,
//! and goes on where it ended.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use futures_util::StreamExt;
use tokio::time::{sleep, timeout};

use super::{Call, Jobs, Parts};
use crate::stop::Stop;
use keyfall_daemon::shapes::{AwayOut, HappeningOut, MissedOut, TailIn, TailOut, UnseenOut};

/// The wait before the next call to a daemon that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest wait before the next call, even if the daemon asks for a longer one: there may be
/// room sooner.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The longest silence of a tail: a daemon sends a sign of life every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// The number of past changes that a reopened tail begins with: the most that a daemon sends.
const AGAIN_LAST: usize = 1000;

/// The number of remembered changes: more than a reopened tail can repeat.
const REMEMBERED: usize = 4096;

/// Follows the changes of jobs.
pub(crate) struct Following {
    jobs: Jobs,
    wanted: TailIn,
    open: Option<TailLines>,
    /// The wait before the tail is opened again.
    wait: Duration,
    /// Whether the caller knows that no tail is open now.
    is_closed: bool,
    /// News that the caller gets before anything else.
    news: VecDeque<News>,
    told: Remembered,
}

/// One item of a tail.
#[derive(Debug)]
pub(crate) enum News {
    /// A job or a kind was changed.
    Happened(Box<HappeningOut>),
    /// Changes of this kind were trimmed from its history before they could be read.
    Missed(String),
    /// There were so many changes while the tail was broken that some may be missing.
    Behind,
    /// One of several servers is away.
    Unseen(UnseenOut),
    /// The daemon cannot read the histories now, for this reason.
    Away(String),
    /// The daemon is away or has no room for a tail, for this reason. It is asked again.
    Closed(String),
    /// The daemon has answered again.
    Open,
}

impl Following {
    /// # Errors
    /// If the daemon refuses the tail for good, or does not answer.
    pub(super) async fn new(jobs: Jobs, wanted: TailIn) -> anyhow::Result<Self> {
        let mut following = Following {
            jobs,
            wanted,
            open: None,
            wait: Duration::ZERO,
            is_closed: false,
            news: VecDeque::new(),
            told: Remembered::default(),
        };
        match TailLines::open(&following.jobs, &following.wanted).await {
            Ok(lines) => following.open = Some(lines),
            // The daemon answers, but has no room now.
            Err(error) if Stop::wait_of(&error).is_some() => following.close(error)?,
            Err(error) => return Err(error),
        }
        Ok(following)
    }

    /// Waits for the next item: a change, or a notice that changes were missed or cannot be seen.
    ///
    /// # Errors
    /// If the daemon refuses the tail for good.
    pub(crate) async fn next(&mut self) -> anyhow::Result<News> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            let Some(lines) = &mut self.open else {
                sleep(self.wait).await;
                match TailLines::open(&self.jobs, &self.wanted).await {
                    Ok(lines) => self.open = Some(lines),
                    Err(error) => self.close(error)?,
                }
                continue;
            };
            let line = timeout(SILENCE, lines.next()).await;
            let line =
                line.unwrap_or_else(|_| Err(Stop::unavailable("nothing arrives any more").into()));
            match line {
                Ok(line) => self.take(line)?,
                Err(error) => self.close(error)?,
            }
        }
    }

    fn take(&mut self, line: TailOut) -> anyhow::Result<()> {
        let news = match line {
            TailOut::Alive(alive) => {
                self.told.begin(alive.at.0);
                // After a break, the next tail repeats all changes from here on.
                self.wanted.last = Some(AGAIN_LAST);
                Vec::new()
            }
            TailOut::Happened(it) => match self.told.take(&it) {
                Told::Before => Vec::new(),
                Told::Now => vec![News::Happened(it)],
                Told::Behind => vec![News::Behind, News::Happened(it)],
            },
            TailOut::Missed(MissedOut { kind }) => vec![News::Missed(kind)],
            TailOut::Skipped(_) => vec![News::Behind],
            TailOut::Unseen(one) => vec![News::Unseen(one)],
            TailOut::Away(AwayOut { error }) => vec![News::Away(error)],
            TailOut::Ended(problem) => return self.close(Stop::of_problem(problem).into()),
        };
        if std::mem::take(&mut self.is_closed) {
            self.news.push_back(News::Open);
        }
        self.news.extend(news);
        Ok(())
    }

    /// Notes that the tail broke, or was refused for now. It is opened again; the caller hears of
    /// it once.
    fn close(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        if self.open.take().is_some() {
            self.told.open_again();
        }
        let wait = Stop::wait_of(&error).unwrap_or(AGAIN);
        self.wait = wait.clamp(AGAIN, LONGEST_WAIT);
        let was_closed = std::mem::replace(&mut self.is_closed, true);
        if !Stop::is_passing(&error) {
            return Err(error);
        }
        if !was_closed {
            self.news.push_back(News::Closed(format!("{error:#}")));
        }
        Ok(())
    }
}

/// The lines of a tail that is open.
struct TailLines {
    parts: Parts,
    got: Vec<u8>,
    /// The number of bytes of `got` that were taken.
    taken: usize,
}

impl TailLines {
    async fn open(jobs: &Jobs, wanted: &TailIn) -> anyhow::Result<Self> {
        let parts = jobs
            .open(Call::new("GET", &["tail"]).asking(wanted))
            .await?;
        Ok(TailLines {
            parts,
            got: Vec::new(),
            taken: 0,
        })
    }

    async fn next(&mut self) -> anyhow::Result<TailOut> {
        loop {
            let rest = &self.got[self.taken..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = serde_json::from_slice(&rest[..end]);
                self.taken += end + 1;
                return line.context("this is not an answer of this version of Keyfall");
            }
            self.got.drain(..self.taken);
            self.taken = 0;
            match self.parts.next().await {
                Some(part) => self.got.extend_from_slice(&part?),
                None => return Err(Stop::unavailable("the tail broke off").into()),
            }
        }
    }
}

/// The reported changes, as far as a reopened tail can repeat them.
#[derive(Default)]
struct Remembered {
    /// The time at which the first tail was opened.
    begun: Option<SystemTime>,
    /// The latest changes, in the order in which they came.
    order: VecDeque<u64>,
    known: HashSet<u64>,
    /// Whether the next change is the first of a reopened tail.
    is_again: bool,
    /// Whether the present tail is a reopened one, which repeats changes.
    can_repeat: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// The change was reported before, or is older than the first tail.
    Before,
    /// The change is new.
    Now,
    /// The change is new, and the reopened tail repeats no reported change: some changes since may
    /// be missing.
    Behind,
}

impl Remembered {
    fn begin(&mut self, at: SystemTime) {
        self.begun.get_or_insert(at);
    }

    fn open_again(&mut self) {
        (self.is_again, self.can_repeat) = (true, true);
    }

    fn take(&mut self, it: &HappeningOut) -> Told {
        let (at, name) = (it.at.0, name(it));
        if self.can_repeat && (self.known.contains(&name) || self.is_old(at)) {
            self.is_again = false;
            return Told::Before;
        }
        let is_behind = std::mem::take(&mut self.is_again) && !self.order.is_empty();
        self.order.push_back(name);
        self.known.insert(name);
        if self.order.len() > REMEMBERED
            && let Some(old) = self.order.pop_front()
        {
            self.known.remove(&old);
        }
        if is_behind { Told::Behind } else { Told::Now }
    }

    /// Whether the change happened before the first tail began: that tail has reported the wanted
    /// part of such changes. Only the time of the change tells: a server that was away sends its
    /// changes late.
    fn is_old(&self, at: SystemTime) -> bool {
        self.begun.is_some_and(|begun| at < begun)
    }
}

/// A number that identifies a change, whichever tail sends it.
fn name(it: &HappeningOut) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&it.kind, &it.key, &it.what, it.at.0, &it.by).hash(&mut hasher);
    (it.attempt, it.letter, it.due.map(|due| due.0)).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Response;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::super::answers::{jobs, refused};
    use super::*;

    fn at(ms: u64) -> HappeningOut {
        let time = jiff::Timestamp::from_millisecond(1_700_000_000_000 + ms as i64).unwrap();
        let line = serde_json::json!({"kind": "a:b:c", "what": "done", "at": time.to_string(),
            "by": "web-1:42", "text": "done"});
        serde_json::from_value(line).unwrap()
    }

    #[test]
    fn what_a_tail_repeats_that_was_opened_again_is_told_once() {
        let mut told = Remembered::default();
        told.begin(at(0).at.0);
        let takes = |told: &mut Remembered, times: &[u64]| -> Vec<Told> {
            times.iter().map(|ms| told.take(&at(*ms))).collect()
        };
        // The first tail also reports changes from before its start.
        assert_eq!(
            takes(&mut told, &[5, 7, 6]),
            [Told::Now, Told::Now, Told::Now]
        );
        told.open_again();
        let again = takes(&mut told, &[5, 6, 7, 8]);
        assert_eq!(again, [Told::Before, Told::Before, Told::Before, Told::Now]);
        // A change of another kind comes late.
        told.open_again();
        assert_eq!(
            takes(&mut told, &[7, 4, 9]),
            [Told::Before, Told::Now, Told::Now]
        );
        // The tail begins with new changes only.
        told.open_again();
        assert_eq!(takes(&mut told, &[90, 91]), [Told::Behind, Told::Now]);
    }

    #[test]
    fn an_old_change_that_comes_late_is_told() {
        let mut told = Remembered::default();
        told.begin(at(0).at.0);
        assert_eq!(told.take(&at(60_000)), Told::Now);
        told.open_again();
        assert_eq!(told.take(&at(60_000)), Told::Before);
        // It comes from a server that was away for a minute.
        assert_eq!(told.take(&at(1000)), Told::Now);
    }

    #[test]
    fn what_happened_before_all_of_it_is_not_told_later() {
        let mut told = Remembered::default();
        told.begin(at(1000).at.0);
        told.open_again();
        assert_eq!(told.take(&at(999)), Told::Before);
        assert_eq!(told.take(&at(1000)), Told::Now);
    }

    fn lines(lines: &[Value]) -> Response<Body> {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        Response::new(Body::from(lines))
    }

    fn alive() -> Value {
        let at = serde_json::to_value(at(0)).unwrap()["at"].take();
        json!({"alive": {"at": at}})
    }

    fn happened(ms: u64) -> Value {
        json!({"happened": at(ms)})
    }

    /// The next item as a text: its name and, for a change, its time.
    async fn next(following: &mut Following) -> String {
        match following.next().await.unwrap() {
            News::Happened(it) => {
                let since = it.at.0.duration_since(at(0).at.0);
                format!("happened {}", since.unwrap().as_millis())
            }
            News::Closed(why) => format!("closed: {why}"),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_without_room_is_asked_again_when_it_said() {
        let begun = Instant::now();
        let jobs = jobs([
            refused(429, "too_many_tails", 30),
            refused(429, "rate_limited", 12),
            refused(503, "stopping", 1),
            lines(&[alive(), happened(5)]),
        ]);
        let mut following = jobs.follow(TailIn::default()).await.unwrap();
        assert_eq!(next(&mut following).await, "closed: too_many_tails");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(next(&mut following).await, "Open");
        assert_eq!(begun.elapsed().as_secs(), 30 + 12 + 1);
        assert_eq!(next(&mut following).await, "happened 5");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_for_good_or_finds_nobody_does_not_begin() {
        for refused in [refused(403, "forbidden", 1), refused(503, "stopping", 1)] {
            let refused = jobs([refused]).follow(TailIn::default()).await;
            assert!(refused.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_missing_after_a_break_is_said() {
        let jobs = jobs([
            lines(&[alive(), happened(5)]),
            // An empty tail, which causes no news.
            lines(&[]),
            lines(&[alive(), happened(5), happened(6)]),
            lines(&[alive(), happened(90), happened(91)]),
        ]);
        let mut following = jobs.follow(TailIn::default()).await.unwrap();
        let broken = "closed: the tail broke off";
        for expected in ["happened 5", broken, "Open", "happened 6"] {
            assert_eq!(next(&mut following).await, expected);
        }
        for expected in [broken, "Open", "Behind", "happened 90", "happened 91"] {
            assert_eq!(next(&mut following).await, expected);
        }
    }
}
