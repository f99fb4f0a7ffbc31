//! A series as a whole: what ran, what is to come, and what was left out.

use std::time::SystemTime;

use bytes::Bytes;

use super::Series;
use super::carrying_out::member_key;
use crate::client::{JobState, JobView};
use crate::error::Result;
use crate::key::JobKey;
use crate::recurrence::{Past, Planned, QuietHours, Wish};
use crate::time::UnixMs;

/// A series at one instant; from [`Series::view`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SeriesView {
    /// The key of the series.
    pub key: JobKey,
    /// The date that it is relative to.
    pub anchor: SystemTime,
    /// The name of its time zone.
    pub zone: String,
    /// What becomes of members whose time has passed when it is moved.
    pub past: Past,
    /// Its quiet hours, if it has any.
    pub quiet: Option<QuietHours>,
    /// The payload of its members that have none of their own.
    pub payload: Bytes,
    /// The plan is kept until then.
    pub kept_until: SystemTime,
    /// Its members, in the order in which they were named.
    pub members: Vec<MemberView>,
}

/// A member of a series.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemberView {
    /// The key of its job.
    pub key: JobKey,
    /// Its offset as text.
    pub offset: String,
    /// Its due time. Of a member that has ended, the time at which it was due; of one that was left
    /// out, the time that its offset names.
    pub due: SystemTime,
    /// Why the due time is not the time of the offset, if it is not.
    pub moved: Option<String>,
    /// Where it stands.
    pub state: MemberState,
}

/// Where a member of a series stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// It is to come.
    Planned,
    /// It waits for a further attempt.
    Retrying,
    /// It runs.
    Running,
    /// It ended as a dead letter with this number.
    Dead(u64),
    /// It ended: it ran, or was cancelled by itself. Its [story](crate::Client::story) tells.
    Ended,
    /// It was left out, for this reason.
    LeftOut(String),
}

impl Series<'_> {
    pub(super) async fn look(self) -> Result<Option<SeriesView>> {
        let (client, key) = (self.client, self.key?);
        let until = client.deadline();
        let mut read = client.read_series(&key, &Wish::default(), until).await?;
        let Some(job) = read.plan.take() else {
            return Ok(None);
        };
        let plan = job.plan();
        let members = plan.members.iter().map(|planned| {
            let name = planned.own_name();
            let key = member_key(&key, &name)?;
            let found = read.members.remove(&name);
            let view = found.map(|found| JobView::from_found(key.clone(), found));
            Ok(MemberView::of(
                key,
                planned,
                view.transpose()?.flatten().as_ref(),
            ))
        });
        Ok(Some(SeriesView {
            anchor: UnixMs(plan.anchor).to_system(),
            zone: plan.zone.clone(),
            past: plan.past,
            quiet: plan.quiet.clone(),
            payload: job.payload.clone(),
            kept_until: job.due.to_system(),
            members: members.collect::<Result<_>>()?,
            key,
        }))
    }
}

impl MemberView {
    fn of(key: JobKey, planned: &Planned, job: Option<&JobView>) -> Self {
        let left_out = planned.out.clone().map(MemberState::LeftOut);
        let is_there = |job: &&JobView| job.state() != JobState::Dead;
        let live = job.filter(is_there);
        let state = match (job.map(JobView::state), left_out) {
            (Some(JobState::Pending), _) => MemberState::Planned,
            (Some(JobState::Retrying), _) => MemberState::Retrying,
            (Some(JobState::Running | JobState::Lapsed), _) => MemberState::Running,
            (_, Some(left_out)) => left_out,
            (Some(JobState::Dead), None) => {
                MemberState::Dead(job.and_then(JobView::letter).unwrap_or_default())
            }
            (None, None) => MemberState::Ended,
        };
        let due = UnixMs(planned.due()).to_system();
        MemberView {
            key,
            offset: planned.at.clone(),
            due: live.map_or(due, JobView::due),
            moved: planned.shift.as_ref().map(|shift| shift.why.clone()),
            state,
        }
    }
}
