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
use keyfall_daemon::shapes::{AwayOut, HappeningOut, MissedOut, TailIn, TailOut};

/// How long to wait until a daemon is asked again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

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
    /// Whether it was said that nobody answers.
    is_away: bool,
    told: Remembered,
}

impl Following {
    pub(super) async fn new(jobs: Jobs, wanted: TailIn) -> anyhow::Result<Self> {
        let open = Some(Lines::open(&jobs, &wanted).await?);
        Ok(Following {
            jobs,
            wanted,
            open,
            is_away: false,
            told: Remembered::default(),
        })
    }

    /// What happened next, or what was missed, or is not seen for a while; waits for it.
    ///
    /// # Errors
    /// If it was refused, and would be again.
    pub(crate) async fn next(&mut self) -> anyhow::Result<TailOut> {
        loop {
            let Some(lines) = &mut self.open else {
                sleep(AGAIN).await;
                match Lines::open(&self.jobs, &self.wanted).await {
                    Ok(lines) => self.open = Some(lines),
                    Err(error) => {
                        if let Some(away) = self.away(error)? {
                            return Ok(away);
                        }
                    }
                }
                continue;
            };
            let line = timeout(SILENCE, lines.next()).await;
            let line =
                line.unwrap_or_else(|_| Err(Stop::unavailable("nothing comes any more").into()));
            match line {
                Ok(TailOut::Alive(alive)) => {
                    self.is_away = false;
                    self.told.begin(alive.at.0);
                    // All that comes after this is to be told if it breaks.
                    self.wanted.last = Some(AGAIN_LAST);
                }
                Ok(TailOut::Ended(problem)) => {
                    if let Some(away) = self.away(Stop::of_problem(problem).into())? {
                        return Ok(away);
                    }
                }
                Ok(TailOut::Happened(it)) => {
                    self.is_away = false;
                    match self.told.take(&it) {
                        Told::Before => {}
                        Told::Now => return Ok(TailOut::Happened(it)),
                        Told::Behind => {
                            lines.first = Some(TailOut::Happened(it.clone()));
                            return Ok(TailOut::Missed(MissedOut { kind: it.kind }));
                        }
                    }
                }
                Ok(other) => return Ok(other),
                Err(error) => {
                    if let Some(away) = self.away(error)? {
                        return Ok(away);
                    }
                }
            }
        }
    }

    /// It has broken, and is opened again: what is said of that, once.
    fn away(&mut self, error: anyhow::Error) -> anyhow::Result<Option<TailOut>> {
        if !Stop::is_passing(&error) {
            return Err(error);
        }
        self.open = None;
        self.told.open_again();
        if std::mem::replace(&mut self.is_away, true) {
            return Ok(None);
        }
        let error = format!("{error:#}");
        Ok(Some(TailOut::Away(AwayOut { error })))
    }
}

/// The lines of a tail that is open.
struct Lines {
    parts: Parts,
    got: Vec<u8>,
    /// How much of that was taken.
    taken: usize,
    /// What comes before all else.
    first: Option<TailOut>,
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
            first: None,
        })
    }

    async fn next(&mut self) -> anyhow::Result<TailOut> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
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
    /// The same, and what was told last lies further back than the tail reaches.
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
        if std::mem::take(&mut self.is_again) && !self.order.is_empty() {
            return Told::Behind;
        }
        self.order.push_back(name);
        self.known.insert(name);
        if self.order.len() > REMEMBERED
            && let Some(old) = self.order.pop_front()
        {
            self.known.remove(&old);
        }
        Told::Now
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
        assert_eq!(
            takes(&mut told, &[90, 90, 91]),
            [Told::Behind, Told::Now, Told::Now]
        );
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
}
