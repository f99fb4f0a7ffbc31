//! Buries jobs that nobody has had a route for, for too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::key::{JobKey, Kind};
use crate::record::Record;
use crate::settings::BATCH;
use crate::store::{Claimed, DeadLimits, Lane, Ledger, Settlement, Verb};
use crate::worker::instances::Instances;
use crate::worker::notice::Notices;

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long a job is claimed to be buried.
const LEASE: Duration = Duration::from_secs(10);

/// Makes dead letters of jobs without a route.
pub(crate) struct Burial {
    pub(crate) instances: Arc<Instances>,
    pub(crate) notices: Notices,
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
                claimed = ledger.claim(&mut lane, &ids, 0, LEASE, until).await?.jobs;
            }
            if !gone.is_empty() {
                let reply = ledger.reclaim(&mut lane, &gone, LEASE, until).await?;
                claimed.extend(reply.jobs);
            }
            self.bury(ledger, &mut lane, claimed, until).await?;
            if overdue < BATCH && lapsed < BATCH {
                return Ok(());
            }
        }
    }

    fn without_route(&self, kind: &Kind, ids: &[String]) -> Vec<JobKey> {
        let keys = ids.iter().filter_map(|id| kind.key(id).ok());
        keys.filter(|key| !self.instances.route(key)).collect()
    }

    async fn bury(
        &self,
        ledger: &Ledger,
        lane: &mut Lane,
        claimed: Vec<Claimed>,
        until: Instant,
    ) -> Result<()> {
        let kind = ledger.kind();
        let letters = claimed.into_iter().filter_map(|job| self.letter(kind, job));
        let letters: Vec<Settlement> = letters.collect();
        // Two calls brought them, and each call has its limit.
        for letters in letters.chunks(BATCH) {
            let (_, trimmed) = ledger.settle(lane, letters, self.dead, until).await?;
            tracing::warn!(%kind, jobs = letters.len(), "jobs without a route were buried");
            self.notices.trimmed(kind, trimmed);
        }
        Ok(())
    }

    /// The settlement that makes a job a dead letter for want of a route.
    fn letter(&self, kind: &Kind, job: Claimed) -> Option<Settlement> {
        let payload_bytes = job.record.len();
        let record = Record::parse(job.record);
        let mut header = record.map(|record| record.header).unwrap_or_default();
        header.error = Some(format!(
            "it was overdue by {:?}, and no live instance had a route for it",
            self.age
        ));
        Some(Settlement {
            key: kind.key(&job.id).ok()?,
            token: job.token,
            verb: Verb::Bury {
                header: header.to_line().into_owned(),
            },
            payload_bytes,
        })
    }
}
