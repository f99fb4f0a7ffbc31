//! The data that Redis still holds at the end, read through the public client.

use std::collections::HashMap;
use std::time::SystemTime;

use keyfall::{Client, JobState, JobView, Result};
use redis::aio::MultiplexedConnection;

use crate::agreed::{self, Value};
use crate::common::COMMON;
use crate::database;
use crate::journal::Version;
use crate::limited;
use crate::load::{FAR, KINDS};
use crate::order::Order;
use crate::plain::{CANCEL, RUN};
use crate::recurring;
use crate::series;
use crate::sundry::{DAMAGED, IDLE, MOVED, RULED, STORED};

/// The stored data at rest.
#[derive(Default)]
pub(crate) struct Kept {
    /// The state of each version.
    pub(crate) versions: HashMap<Version, KeptAs>,
    /// The versions that are there twice, with the first of two states.
    pub(crate) twice: Vec<(Version, KeptAs, KeptAs)>,
    /// The adopted keys.
    pub(crate) keys: HashMap<String, Value>,
    /// Faults of the data by themselves.
    pub(crate) wrong: Vec<String>,
}

impl Kept {
    /// The versions that are there twice. A Redis that went back may have a dead letter of a job
    /// that it also has; and a lease may lapse between two looks.
    pub(crate) fn doubles(&self, went_back: bool) -> Vec<String> {
        let is_excused = |one: &KeptAs| match one {
            KeptAs::Pending => false,
            KeptAs::Leased => true,
            KeptAs::Dead(_) => went_back,
        };
        let twice = self.twice.iter();
        let twice = twice.filter(|(_, one, other)| !is_excused(one) && !is_excused(other));
        twice
            .map(|(version, one, other)| {
                format!("version {version} is there twice: {one:?} and {other:?}")
            })
            .collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeptAs {
    Pending,
    /// A worker still has the job: it did not come to rest.
    Leased,
    /// A dead letter, with its reason.
    Dead(String),
}

/// The kinds whose jobs are accounted for.
fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().chain([RUN, CANCEL]).chain(COMMON)
}

/// A job that still runs, or is due soon, if there is one.
pub(crate) async fn still_to_do(client: &Client) -> Result<Option<String>> {
    for kind in kinds() {
        let stats = client.stats(kind).await?;
        if stats.leased + stats.successors + stats.overdue > 0 {
            return Ok(Some(format!("{kind} is not at rest: {stats:?}")));
        }
        let page = client.list(kind, JobState::Pending).limit(1).await?;
        let is_near = |job: &JobView| job.due() < SystemTime::now() + FAR / 2;
        if let Some(job) = page.jobs.iter().find(|job| is_near(job)) {
            return Ok(Some(format!("{job:?} is still to come")));
        }
    }
    Ok(None)
}

impl Kept {
    pub(crate) async fn read(
        client: &Client,
        redis: Option<&mut MultiplexedConnection>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut kept = Kept::default();
        if let Some(redis) = redis {
            kept.keys = agreed::keys(redis).await?;
        }
        // The audit repairs the last damage by a producer, and ends a pause that a producer left
        // half done.
        client.audit(DAMAGED).repair().await?;
        client.prefix(IDLE).resume().await?;
        for kind in kinds()
            .chain([IDLE, DAMAGED, MOVED, RULED, STORED])
            .chain([recurring::KIND, series::KIND])
            .chain(limited::ALL)
            .chain(database::KINDS)
        {
            let report = client.audit(kind).await?;
            // Some scenarios never use some kinds.
            if report.is_known && !report.is_clean() {
                kept.wrong.push(format!("the audit of {kind}: {report:?}"));
            }
        }
        for kind in kinds() {
            kept.read_all(client, kind, JobState::Pending, |_| KeptAs::Pending)
                .await?;
            for state in [JobState::Running, JobState::Lapsed] {
                kept.read_all(client, kind, state, |_| KeptAs::Leased)
                    .await?;
            }
            kept.read_all(client, kind, JobState::Dead, |letter| {
                KeptAs::Dead(letter.last_error().unwrap_or_default().to_owned())
            })
            .await?;
        }
        Ok(kept)
    }

    async fn read_all(
        &mut self,
        client: &Client,
        kind: &str,
        state: JobState,
        place: impl Fn(&JobView) -> KeptAs,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let list = client.list(kind, state).limit(1000);
            let page = match after.take() {
                Some(cursor) => list.after(cursor).await?,
                None => list.await?,
            };
            for job in &page.jobs {
                match job.json::<Order>() {
                    Ok(order) => {
                        let place = place(job);
                        if let Some(first) = self.versions.insert(order.version, place.clone()) {
                            self.twice.push((order.version, first, place));
                        }
                    }
                    Err(error) => self.wrong.push(format!("{job:?}: {error}")),
                }
            }
            let damaged = page.damaged.iter().map(|job| format!("{job:?}"));
            self.wrong.extend(damaged);
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
