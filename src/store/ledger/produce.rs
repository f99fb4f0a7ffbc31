//! The operations of producers on a ledger: schedule, reschedule, update, amend and cancel. Each call
//! takes the items of one batch and returns one answer for each, in their order.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::counted;
use crate::error::Result;
use crate::key::JobKey;
use crate::names::MARKER;
use crate::store::ledger::reply::Answered;
use crate::store::ledger::script::{AMEND, CANCEL, RESCHEDULE, SCHEDULE, UPDATE};
use crate::store::{Found, Lane, Ledger};
use crate::time::UnixMs;

/// The due time of a job. Scripts turn a delay into a time by the clock of Redis, and round up to
/// milliseconds. A job with a time in the past is due at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// This long after the call.
    After(Duration),
    /// At this time.
    At(UnixMs),
    /// This long after the present due time. For reschedule only.
    By(Duration),
}

/// The effect of `schedule` on a job that exists, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Creates or replaces the job.
    Set,
    /// Creates the job only; a job that exists stays.
    Absent,
    /// Replaces the job only; it creates none.
    Present,
    /// Creates or replaces the job, unless the stored order number is higher.
    Ordered,
    /// Creates the job, or replaces it and waits again for the delay, but at most so long after the
    /// first such call.
    Debounce(Duration),
    /// Creates or replaces the job, due so long after the last one of its name.
    Throttle(Duration),
}

/// One job to schedule. Neighbours in a batch that share mode and header cost less to send.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    /// The name of the job.
    pub(crate) key: JobKey,
    /// The effect on a job that exists.
    pub(crate) mode: Mode,
    /// The due time; never [`When::By`].
    pub(crate) when: When,
    /// The header of its record, in the form of [`crate::record::Header`].
    pub(crate) header: Cow<'static, str>,
    /// The payload: any bytes.
    pub(crate) payload: Bytes,
}

/// One job to cancel under a condition.
#[derive(Debug, Clone)]
pub(crate) struct CancelIf {
    pub(crate) key: JobKey,
    pub(crate) condition: Condition,
}

/// When a job is cancelled.
#[derive(Debug, Clone)]
pub(crate) enum Condition {
    /// If its order number is lower than this one.
    OrderBelow(u64),
    /// If it is as the caller has seen it.
    #[cfg(feature = "worker")]
    Seen(JobVersion),
}

/// One job that gets another payload.
#[derive(Debug, Clone)]
pub(crate) struct Update {
    pub(crate) key: JobKey,
    /// The new payload.
    pub(crate) payload: Bytes,
}

/// One job that gets another header and due time, if it is as the caller has seen it.
#[derive(Debug, Clone)]
pub(crate) struct Amendment {
    pub(crate) key: JobKey,
    pub(crate) seen: JobVersion,
    /// The new due time; never [`When::By`].
    pub(crate) when: When,
    /// The new header, in the form of [`crate::record::Header`].
    pub(crate) header: Cow<'static, str>,
    /// The new payload, unless the present one stays.
    pub(crate) payload: Option<Bytes>,
}

/// A job as a caller has seen it: any change of the job changes this.
#[derive(Debug, Clone)]
pub(crate) struct JobVersion {
    pub(crate) state: VersionState,
    /// The first two lines of the record, with their line ends: of the successor, if there is one.
    pub(crate) opening: Bytes,
}

/// The state of a job that is to be amended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionState {
    Pending,
    /// It runs, and has no successor.
    Leased,
    /// It runs, and its successor is to be amended.
    Successor,
}

/// One job that gets another due time.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) key: JobKey,
    /// The new due time, or the shift of the old one.
    pub(crate) when: When,
    /// The name of the step that the record keeps.
    pub(crate) step: &'static str,
}

impl JobVersion {
    /// The job of a lookup; `None` if it is neither pending nor running.
    pub(crate) fn of(found: &Found) -> Option<Self> {
        let (state, record) = match found {
            Found::Pending { record, .. } => (VersionState::Pending, &record[..]),
            Found::Leased {
                record, successor, ..
            } => match successor.iter().position(|byte| *byte == b' ') {
                Some(at) => (VersionState::Successor, &successor[at + 1..]),
                None => (VersionState::Leased, &record[..]),
            },
            _ => return None,
        };
        let mut ends = record
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n');
        let end = ends.nth(1).map_or(record.len(), |(at, _)| at + 1);
        Some(JobVersion {
            state,
            opening: Bytes::copy_from_slice(&record[..end]),
        })
    }

    /// As `lua/lib/version.lua` reads it.
    pub(in crate::store) fn to_arg(&self) -> Vec<u8> {
        let state: &[u8] = match self.state {
            VersionState::Pending => b"pending ",
            VersionState::Leased => b"leased ",
            VersionState::Successor => b"successor ",
        };
        [state, &self.opening].concat()
    }
}

impl CancelIf {
    /// The item of `lua/cancel.lua`. An id contains neither blanks nor line ends, so these separate
    /// it from its condition.
    fn to_arg(&self) -> Vec<u8> {
        let id = self.key.id();
        match &self.condition {
            Condition::OrderBelow(limit) => format!("{id} {limit}").into(),
            #[cfg(feature = "worker")]
            Condition::Seen(version) => [id.as_bytes(), b"\n", &version.to_arg()].concat(),
        }
    }
}

impl Placement {
    /// Whether the call creates a job that does not exist.
    pub(crate) fn creates(&self) -> bool {
        self.mode != Mode::Present
    }

    /// Whether the two share mode and header, which the script then gets only once.
    fn is_like(&self, other: &Self) -> bool {
        self.mode == other.mode && self.header == other.header
    }
}

impl When {
    /// The argument of scripts: `+ms`, `>ms` or `@ms`, rounded up so that no job is early.
    pub(in crate::store) fn to_arg(self) -> String {
        match self {
            When::After(delay) => format!("+{}", whole_ms(delay)),
            When::By(delay) => format!(">{}", whole_ms(delay)),
            When::At(due) => format!("@{due}"),
        }
    }
}

/// Whole milliseconds, rounded up.
fn whole_ms(delay: Duration) -> u128 {
    delay.as_nanos().div_ceil(1_000_000)
}

impl Mode {
    /// The argument of `lua/schedule.lua`.
    fn to_arg(self) -> Cow<'static, str> {
        match self {
            Mode::Set => "set".into(),
            Mode::Absent => "absent".into(),
            Mode::Present => "present".into(),
            Mode::Ordered => "ordered".into(),
            Mode::Debounce(most) => format!("debounce:{}", whole_ms(most)).into(),
            Mode::Throttle(span) => format!("throttle:{}", whole_ms(span)).into(),
        }
    }
}

impl Ledger {
    /// Creates or replaces jobs; `lua/schedule.lua`. A job that is named twice counts as two calls,
    /// in order. The answers:
    ///
    /// - `Created`, `Replaced`: the job is pending.
    /// - `Succeeds`: the job is running, and this schedule follows the run.
    /// - `Exists`, `Absent`: the mode forbids the change.
    /// - `Overtaken`: the stored job has a higher order number.
    /// - `Elsewhere`, `Stale`: another ledger has the job now; look up the layout and send the call
    ///   there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was stored.
    pub(crate) async fn schedule(
        &self,
        lane: &mut Lane,
        items: &[Placement],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let keys = self.names.of_producers();
        let mut cmd = self.call(&SCHEDULE, &keys, items.iter().map(|item| &item.key));
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&self.names.subject).arg(MARKER);
        for alike in items.chunk_by(|one, next| one.is_like(next)) {
            let Placement { mode, header, .. } = &alike[0];
            cmd.arg(&*mode.to_arg()).arg(&**header).arg(alike.len());
            for item in alike {
                cmd.arg(item.key.id())
                    .arg(item.when.to_arg())
                    .arg(&item.payload[..]);
            }
        }
        let mut answers = self.eval_items(&SCHEDULE, &cmd, items.len(), until).await?;
        self.arm(items.iter().map(|item| &item.key), &mut answers)
            .await;
        self.meter().scheduled(counted::scheduled(&answers));
        Ok(answers)
    }

    /// Gives jobs another due time, all or none; `lua/reschedule.lua`. The answers:
    ///
    /// - `Moved`: the job is pending at the new time.
    /// - `SuccessorMoved`: the job is running, and its successor has the new time.
    /// - `Running`: the job is running and has no successor; nothing was done.
    /// - `Absent`: there is no such job.
    /// - `Elsewhere`, `Stale`: as in [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was changed.
    pub(crate) async fn reschedule(
        &self,
        lane: &mut Lane,
        items: &[Change],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let keys: [&str; 7] = [
            &n.due, &n.shadow, &n.lease, &n.next, &n.calls, &n.lanes, &n.history,
        ];
        let mut cmd = self.call(&RESCHEDULE, &keys, items.iter().map(|item| &item.key));
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&n.subject).arg(MARKER);
        for item in items {
            cmd.arg(item.key.id())
                .arg(item.when.to_arg())
                .arg(item.step);
        }
        let mut answers = self
            .eval_items(&RESCHEDULE, &cmd, items.len(), until)
            .await?;
        self.arm(items.iter().map(|item| &item.key), &mut answers)
            .await;
        Ok(answers)
    }

    /// Gives jobs another payload, all or none; `lua/update.lua`. Due times and triggers stay. The
    /// answers:
    ///
    /// - `Updated`: the job is pending with the new payload.
    /// - `SuccessorMoved`: the job is running, and its successor has the new payload.
    /// - `Running`: the run keeps its payload, and a later run of the job gets the new one.
    /// - `Absent`: there is no such job.
    /// - `Elsewhere`, `Stale`: as in [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was changed.
    pub(crate) async fn update(
        &self,
        lane: &mut Lane,
        items: &[Update],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let keys: [&str; 7] = [
            &n.due, &n.shadow, &n.lease, &n.next, &n.calls, &n.lanes, &n.history,
        ];
        let mut cmd = self.call(&UPDATE, &keys, [].into_iter());
        self.address(&mut cmd, lane);
        for item in items {
            cmd.arg(item.key.id()).arg(&item.payload[..]);
        }
        self.eval_items(&UPDATE, &cmd, items.len(), until).await
    }

    /// Gives jobs another header, due time and payload, all or none, if they are as the caller has
    /// seen them; `lua/amend.lua`. The answers:
    ///
    /// - `Moved`: the job is pending.
    /// - `SuccessorMoved`: the job is running, and its successor was amended.
    /// - `Succeeds`: the job is running, and a new job with this header follows the run.
    /// - `Changed`: the job is not as the caller has seen it; nothing was done.
    /// - `Absent`: there is no such job.
    /// - `Elsewhere`, `Stale`: as in [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was changed.
    pub(crate) async fn amend(
        &self,
        lane: &mut Lane,
        items: &[Amendment],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let keys = self.names.of_producers();
        let mut cmd = self.call(&AMEND, &keys, items.iter().map(|item| &item.key));
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&self.names.subject).arg(MARKER);
        for item in items {
            cmd.arg(item.key.id())
                .arg(item.seen.to_arg())
                .arg(item.when.to_arg())
                .arg(&*item.header)
                .arg(item.payload.as_deref().unwrap_or_default())
                .arg(if item.payload.is_some() {
                    "set"
                } else {
                    "keep"
                });
        }
        let mut answers = self.eval_items(&AMEND, &cmd, items.len(), until).await?;
        self.arm(items.iter().map(|item| &item.key), &mut answers)
            .await;
        self.meter().scheduled(counted::scheduled(&answers));
        Ok(answers)
    }

    /// Cancels jobs; `lua/cancel.lua`. It works while Redis is full. The answers:
    ///
    /// - `Cancelled`: the job never starts.
    /// - `Running`: the run goes on, but is not retried, and its successor is removed.
    /// - `Absent`: there is no such job.
    /// - `Elsewhere`, `Stale`: as in [`schedule`](Self::schedule).
    pub(crate) async fn cancel(
        &self,
        lane: &mut Lane,
        items: &[JobKey],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let items = items.iter().map(|key| (key, key.id().into()));
        self.cancel_each(lane, items.collect(), until).await
    }

    /// Cancels jobs that meet their conditions; `lua/cancel.lua`. A job whose order number is too
    /// high is answered with `Overtaken`, one that is not as it was seen with `Changed`; the other
    /// answers are as in [`cancel`](Self::cancel).
    pub(crate) async fn cancel_if(
        &self,
        lane: &mut Lane,
        items: &[CancelIf],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let items = items.iter().map(|item| (&item.key, item.to_arg()));
        self.cancel_each(lane, items.collect(), until).await
    }

    /// Cancels jobs by the items of `lua/cancel.lua`.
    async fn cancel_each(
        &self,
        lane: &mut Lane,
        items: Vec<(&JobKey, Vec<u8>)>,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let keys = self.names.of_producers();
        let jobs = || items.iter().map(|(key, _)| *key);
        let mut cmd = self.call(&CANCEL, &keys, jobs());
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(self.kind().as_str()).arg(MARKER);
        for (_, item) in &items {
            cmd.arg(item);
        }
        let mut answers = self.eval_items(&CANCEL, &cmd, items.len(), until).await?;
        self.arm(jobs(), &mut answers).await;
        self.meter().cancelled(counted::cancelled(&answers));
        Ok(answers)
    }
}
