//! The jobs of a client without Redis, for a rehearsal: one ledger in memory.
//!
//! `answers` answers the calls of the client as the scripts do, by the table in `docs/states.md`.
//! The rehearsal runs the jobs, one at a time, and settles them here. Not here: batches, leases that
//! lapse, shards, counters, history and dead letters of earlier jobs.

mod answers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;

pub(super) use answers::InMemory;

use super::{Client, ClientInner};
use crate::clock::Clock;
use crate::key::JobKey;
use crate::names::Names;
use crate::record::Header;
use crate::settings::ClientSettings;
use crate::store::{Found, JobVersion, Mode, Next, Placement, Store, Verb, VersionState, When};
use crate::time::{UnixMs, UnixUs};

/// How long a run in memory has its lease, for those who look at it meanwhile.
const LEASE: std::time::Duration = std::time::Duration::from_secs(30);

/// The most steps that a record keeps, as in a ledger.
const STEPS: usize = 8;

/// The jobs in memory, which a client and its rehearsal share.
pub(crate) struct MemoryLedger {
    clock: Clock,
    jobs: Mutex<MemoryJobs>,
}

/// All jobs, by name; a job that has ended stays until another one takes its name.
#[derive(Default)]
pub(crate) struct MemoryJobs {
    now: UnixUs,
    by_key: BTreeMap<JobKey, MemoryJob>,
    /// The last due time of each throttled name.
    spaced: BTreeMap<JobKey, UnixMs>,
    run: Option<MemoryRun>,
}

/// A job in memory.
#[derive(Debug, Clone)]
pub(crate) struct MemoryJob {
    pub(crate) header: Header,
    pub(crate) payload: Bytes,
    pub(crate) due: UnixMs,
    pub(crate) accepted: UnixUs,
    /// The error of the last failure. Unlike the one in the header, it stays when the next occurrence
    /// of a recurring job begins.
    pub(crate) error: Option<String>,
    pub(crate) stage: MemoryStage,
    /// As a record has them: `step@ms`.
    steps: Vec<String>,
}

/// Where a job in memory stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryStage {
    /// It is still to run, or runs.
    Waiting,
    Done,
    /// It ended without a run.
    Skipped,
    Cancelled,
    /// It died at this time.
    Dead(UnixMs),
    HandedOver,
}

/// The run in progress.
struct MemoryRun {
    key: JobKey,
    /// Raises the cancellation signal of the handler.
    stop: Box<dyn Fn() + Send>,
    is_cancelled: bool,
    /// The job that follows the run, instead of its retries.
    successor: Option<MemoryJob>,
}

impl MemoryLedger {
    fn new(clock: Clock) -> Arc<Self> {
        Arc::new(MemoryLedger {
            clock,
            jobs: Mutex::default(),
        })
    }

    /// The jobs, at the time of the clock.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut MemoryJobs) -> T) -> T {
        let mut jobs = self.jobs.lock().expect("no panic while held");
        jobs.now = micros(self.clock.now());
        act(&mut jobs)
    }

    /// The clock that the jobs go by.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The time, in the milliseconds of due times.
    pub(super) fn now(&self) -> UnixMs {
        micros(self.clock.now()).floor_ms()
    }
}

/// Whole microseconds since the epoch.
pub(crate) fn micros(time: SystemTime) -> UnixUs {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.unwrap_or_default().as_micros();
    UnixUs(u64::try_from(micros).unwrap_or(u64::MAX))
}

impl MemoryJobs {
    /// The due time of a schedule that would be due at `asked`; and the time of acceptance that the
    /// job takes over from the one that it replaces.
    fn spaced_due(&mut self, it: &Placement, asked: UnixMs) -> (UnixMs, Option<UnixUs>) {
        let now = self.now.floor_ms();
        let there = match self.changeable(&it.key) {
            Some((VersionState::Pending | VersionState::Successor, job)) => Some(&*job),
            _ => None,
        };
        let since = there.filter(|job| !job.was_tried()).map(|job| job.accepted);
        match it.mode {
            Mode::Debounce(most) => {
                let first = since.map_or(now, UnixUs::floor_ms);
                (now.max(asked.min(first.plus(most))), since)
            }
            Mode::Throttle(span) => {
                let pending = there.map(|job| job.due);
                let last = self.spaced.get(&it.key).copied();
                let next = last.map_or(asked, |last| asked.max(last.plus(span)));
                let due = pending.map_or(next, |due| due.min(next));
                self.spaced.insert(it.key.clone(), due);
                (due, since)
            }
            _ => (asked, None),
        }
    }
}

impl MemoryJob {
    /// A job that is accepted now.
    pub(crate) fn new(header: Header, payload: Bytes, due: UnixMs, now: UnixUs) -> Self {
        MemoryJob {
            header,
            payload,
            due,
            accepted: now,
            error: None,
            stage: MemoryStage::Waiting,
            steps: Vec::new(),
        }
    }

    fn is_waiting(&self) -> bool {
        self.stage == MemoryStage::Waiting
    }

    fn step(&mut self, step: &str, now: UnixUs) {
        self.steps.push(format!("{step}@{}", now.floor_ms()));
        let surplus = self.steps.len().saturating_sub(STEPS);
        self.steps.drain(..surplus);
    }

    /// The record, as a ledger has it.
    fn record(&self) -> Vec<u8> {
        let mut header = self.header.clone();
        header.us = u32::try_from(self.accepted.0 % 1000).expect("below 1000");
        let words = std::iter::once(self.accepted.floor_ms().to_string());
        let words: Vec<String> = words.chain(self.steps.iter().cloned()).collect();
        let mut record = format!("{}\n{}\n", header.to_line(), words.join(" ")).into_bytes();
        record.extend_from_slice(&self.payload);
        record
    }
}

impl MemoryJobs {
    pub(crate) fn now(&self) -> UnixUs {
        self.now
    }

    /// The job that was last stored under this name, whatever became of it.
    pub(crate) fn get(&self, key: &JobKey) -> Option<&MemoryJob> {
        self.by_key.get(key)
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, key: &JobKey) -> Option<&mut MemoryJob> {
        self.by_key.get_mut(key)
    }

    /// Stores a job in the place of any other of its name.
    pub(crate) fn put(&mut self, key: JobKey, job: MemoryJob) {
        self.by_key.insert(key, job);
    }

    /// The first job that is due by then, of those that fit: by due time, then by name.
    pub(crate) fn next_due(&self, by: UnixMs, fits: impl Fn(&JobKey) -> bool) -> Option<JobKey> {
        let jobs = self.by_key.iter();
        let due = jobs.filter(|(key, job)| job.is_waiting() && job.due <= by && fits(key));
        let (key, _) = due.min_by_key(|(_, job)| job.due)?;
        Some(key.clone())
    }

    /// Begins the run of a job; `stop` is called if the job is cancelled meanwhile.
    pub(crate) fn begin(&mut self, key: JobKey, stop: impl Fn() + Send + 'static) {
        self.run = Some(MemoryRun {
            key,
            stop: Box::new(stop),
            is_cancelled: false,
            successor: None,
        });
    }

    /// Ends attempt number `attempt` of a job; without a verb, the job was handed over.
    pub(crate) fn settle(&mut self, key: &JobKey, attempt: u32, verb: Option<Verb>, next: Next) {
        let now = self.now;
        let run = self.run.take().filter(|run| run.key == *key);
        let (is_cancelled, successor) =
            run.map_or((false, None), |run| (run.is_cancelled, run.successor));
        let Some(job) = self.by_key.get_mut(key) else {
            return;
        };
        let is_done = matches!(verb, Some(Verb::Done));
        job.count(attempt, verb, now);
        if let Some(successor) = successor {
            *job = successor;
        } else if is_cancelled {
            // A run that ends well is done all the same, and a rule ends with its cancel.
            if !is_done {
                job.stage = MemoryStage::Cancelled;
            }
        } else if let Next::At(due, header) = next {
            job.begin_anew(due, &header, now);
        }
    }

    /// The answer of a lookup.
    pub(super) fn find(&self, key: &JobKey) -> Found {
        let Some(job) = self.by_key.get(key) else {
            return Found::Absent;
        };
        if let Some(run) = self.run.as_ref().filter(|run| run.key == *key) {
            let flag = if run.is_cancelled { "cancelled" } else { "-" };
            let successor = run.successor.as_ref().map(|next| {
                let due = format!("{} ", next.due).into_bytes();
                [due, next.record()].concat()
            });
            return Found::Leased {
                now: self.now,
                deadline: self.now.floor_ms().plus(LEASE),
                lease: format!("rehearsal 1 {} {} {flag}", self.now.0, job.due),
                record: job.record(),
                successor: successor.unwrap_or_default(),
            };
        }
        match job.stage {
            MemoryStage::Waiting => Found::Pending {
                due: job.due,
                record: job.record(),
            },
            MemoryStage::Dead(died) => Found::Dead {
                died,
                number: 1,
                record: job.record(),
            },
            _ => Found::Absent,
        }
    }

    /// The job that a call can change: the pending one, or the successor of the run.
    fn changeable(&mut self, key: &JobKey) -> Option<(VersionState, &mut MemoryJob)> {
        match self.run.as_mut().filter(|run| run.key == *key) {
            Some(MemoryRun {
                successor: Some(next),
                ..
            }) => Some((VersionState::Successor, next)),
            Some(_) => Some((VersionState::Leased, self.by_key.get_mut(key)?)),
            None => {
                let job = self.by_key.get_mut(key).filter(|job| job.is_waiting());
                Some((VersionState::Pending, job?))
            }
        }
    }

    /// Whether a job is as a caller has seen it.
    fn is_as_seen(&self, key: &JobKey, seen: &JobVersion) -> bool {
        let there = JobVersion::of(&self.find(key));
        there.is_some_and(|it| it.state == seen.state && it.opening == seen.opening)
    }

    /// The due time of a call that is made now, for a job that is due at `old`.
    fn due(&self, when: When, old: UnixMs) -> UnixMs {
        let (floor, now) = (self.now.floor_ms(), self.now);
        let after = |from: UnixUs, delay| {
            let due = from.plus(delay);
            UnixMs(due.0.div_ceil(1000))
        };
        match when {
            When::After(delay) => after(now, delay),
            When::At(due) => due.max(floor),
            When::By(delay) => after(UnixUs(old.0.saturating_mul(1000)), delay),
        }
    }
}

impl MemoryJob {
    /// Applies the end of an attempt.
    fn count(&mut self, attempt: u32, verb: Option<Verb>, now: UnixUs) {
        let header = |line: &str| Header::parse(line.as_bytes()).unwrap_or_default();
        match verb {
            None => self.stage = MemoryStage::HandedOver,
            Some(Verb::Done) => {
                self.header.attempts = attempt;
                self.error = None;
                self.stage = MemoryStage::Done;
            }
            Some(Verb::Skip { .. }) => self.stage = MemoryStage::Skipped,
            Some(Verb::Later {
                when,
                header: line,
                step,
            }) => {
                self.header = header(&line);
                if matches!(step, "failed" | "again") {
                    self.error.clone_from(&self.header.error);
                }
                self.due = match when {
                    When::At(due) => due,
                    When::After(delay) | When::By(delay) => {
                        UnixMs(now.plus(delay).0.div_ceil(1000))
                    }
                };
                self.step(step, now);
            }
            Some(Verb::Bury { header: line }) => {
                self.header = header(&line);
                self.error.clone_from(&self.header.error);
                self.step("buried", now);
                self.stage = MemoryStage::Dead(now.floor_ms());
            }
        }
    }

    /// Whether an attempt has ended.
    fn was_tried(&self) -> bool {
        let ends = |step: &String| {
            let (what, _) = step.split_once('@').unwrap_or_default();
            matches!(what, "failed" | "again" | "snoozed")
        };
        self.steps.iter().any(ends)
    }

    /// Begins the next occurrence.
    fn begin_anew(&mut self, due: UnixMs, header: &str, now: UnixUs) {
        self.header = Header::parse(header.as_bytes()).unwrap_or_default();
        self.due = due;
        self.accepted = now;
        self.steps.clear();
        self.stage = MemoryStage::Waiting;
    }
}

impl Client {
    /// A client whose jobs are in memory, by this clock. Calls that need a Redis are refused.
    pub(crate) fn in_memory(clock: Clock) -> Self {
        let settings = ClientSettings::default();
        let names = Names::new(&settings.namespace);
        let store = Store::absent(names, &settings.link);
        let mut inner = ClientInner::new(settings, store);
        inner.memory = Some(MemoryLedger::new(clock));
        Client(Arc::new(inner), None)
    }

    /// The jobs of a client that has them in memory.
    pub(crate) fn memory(&self) -> Option<&Arc<MemoryLedger>> {
        self.0.memory.as_ref()
    }
}
