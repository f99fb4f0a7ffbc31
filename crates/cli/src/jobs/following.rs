//! What is done to jobs, as it happens, line by line. A tail that breaks is opened again, and goes on
//! where it was.

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

/// How long to wait until a daemon is asked again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// How long to wait at the most, whatever the daemon says: there may be room sooner.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How long it may be silent: a daemon says every 15 seconds that it lives.
const SILENCE: Duration = Duration::from_secs(60);

/// How many changes a tail that is opened again begins with, the most that there can be.
const AGAIN_LAST: usize = 1000;

/// How many changes are remembered: more than a tail that is opened again can repeat.
const REMEMBERED: usize = 4096;

/// Follows what is done to jobs.
pub(crate) struct Following {
    jobs: Jobs,
    wanted: TailIn,
    open: Option<Lines>,
    /// How long to wait until it is opened again.
    wait: Duration,
    /// Whether it was said that nothing can be followed now.
    is_closed: bool,
    /// What comes before all else.
    news: VecDeque<News>,
    told: Remembered,
}

/// What comes of following.
#[derive(Debug)]
pub(crate) enum News {
    /// Something was done to a job, or to a kind.
    Happened(Box<HappeningOut>),
    /// Changes of this kind were trimmed from its history before they could be read.
    Missed(String),
    /// So much happened while the tail was away that some of it may be missing.
    Behind,
    /// One of several servers is away.
    Unseen(UnseenOut),
    /// The daemon cannot read the histories now, and why.
    Away(String),
    /// The daemon is away, or has no room for a tail, and why. It is asked again.
    Closed(String),
    /// It has answered again.
    Open,
}

impl Following {
    /// # Errors
    /// If it was refused, and would be again, or nobody answers.
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
        match Lines::open(&following.jobs, &following.wanted).await {
            Ok(lines) => following.open = Some(lines),
            // The daemon is there, and has no room now.
            Err(error) if Stop::wait_of(&error).is_some() => following.close(error)?,
            Err(error) => return Err(error),
        }
        Ok(following)
    }

    /// What happened next, or what was missed, or is not seen for a while; waits for it.
    ///
    /// # Errors
    /// If it was refused, and would be again.
    pub(crate) async fn next(&mut self) -> anyhow::Result<News> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            let Some(lines) = &mut self.open else {
                sleep(self.wait).await;
                match Lines::open(&self.jobs, &self.wanted).await {
                    Ok(lines) => self.open = Some(lines),
                    Err(error) => self.close(error)?,
                }
                continue;
            };
            let line = timeout(SILENCE, lines.next()).await;
            let line =
                line.unwrap_or_else(|_| Err(Stop::unavailable("nothing comes any more").into()));
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
                // All that comes after this is to be told if it breaks.
                self.wanted.last = Some(AGAIN_LAST);
                Vec::new()
            }
            TailOut::Happened(it) => match self.told.take(&it) {
                Told::Before => Vec::new(),
                Told::Now => vec![News::Happened(it)],
                Told::Behind => vec![News::Behind, News::Happened(it)],
            },
            TailOut::Missed(MissedOut { kind }) => vec![News::Missed(kind)],
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

    /// The tail has broken, or was refused for now. That is said once, and it is opened again.
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
struct Lines {
    parts: Parts,
    got: Vec<u8>,
    /// How much of that was taken.
    taken: usize,
}

impl Lines {
    async fn open(jobs: &Jobs, wanted: &TailIn) -> anyhow::Result<Self> {
        let parts = jobs
            .open(Call::new("GET", &["tail"]).asking(wanted))
            .await?;
        Ok(Lines {
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
                return line.context("this is no answer of Keyfall, or of another version of it");
            }
            self.got.drain(..self.taken);
            self.taken = 0;
            match self.parts.next().await {
                Some(part) => self.got.extend_from_slice(&part?),
                None => return Err(Stop::unavailable("what happens broke off").into()),
            }
        }
    }
}

/// What has been told, as far as a tail that is opened again can tell it once more.
#[derive(Default)]
struct Remembered {
    /// When the first tail was opened.
    begun: Option<SystemTime>,
    /// The latest, in the order in which they came.
    order: VecDeque<u64>,
    known: HashSet<u64>,
    /// Whether the next one is the first of a tail that was opened again.
    is_again: bool,
    /// Whether this tail is one of those.
    can_repeat: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// It was told, or is older than all that is to be told.
    Before,
    /// Now is the first time.
    Now,
    /// The same, and nothing of what was told before lies within the reach of the tail: some of what
    /// happened since may be missing.
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

    /// Whether it happened before the first tail began, which told what it wanted of that. How late
    /// a change comes says nothing: a server that was away tells its changes afterwards.
    fn is_old(&self, at: SystemTime) -> bool {
        self.begun.is_some_and(|begun| at < begun)
    }
}

/// The same for the same change, whoever tells it.
fn name(it: &HappeningOut) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&it.kind, &it.key, &it.what, it.at.0, &it.by).hash(&mut hasher);
    (it.attempt, it.letter, it.due.map(|due| due.0)).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::Body;
    use axum::http::{Response, header};
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::super::redis::Redis;
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
        // The first tail tells what was before it as well.
        assert_eq!(
            takes(&mut told, &[5, 7, 6]),
            [Told::Now, Told::Now, Told::Now]
        );
        told.open_again();
        let again = takes(&mut told, &[5, 6, 7, 8]);
        assert_eq!(again, [Told::Before, Told::Before, Told::Before, Told::Now]);
        // Those of another kind that came late.
        told.open_again();
        assert_eq!(
            takes(&mut told, &[7, 4, 9]),
            [Told::Before, Told::Now, Told::Now]
        );
        // All that it begins with is new.
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
        // By a server that was away for a minute.
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
    /// A daemon in this process, which gives these answers one after the other.
    fn jobs(answers: impl Into<VecDeque<Response<Body>>>) -> Jobs {
        let answers = Arc::new(Mutex::new(answers.into()));
        let routes = Router::new().fallback(move || {
            let answer = answers.lock().unwrap().pop_front();
            async { answer.expect("nobody asks for more") }
        });
        Jobs::Redis(Redis { routes })
    }

    fn refused(status: u16, code: &str, wait: u64) -> Response<Body> {
        let problem = json!({"status": status, "title": code, "detail": code, "code": code,
            "retryable": true});
        let answer = Response::builder().status(status);
        let answer = answer.header(header::RETRY_AFTER, wait);
        answer.body(Body::from(problem.to_string())).unwrap()
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

    /// What comes next, in a word, and when it happened.
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
            // Nothing comes of it, and nothing is said of that.
            lines(&[]),
            lines(&[alive(), happened(5), happened(6)]),
            lines(&[alive(), happened(90), happened(91)]),
        ]);
        let mut following = jobs.follow(TailIn::default()).await.unwrap();
        let broken = "closed: what happens broke off";
        for expected in ["happened 5", broken, "Open", "happened 6"] {
            assert_eq!(next(&mut following).await, expected);
        }
        for expected in [broken, "Open", "Behind", "happened 90", "happened 91"] {
            assert_eq!(next(&mut following).await, expected);
        }
    }
}
