//! The answers to producers and the runs of handlers, in the order in which they happened, and the
//! rules that hold for them in every order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfall::{Cancelled, Job};

/// A place in the order of everything that was written down.
type Moment = u64;

/// A call of a producer: written down before it was sent and after it was answered. It took
/// effect somewhere in between.
#[derive(Debug, Clone, Copy)]
struct CallSpan {
    sent: Moment,
    answered: Moment,
}

/// An acknowledged schedule, or another payload for one. Every one has a version of its own,
/// which is its payload.
#[derive(Debug)]
struct Scheduled {
    span: CallSpan,
    version: u64,
    wanted: Wanted,
}

/// The effect that an acknowledged call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A job that has to run.
    Job,
    /// Another payload for a job that has to run.
    Payload,
    /// Another payload for a job that is running: it may never run again.
    PayloadOfNext,
}

/// An acknowledged cancel that found a job.
#[derive(Debug)]
struct Cancel {
    span: CallSpan,
    /// It was running, or about to.
    running: bool,
}

/// A run of a handler.
#[derive(Debug)]
struct HandlerRun {
    began: Moment,
    ended: Option<Moment>,
    version: u64,
    attempt: u32,
    fence: u64,
}

/// All events of one key.
#[derive(Debug, Default)]
struct KeyStory {
    schedules: Vec<Scheduled>,
    cancels: Vec<Cancel>,
    runs: Vec<HandlerRun>,
}

/// The events of all keys.
#[derive(Default)]
pub struct RunJournal {
    clock: AtomicU64,
    stories: Mutex<HashMap<String, KeyStory>>,
}

/// Totals of the journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Jobs that were accepted.
    pub accepted: u64,
    pub cancels: usize,
    pub runs: usize,
}

impl RunJournal {
    /// The position of the next event.
    pub fn now(&self) -> Moment {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A schedule was acknowledged that was sent at that place.
    pub fn scheduled(&self, key: &str, sent: Moment, version: u64, wanted: Wanted) {
        let answered = self.now();
        let scheduled = Scheduled {
            span: CallSpan { sent, answered },
            version,
            wanted,
        };
        self.with(key, |story| story.schedules.push(scheduled));
    }

    /// A cancel was answered that was sent at that place.
    pub fn cancelled(&self, key: &str, sent: Moment, answer: Cancelled) {
        let answered = self.now();
        if answer == Cancelled::Absent {
            return;
        }
        let span = CallSpan { sent, answered };
        let running = answer == Cancelled::Running;
        self.with(key, |story| story.cancels.push(Cancel { span, running }));
    }

    /// A handler begins. Returns the number of the run.
    pub fn begins(&self, job: &Job, version: u64) -> usize {
        let began = self.now();
        self.with(job.key().as_str(), |story| {
            story.runs.push(HandlerRun {
                began,
                ended: None,
                version,
                attempt: job.attempt(),
                fence: job.fence(),
            });
            story.runs.len() - 1
        })
    }

    /// The run with this number ends.
    pub fn ends(&self, job: &Job, run: usize) {
        let ended = self.now();
        self.with(job.key().as_str(), |story| {
            story.runs[run].ended = Some(ended)
        });
    }

    fn with<T>(&self, key: &str, write: impl FnOnce(&mut KeyStory) -> T) -> T {
        let mut stories = self.stories.lock().unwrap();
        write(stories.entry(key.to_owned()).or_default())
    }

    /// Checks every key, when nothing is pending or running any more. `letters` are the versions
    /// that ended as dead letters. Returns the sum, or all that is wrong.
    pub fn check(&self, letters: &HashMap<String, Vec<u64>>) -> Result<Sum, Vec<String>> {
        let stories = self.stories.lock().unwrap();
        let mut sum = Sum::default();
        let mut wrong = Vec::new();
        for (key, story) in stories.iter() {
            let schedules = story.schedules.iter();
            sum.accepted += schedules.filter(|one| one.wanted == Wanted::Job).count() as u64;
            sum.cancels += story.cancels.len();
            sum.runs += story.runs.len();
            let letters = letters.get(key).map_or(&[][..], Vec::as_slice);
            let faults = [
                story.lost(letters),
                story.ran_after_cancel(),
                story.overlaps(),
                story.strangers(),
            ];
            for fault in faults.into_iter().flatten() {
                wrong.push(format!("{key}: {fault}\n{story:#?}"));
            }
        }
        if wrong.is_empty() {
            Ok(sum)
        } else {
            Err(wrong)
        }
    }
}

impl KeyStory {
    /// An acknowledged schedule that neither ran, nor was replaced or cancelled, nor died.
    fn lost(&self, letters: &[u64]) -> Option<String> {
        let is_accounted_for = |one: &&Scheduled| {
            let ran = self.runs.iter().any(|run| run.version == one.version);
            let later = |span: &CallSpan| span.answered > one.span.sent;
            let replaced = self
                .schedules
                .iter()
                .any(|other| other.version != one.version && later(&other.span));
            let cancelled = self.cancels.iter().any(|cancel| later(&cancel.span));
            ran || replaced || cancelled || letters.contains(&one.version)
        };
        let must_run = |one: &&Scheduled| one.wanted != Wanted::PayloadOfNext;
        let mut all = self.schedules.iter().filter(must_run);
        let lost = all.find(|one| !is_accounted_for(one))?;
        Some(format!("version {} is lost", lost.version))
    }

    /// A run of a job that was scheduled before a cancel, begun after the cancel was acknowledged.
    fn ran_after_cancel(&self) -> Option<String> {
        for cancel in &self.cancels {
            let before = |run: &&HandlerRun| {
                let schedule = self.schedules.iter().find(|one| one.version == run.version);
                schedule.is_some_and(|one| one.span.answered < cancel.span.sent)
            };
            let after = self
                .runs
                .iter()
                .filter(|run| run.began > cancel.span.answered);
            // The run that the cancel found claimed may begin only now.
            let allowed = usize::from(cancel.running);
            if after.clone().filter(before).count() > allowed {
                return Some(format!("it ran after {cancel:?}"));
            }
        }
        None
    }

    /// Two runs at the same time, or a fencing value that did not grow.
    fn overlaps(&self) -> Option<String> {
        for pair in self.runs.windows(2) {
            let [earlier, later] = pair else {
                unreachable!()
            };
            if earlier.ended.is_none_or(|ended| ended > later.began) {
                return Some(format!("{earlier:?} and {later:?} overlap"));
            }
            if earlier.fence >= later.fence {
                return Some(format!("{earlier:?} and {later:?} have no order"));
            }
        }
        None
    }

    /// A run of a version that nobody scheduled, or two runs that are the same attempt.
    fn strangers(&self) -> Option<String> {
        let mut attempts: BTreeMap<u64, u32> = BTreeMap::new();
        for run in &self.runs {
            if self.schedules.iter().all(|one| one.version != run.version) {
                return Some(format!("{run:?} was never acknowledged"));
            }
            let last = attempts.insert(run.version, run.attempt);
            if last.is_some_and(|last| last > run.attempt) {
                return Some(format!("{run:?} counts backwards"));
            }
        }
        None
    }
}
