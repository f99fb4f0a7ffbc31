//! Burial: turns jobs that have had no route for too long into dead letters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::client::DyingJob;
use crate::ended;
use crate::error::Result;
use crate::hooks::Hooks;
use crate::key::{JobKey, Kind};
use crate::record::{Record, RecordFault};
use crate::recurrence::RunEnd;
use crate::settings::BATCH;
use crate::source::Source;
use crate::store::{
    ClaimOrder, ClaimRequest, Claimed, DeadLimits, Lane, Ledger, Next, Settlement, Verb,
};
use crate::time::{UnixMs, UnixUs};
use crate::worker::instances::PeerTable;
use crate::worker::notice::Notices;
use crate::worker::running::runner::left_to_newer;

/// Time limit of one call.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a job is claimed for its burial, in addition to the time limit of the hook.
const LEASE: Duration = Duration::from_secs(10);

/// Buries jobs without a route.
pub(crate) struct Burial {
    /// Tells which jobs have a route somewhere.
    pub(crate) instances: Arc<PeerTable>,
    /// Reports trimmed dead letters.
    pub(crate) notices: Notices,
    /// The hook for dead jobs is called before each burial.
    pub(crate) hooks: Arc<Hooks>,
    /// Limits of dead letters, by number and age.
    pub(crate) dead: DeadLimits,
    /// How long a job has to be overdue, and without a route.
    pub(crate) age: Duration,
}

impl Burial {
    /// Buries the jobs of a ledger that have been without a route for too long. `since` is the time
    /// from which on the lack of a route is known, so that a deployment without routes does not
    /// bury an old backlog at once.
    ///
    /// # Errors
    /// If a call to the ledger fails; the rest is buried in the next round.
    pub(crate) async fn hold(&self, ledger: &Ledger, since: Instant) -> Result<()> {
        let kind = ledger.kind();
        if since.elapsed() < self.age || self.instances.route_whole(kind.as_str()) {
            return Ok(());
        }
        // Jobs without a route wait for it.
        if self.instances.fallback() {
            return Ok(());
        }
        let mut lane = Lane::new();
        let mut skip = (0, 0);
        let lease = LEASE + self.hooks.limit();
        loop {
            let until = Instant::now() + PATIENCE;
            let found = ledger.sweep(self.age, skip, BATCH, until).await?;
            let (overdue, lapsed) = (found.overdue.len(), found.lapsed.len());
            let due = self.without_route(kind, &found.overdue);
            let gone = self.without_route(kind, &found.lapsed);
            skip.0 += overdue - due.len();
            skip.1 += lapsed - gone.len();
            let mut claimed = Vec::new();
            if !due.is_empty() {
                let ids: Vec<&str> = due.iter().map(JobKey::id).collect();
                let found = Source::Reconciler.letter().to_string().repeat(ids.len());
                let reply = ledger.claim(
                    &mut lane,
                    ClaimRequest {
                        ids: &ids,
                        found: &found,
                        fill: 0,
                        order: ClaimOrder::Named,
                    },
                    lease,
                    until,
                );
                claimed = reply.await?.jobs;
            }
            if !gone.is_empty() {
                let reply = ledger.reclaim(&mut lane, &gone, lease, until).await?;
                claimed.extend(reply.jobs);
            }
            // Jobs that a limit holds back are met again.
            let is_stuck = claimed.is_empty() && !(due.is_empty() && gone.is_empty());
            self.bury(ledger, &mut lane, claimed).await?;
            if is_stuck || overdue < BATCH && lapsed < BATCH {
                return Ok(());
            }
        }
    }

    /// The keys of the ids for which no instance has a route.
    fn without_route(&self, kind: &Kind, ids: &[String]) -> Vec<JobKey> {
        let keys = ids.iter().filter_map(|id| kind.key(id).ok());
        keys.filter(|key| !self.instances.route(key)).collect()
    }

    /// Settles claimed jobs as dead letters.
    async fn bury(&self, ledger: &Ledger, lane: &mut Lane, claimed: Vec<Claimed>) -> Result<()> {
        let kind = ledger.kind();
        let claimed = claimed.into_iter();
        let now = ledger
            .clock()
            .now()
            .map_or_else(UnixMs::now, UnixUs::floor_ms);
        let letters = join_all(claimed.map(|job| self.letter(kind, job, now))).await;
        let letters: Vec<Settlement> = letters.into_iter().flatten().collect();
        let until = Instant::now() + PATIENCE;
        // The jobs come from two calls, and one call settles only a batch.
        for letters in letters.chunks(BATCH) {
            let (_, trimmed) = ledger.settle(lane, letters, self.dead, until).await?;
            let is_buried = |it: &&Settlement| matches!(it.verb, Verb::Bury { .. });
            let jobs = letters.iter().filter(is_buried).count();
            if jobs > 0 {
                tracing::warn!(%kind, jobs, "jobs without a route became dead letters");
            }
            self.notices.trimmed(kind, trimmed);
        }
        Ok(())
    }

    /// The settlement that turns a job into a dead letter, after the hook for dead jobs has been
    /// called. A job that a newer version wrote is left to it. `None` if no job can have its id.
    async fn letter(&self, kind: &Kind, job: Claimed, now: UnixMs) -> Option<Settlement> {
        let key = kind.key(&job.id).ok()?;
        let payload_bytes = job.record.len();
        let record = match Record::parse(job.record) {
            Err(RecordFault::Newer(version)) => {
                return Some(Settlement {
                    key,
                    token: job.token,
                    next: Next::Unknown,
                    verb: left_to_newer(version),
                    payload_bytes,
                });
            }
            parsed => parsed.ok(),
        };
        let header = record.as_ref().map(|record| record.header.clone());
        let mut header = header.unwrap_or_default();
        header.error = Some(format!(
            "it was overdue by {:?}, and no live instance had a route for it",
            self.age
        ));
        let header = header.to_line().into_owned();
        let letter = DyingJob {
            key: &key,
            header: &header,
            due: job.due,
            lag: None,
            record: record.as_ref(),
        };
        self.hooks.dead(letter).await;
        let verb = Verb::Bury { header };
        let end = RunEnd {
            now,
            claimed: now,
            due: job.due,
            random: rand::random(),
        };
        let next = match &record {
            Some(record) => ended::next(&record.header, &verb, end),
            None => Next::Nothing,
        };
        Some(Settlement {
            key,
            token: job.token,
            next,
            verb,
            payload_bytes,
        })
    }
}
