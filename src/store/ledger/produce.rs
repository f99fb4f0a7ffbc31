//! What producers do to a ledger.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::counted;
use crate::error::Result;
use crate::key::JobKey;
use crate::names::MARKER;
use crate::store::ledger::reply::Answered;
use crate::store::ledger::script::{CANCEL, RESCHEDULE, SCHEDULE, UPDATE};
use crate::store::{Lane, Ledger};
use crate::time::UnixMs;

/// When a job is due. Redis' clock turns a delay into a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    After(Duration),
    At(UnixMs),
    /// So much later than it is due: to reschedule only.
    By(Duration),
}

/// What `schedule` does if the job is there, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Create or replace.
    Set,
    /// Leave a job that is there as it is.
    Absent,
    /// Create none.
    Present,
    /// Leave a job that is there as it is if its order number is higher.
    Ordered,
}

/// One job to schedule.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    pub(crate) key: JobKey,
    pub(crate) mode: Mode,
    pub(crate) when: When,
    /// The header of its record, as [`crate::record::Header`] renders it.
    pub(crate) header: Cow<'static, str>,
    pub(crate) payload: Bytes,
}

/// One job to cancel, unless its order number is this one or a higher one.
#[derive(Debug, Clone)]
pub(crate) struct Outdated {
    pub(crate) key: JobKey,
    pub(crate) below: u64,
}

/// One job to give another payload.
#[derive(Debug, Clone)]
pub(crate) struct Update {
    pub(crate) key: JobKey,
    pub(crate) payload: Bytes,
}

/// One job to give another due time.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) key: JobKey,
    pub(crate) when: When,
    /// The step that the record keeps.
    pub(crate) step: &'static str,
}

impl Placement {
    /// Whether it makes a job where there is none.
    pub(crate) fn creates(&self) -> bool {
        self.mode != Mode::Present
    }

    /// Whether the script needs to be told of mode and header only once for the two.
    fn is_like(&self, other: &Self) -> bool {
        self.mode == other.mode && self.header == other.header
    }
}

impl When {
    /// How scripts read it: rounded up, so that nothing is early.
    pub(in crate::store) fn to_arg(self) -> String {
        match self {
            When::After(delay) => format!("+{}", whole_ms(delay)),
            When::By(delay) => format!(">{}", whole_ms(delay)),
            When::At(due) => format!("@{due}"),
        }
    }
}

/// Rounded up.
fn whole_ms(delay: Duration) -> u128 {
    delay.as_nanos().div_ceil(1_000_000)
}

impl Mode {
    fn to_arg(self) -> &'static str {
        match self {
            Mode::Set => "set",
            Mode::Absent => "absent",
            Mode::Present => "present",
            Mode::Ordered => "ordered",
        }
    }
}

impl Ledger {
    /// Creates or replaces jobs; `lua/schedule.lua`.
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
            cmd.arg(mode.to_arg()).arg(&**header).arg(alike.len());
            for item in alike {
                cmd.arg(item.key.id())
                    .arg(item.when.to_arg())
                    .arg(&item.payload[..]);
            }
        }
        let mut answers = self
            .eval_storing(&SCHEDULE, &cmd, items.len(), until)
            .await?;
        self.arm(items.iter().map(|item| &item.key), &mut answers)
            .await;
        self.meter().scheduled(counted::scheduled(&answers));
        Ok(answers)
    }

    /// Gives jobs another due time; `lua/reschedule.lua`.
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

    /// Gives jobs another payload; `lua/update.lua`.
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

    /// Cancels jobs; `lua/cancel.lua`.
    pub(crate) async fn cancel(
        &self,
        lane: &mut Lane,
        items: &[JobKey],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let items = items.iter().map(|key| (key, key.id().to_owned()));
        self.cancel_each(lane, items.collect(), until).await
    }

    /// Cancels those that others have overtaken; `lua/cancel.lua`.
    pub(crate) async fn cancel_outdated(
        &self,
        lane: &mut Lane,
        items: &[Outdated],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let items = items.iter().map(|Outdated { key, below }| {
            // An id has no blank.
            (key, format!("{} {below}", key.id()))
        });
        self.cancel_each(lane, items.collect(), until).await
    }

    async fn cancel_each(
        &self,
        lane: &mut Lane,
        items: Vec<(&JobKey, String)>,
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
