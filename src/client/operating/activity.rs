//! [`ActivityChart`]: the starts and ends of runs over the last hour or day, for charts.

use std::time::{Duration, SystemTime};

use super::partial::PartialView;
use crate::activity::Activity;
use crate::client::{Client, Unseen};
use crate::error::Result;
use crate::key::Kind;
use crate::shards::Layout;
use crate::store::ActivityShape;
use crate::time::UnixMs;

/// How far the activity reaches back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ActivitySpan {
    /// The last hour, in steps of a minute.
    #[default]
    Hour,
    /// The last day, in steps of a quarter of an hour.
    Day,
}

/// The starts and ends of runs of some kinds, step by step; from [`Client::activity`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActivityChart {
    /// The time of the answer, by Redis' clock. The last step is not over yet.
    pub at: SystemTime,
    /// The beginning of the first step.
    pub from: SystemTime,
    /// The length of each step.
    pub step: Duration,
    /// For each kind that was asked for, in the same order, its activity in each step.
    pub kinds: Vec<(Kind, Vec<Activity>)>,
    /// The kinds that could not be read, because one of several servers was away; they have no
    /// activity.
    pub unseen: Vec<Unseen>,
}

impl ActivitySpan {
    fn shape(self) -> ActivityShape {
        match self {
            ActivitySpan::Hour => ActivityShape::HOUR,
            ActivitySpan::Day => ActivityShape::DAY,
        }
    }
}

impl Client {
    /// How many runs of these kinds began and ended in each step of the last hour or day, and how
    /// late they began.
    ///
    /// Workers write these sums once a minute, so the last minute is not complete; the last sums of
    /// a worker that crashed are missing. A kind costs Redis one read, and 64 kinds travel
    /// together.
    ///
    /// # Errors
    /// If Redis does not answer in time, or denies the right.
    pub async fn activity(&self, kinds: &[Kind], span: ActivitySpan) -> Result<ActivityChart> {
        let (store, until, shape) = (self.store(), self.deadline(), span.shape());
        let now = store.time(until).await?.floor_ms();
        let (steps, away) = store.activity(kinds, shape, now, until).await?;
        let mut view = PartialView::new(store, away);
        for kind in kinds {
            // The activity of a kind is on the server of its first ledger.
            view.misses(&store.ledger(kind, Layout::FIRST.place(0)));
        }
        let first = shape.step_at(now) + 1 - shape.steps;
        Ok(ActivityChart {
            at: now.to_system(),
            from: UnixMs(first * shape.minutes * 60_000).to_system(),
            step: Duration::from_secs(shape.minutes * 60),
            kinds: kinds.iter().cloned().zip(steps).collect(),
            unseen: view.unseen(),
        })
    }
}
