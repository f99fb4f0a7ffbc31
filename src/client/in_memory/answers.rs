//! The answers of a ledger in memory to the calls on one job or one series.

use super::{MemoryJob, MemoryJobs, MemoryStage};
use crate::client::Durably;
use crate::durable::Reached;
use crate::error::Result;
use crate::key::JobKey;
use crate::record::Header;
use crate::store::{
    Amendment, Answered, BackupItem, CancelIf, Change, Condition, Discard, Mode, Placement,
    Revival, SeriesCall, Update, VersionState, Word,
};

/// A call that a ledger in memory may know.
pub(in crate::client) trait InMemory {
    /// The answer of the script.
    type Answer;

    /// Carries the call out; `None` if only a Redis can.
    fn carry_out(&self, jobs: &mut MemoryJobs) -> Option<Self::Answer>;
}

/// Implements [`InMemory`] for calls that answer one word, or that only a Redis can carry out.
macro_rules! in_memory {
    ($($call:ty => $carry_out:expr;)*) => {$(
        impl InMemory for $call {
            type Answer = Answered;

            fn carry_out(&self, jobs: &mut MemoryJobs) -> Option<Answered> {
                let carry_out: fn(&Self, &mut MemoryJobs) -> Option<Word> = $carry_out;
                carry_out(self, jobs).map(Answered::of)
            }
        }
    )*};
}

in_memory! {
    Placement => |it, jobs| Some(place(it, jobs));
    Change => |it, jobs| Some(change(it, jobs));
    Update => |it, jobs| Some(update(it, jobs));
    Amendment => |it, jobs| Some(amend(it, jobs));
    SeriesCall => |it, jobs| Some(plan(it, jobs));
    JobKey => |it, jobs| Some(cancel(it, jobs));
    CancelIf => |it, jobs| Some(cancel_if(it, jobs));
    Revival => |_, _| None;
    Discard => |_, _| None;
    BackupItem => |_, _| None;
}

/// There is no replica and no disk, so a durable call is as good as it can be.
impl<Call: InMemory<Answer = Answered>> InMemory for Durably<Call> {
    type Answer = (Answered, Result<Reached>);

    fn carry_out(&self, jobs: &mut MemoryJobs) -> Option<Self::Answer> {
        let answered = self.item.carry_out(jobs)?;
        let reached = Reached {
            is_met: true,
            replicas: self.durable.replicas,
            on_disk: Some(self.durable.fsynced),
            replicas_on_disk: None,
        };
        Some((answered, Ok(reached)))
    }
}

/// The header of a call, which this process has written.
fn header(line: &str) -> Header {
    Header::parse(line.as_bytes()).unwrap_or_default()
}

fn place(it: &Placement, jobs: &mut MemoryJobs) -> Word {
    let header = header(&it.header);
    let order = header.order.unwrap_or(0);
    let asked = jobs.due(it.when, jobs.now.floor_ms());
    let (due, since) = jobs.spaced_due(it, asked);
    let job = MemoryJob {
        accepted: since.unwrap_or(jobs.now),
        ..MemoryJob::new(header, it.payload.clone(), due, jobs.now)
    };
    let there = jobs.changeable(&it.key);
    let stored = there.as_ref().map(|(_, old)| old.header.order.unwrap_or(0));
    match (it.mode, stored) {
        (Mode::Absent, Some(_)) => return Word::Exists,
        (Mode::Present, None) => return Word::Absent,
        (Mode::Ordered, Some(stored)) if stored > order => return Word::Overtaken(stored),
        _ => {}
    }
    match there {
        Some((VersionState::Pending, old)) => {
            *old = job;
            Word::Replaced(due)
        }
        Some((VersionState::Leased | VersionState::Successor, _)) => {
            jobs.follow(job);
            Word::Succeeds(due)
        }
        None => {
            jobs.put(it.key.clone(), job);
            Word::Created(due)
        }
    }
}

fn change(it: &Change, jobs: &mut MemoryJobs) -> Word {
    let now = jobs.now;
    let Some(old) = jobs.changeable(&it.key).map(|(_, job)| job.due) else {
        return Word::Absent;
    };
    // An overdue job that is fired keeps its place.
    let due = match it.step {
        "fired" if old <= now.floor_ms() => old,
        _ => jobs.due(it.when, old),
    };
    match jobs.changeable(&it.key) {
        None | Some((VersionState::Leased, _)) => Word::Running,
        Some((state, job)) => {
            job.due = due;
            job.step(it.step, now);
            match state {
                VersionState::Successor => Word::SuccessorMoved(due),
                _ => Word::Moved(due),
            }
        }
    }
}

fn update(it: &Update, jobs: &mut MemoryJobs) -> Word {
    let now = jobs.now;
    let Some((state, job)) = jobs.changeable(&it.key) else {
        return Word::Absent;
    };
    job.payload = it.payload.clone();
    job.step("updated", now);
    match state {
        VersionState::Pending => Word::Updated(job.due),
        VersionState::Successor => Word::SuccessorMoved(job.due),
        VersionState::Leased => Word::Running,
    }
}

fn amend(it: &Amendment, jobs: &mut MemoryJobs) -> Word {
    let now = jobs.now;
    let due = jobs.due(it.when, now.floor_ms());
    if jobs.changeable(&it.key).is_none() {
        return Word::Absent;
    }
    if !jobs.is_as_seen(&it.key, &it.seen) {
        return Word::Changed;
    }
    let (state, job) = jobs.changeable(&it.key).expect("it was seen");
    if state == VersionState::Leased {
        let payload = it.payload.clone().unwrap_or_else(|| job.payload.clone());
        jobs.follow(MemoryJob::new(header(&it.header), payload, due, now));
        return Word::Succeeds(due);
    }
    job.header = header(&it.header);
    job.due = due;
    if let Some(payload) = &it.payload {
        job.payload = payload.clone();
    }
    job.step("updated", now);
    match state {
        VersionState::Successor => Word::SuccessorMoved(due),
        _ => Word::Moved(due),
    }
}

fn plan(it: &SeriesCall, jobs: &mut MemoryJobs) -> Word {
    let is_same = it.jobs.iter().all(|job| match &job.seen {
        Some(seen) => jobs.is_as_seen(&job.key, seen),
        None => jobs.changeable(&job.key).is_none(),
    });
    if !is_same {
        return Word::Changed;
    }
    for job in &it.jobs {
        let Some(put) = &job.put else {
            cancel(&job.key, jobs);
            continue;
        };
        let due = jobs.due(put.when, jobs.now.floor_ms());
        let before = jobs.changeable(&job.key).map(|(_, old)| old.clone());
        let payload = put.payload.clone();
        let payload = payload.or_else(|| before.as_ref().map(|old| old.payload.clone()));
        let mut new = MemoryJob::new(
            header(&put.header),
            payload.unwrap_or_default(),
            due,
            jobs.now,
        );
        if let Some(before) = before {
            new.accepted = before.accepted;
            new.steps = before.steps;
            let step = if before.due == due {
                "updated"
            } else {
                "postponed"
            };
            new.step(step, jobs.now);
        }
        jobs.put(job.key.clone(), new);
    }
    Word::Planned
}

fn cancel(key: &JobKey, jobs: &mut MemoryJobs) -> Word {
    if let Some(run) = jobs.run.as_mut().filter(|run| run.key == *key) {
        run.successor = None;
        run.is_cancelled = true;
        (run.stop)();
        return Word::Running;
    }
    match jobs.changeable(key) {
        Some((_, job)) => {
            job.stage = MemoryStage::Cancelled;
            Word::Cancelled
        }
        None => Word::Absent,
    }
}

fn cancel_if(it: &CancelIf, jobs: &mut MemoryJobs) -> Word {
    match &it.condition {
        Condition::OrderBelow(limit) => {
            let there = jobs.changeable(&it.key);
            match there.and_then(|(_, job)| job.header.order).unwrap_or(0) {
                stored if stored >= *limit => Word::Overtaken(stored),
                _ => cancel(&it.key, jobs),
            }
        }
        Condition::Seen(_) if jobs.changeable(&it.key).is_none() => Word::Absent,
        Condition::Seen(seen) if !jobs.is_as_seen(&it.key, seen) => Word::Changed,
        Condition::Seen(_) => cancel(&it.key, jobs),
    }
}

impl MemoryJobs {
    /// Stores the job that follows the run in progress.
    fn follow(&mut self, job: MemoryJob) {
        if let Some(run) = &mut self.run {
            run.successor = Some(job);
        }
    }

    /// Cancels a job that is still to run. Returns whether there was one.
    pub(crate) fn cancel(&mut self, key: &JobKey) -> bool {
        cancel(key, self) != Word::Absent
    }
}
