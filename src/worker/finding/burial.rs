//! Buries jobs that nobody has had a route for, for too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::client::DyingJob;
use crate::error::Result;
use crate::hooks::Hooks;
use crate::key::{JobKey, Kind};
use crate::record::Record;
use crate::settings::BATCH;
use crate::source::Source;
use crate::store::{Claimed, DeadLimits, Lane, Ledger, Settlement, Verb};
use crate::worker::instances::PeerTable;
use crate::worker::notice::Notices;

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long a job is claimed to be buried.
const LEASE: Duration = Duration::from_secs(10);

/// Makes dead letters of jobs without a route.
pub(crate) struct Burial {
    pub(crate) instances: Arc<PeerTable>,
    pub(crate) notices: Notices,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) dead: DeadLimits,
    /// For how long they have to be overdue, and without a route.
    pub(crate) age: Duration,
}

impl Burial {
    /// Buries the jobs of a ledger that it is time for. `since` is from when on it is known that
    /// those without a route have been without one: a backlog that is older than a deployment
    /// must not fall to the deployment.
    pub(crate) async fn hold(&self, ledger: &Ledger, since: Instant) -> Result<()> {
        let kind = ledger.kind();
        if since.elapsed() < self.age || self.instances.route_whole(kind.as_str()) {
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
                let reply = ledger.claim(&mut lane, &ids, &found, 0, lease, until);
                claimed = reply.await?.jobs;
            }
            if !gone.is_empty() {
                let reply = ledger.reclaim(&mut lane, &gone, lease, until).await?;
                claimed.extend(reply.jobs);
            }
            self.bury(ledger, &mut lane, claimed).await?;
            if overdue < BATCH && lapsed < BATCH {
                return Ok(());
            }
        }
    }

    fn without_route(&self, kind: &Kind, ids: &[String]) -> Vec<JobKey> {
        let keys = ids.iter().filter_map(|id| kind.key(id).ok());
        keys.filter(|key| !self.instances.route(key)).collect()
    }

    async fn bury(&self, ledger: &Ledger, lane: &mut Lane, claimed: Vec<Claimed>) -> Result<()> {
        let kind = ledger.kind();
        let claimed = claimed.into_iter();
        let letters = join_all(claimed.map(|job| self.letter(kind, job))).await;
        let letters: Vec<Settlement> = letters.into_iter().flatten().collect();
        let until = Instant::now() + PATIENCE;
        // Two calls brought them, and each call has its limit.
        for letters in letters.chunks(BATCH) {
            let (_, trimmed) = ledger.settle(lane, letters, self.dead, until).await?;
            tracing::warn!(%kind, jobs = letters.len(), "jobs without a route were buried");
            self.notices.trimmed(kind, trimmed);
        }
        Ok(())
    }

    /// The settlement that makes a job a dead letter for want of a route, when that is told.
    async fn letter(&self, kind: &Kind, job: Claimed) -> Option<Settlement> {
        let key = kind.key(&job.id).ok()?;
        let payload_bytes = job.record.len();
        let record = Record::parse(job.record).ok();
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
        Some(Settlement {
            key,
            token: job.token,
            verb: Verb::Bury { header },
            payload_bytes,
        })
    }
}
