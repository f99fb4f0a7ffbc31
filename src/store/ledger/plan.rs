//! Changes of whole series: their plan and members, in one call.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;

use crate::error::Result;
use crate::key::JobKey;
use crate::names::MARKER;
use crate::store::ledger::reply::{Answered, ReplyWord};
use crate::store::ledger::script::PLAN;
use crate::store::{JobVersion, Lane, Ledger, When};

/// About how many bytes a job adds to a call beside header and payload: it bounds the jobs of a
/// batch to a thousand.
const JOB_BYTES: usize = 1024;

/// Changes of one series, all or none.
#[derive(Debug, Clone)]
pub(crate) struct SeriesCall {
    /// The name of the plan.
    pub(crate) key: JobKey,
    /// The plan and the members that change, each name once.
    pub(crate) jobs: Vec<SeriesJob>,
}

/// One job of a series.
#[derive(Debug, Clone)]
pub(crate) struct SeriesJob {
    pub(crate) key: JobKey,
    /// The pending job as the caller has seen it; `None` if there was none.
    pub(crate) seen: Option<JobVersion>,
    /// The job from now on; `None` removes it.
    pub(crate) put: Option<SeriesPut>,
}

/// A job of a series that is stored.
#[derive(Debug, Clone)]
pub(crate) struct SeriesPut {
    /// A time that has passed means now.
    pub(crate) when: When,
    /// In the form of [`crate::record::Header`].
    pub(crate) header: Cow<'static, str>,
    /// The new payload, unless the present one stays.
    pub(crate) payload: Option<Bytes>,
}

impl SeriesCall {
    /// Whether the call can create a job.
    pub(crate) fn creates(&self) -> bool {
        self.jobs.iter().any(|job| job.put.is_some())
    }

    /// About how many bytes it adds to a call.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |job: &SeriesJob| {
            let put = job.put.as_ref().map_or(0, |put| {
                put.header.len() + put.payload.as_ref().map_or(0, Bytes::len)
            });
            let seen = job.seen.as_ref().map_or(0, |seen| seen.opening.len());
            JOB_BYTES + seen + put
        };
        self.jobs.iter().map(bytes).sum()
    }
}

impl Ledger {
    /// Changes series, each as a whole or not at all; `lua/plan.lua`. A call that only removes jobs
    /// works while Redis is full. The answers:
    ///
    /// - `Planned`: all jobs of the series are as asked for.
    /// - `Changed`: one of them is not as the caller has seen it; nothing was done.
    /// - `Elsewhere`, `Stale`: as in [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was changed.
    pub(crate) async fn plan(
        &self,
        lane: &mut Lane,
        items: &[SeriesCall],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let keys: [&str; 7] = [
            &n.due, &n.shadow, &n.lease, &n.stats, &n.calls, &n.lanes, &n.history,
        ];
        let jobs: Vec<&SeriesJob> = items.iter().flat_map(|item| &item.jobs).collect();
        let mut cmd = self.call(&PLAN, &keys, jobs.iter().map(|job| &job.key));
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&n.subject).arg(MARKER);
        for item in items {
            cmd.arg(item.jobs.len());
            for job in &item.jobs {
                let seen = job.seen.as_ref().map(JobVersion::to_arg);
                cmd.arg(job.key.id()).arg(seen.unwrap_or_default());
                match &job.put {
                    None => cmd.arg("").arg("").arg("").arg("keep"),
                    Some(put) => cmd
                        .arg(put.when.to_arg())
                        .arg(&*put.header)
                        .arg(put.payload.as_deref().unwrap_or_default())
                        .arg(if put.payload.is_some() { "set" } else { "keep" }),
                };
            }
        }
        let mut answers = self.eval_items(&PLAN, &cmd, items.len(), until).await?;
        self.arm_series(items, &mut answers).await;
        Ok(answers)
    }

    /// Moves the triggers of series that were changed, where scripts have no triggers.
    async fn arm_series(&self, items: &[SeriesCall], answers: &mut [Answered]) {
        for (item, answered) in items.iter().zip(answers) {
            if answered.answer != ReplyWord::Planned {
                continue;
            }
            let moves = item.jobs.iter().map(|job| {
                Answered::of(match &job.put {
                    Some(SeriesPut {
                        when: When::At(due),
                        ..
                    }) => ReplyWord::Moved(*due),
                    _ => ReplyWord::Cancelled,
                })
            });
            let mut moves: Vec<Answered> = moves.collect();
            self.arm(item.jobs.iter().map(|job| &job.key), &mut moves)
                .await;
            answered.unarmed |= moves.iter().any(|it| it.unarmed);
        }
    }
}
