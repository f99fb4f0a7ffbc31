//! Looks out for jobs that no live instance has a route for: they wait, somebody is told, and
//! where an age is set they are buried in the end. And for dead letters that have come of age.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::instances::Instances;
use super::notice::{Notice, Notices};
use super::roster::Roster;
use crate::error::Result;
use crate::headers::Headers;
use crate::key::Kind;
use crate::record::{Header, Record, Terms};
use crate::settings::{BATCH, LOOKOUT, TRIM};
use crate::store::{Claimed, DeadLimits, Lane, Ledger, Settlement, Store, Verb};

/// The shortest time between two looks, whoever asks for one: a worker that is replaced by
/// another should not be missed in between.
const AT_LEAST: Duration = Duration::from_secs(1);

/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// For how long a job is claimed to be buried.
const LEASE: Duration = Duration::from_secs(10);

/// Looks at all kinds that exist.
pub(crate) struct Lookout {
    pub(crate) store: Arc<Store>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) instances: Arc<Instances>,
    pub(crate) notices: Notices,
    pub(crate) dead: DeadLimits,
    /// How long jobs without a route are overdue before they are buried; `None` for ever.
    pub(crate) bury_after: Option<Duration>,
    /// Asks for a look before its time.
    pub(crate) asked: Notify,
}

impl Lookout {
    /// Somebody went, or a kind came: look.
    pub(crate) fn look(&self) {
        self.asked.notify_one();
    }

    /// Looks out, for ever.
    pub(crate) async fn run(&self) {
        let mut told = HashSet::new();
        let mut trimmed: Option<Instant> = None;
        loop {
            sleep(AT_LEAST).await;
            if let Err(error) = self.step(&mut told).await {
                tracing::debug!(%error, "whether jobs lack a route could not be looked up");
            }
            if trimmed.is_none_or(|at| at.elapsed() >= TRIM) {
                trimmed = Some(Instant::now());
                if let Err(error) = self.trim().await {
                    tracing::debug!(%error, "old dead letters could not be looked for");
                }
            }
            tokio::select! {
                () = sleep(LOOKOUT) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    /// One look. `told` are the kinds that were told as unrouted.
    async fn step(&self, told: &mut HashSet<Kind>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        for kind in self.store.kinds(until).await? {
            let ledger = self.store.ledger(&kind);
            let jobs = if self.instances.route_kind(kind.as_str()) {
                0
            } else {
                ledger.tally(until).await?.pending
            };
            if jobs == 0 {
                if told.remove(&kind) {
                    self.notices.tell(&Notice::Routed { kind: kind.clone() });
                }
            } else if !told.contains(&kind) && self.instances.reports(kind.as_str()) {
                told.insert(kind.clone());
                let kind = kind.clone();
                self.notices.tell(&Notice::Unrouted { kind, jobs });
            }
            if let Some(age) = self.bury_after {
                self.bury(&ledger, age).await?;
            }
        }
        Ok(())
    }

    /// Drops dead letters that have come of age, where no burial does: those of the kinds that
    /// this worker has a route for, since others may keep theirs for longer.
    async fn trim(&self) -> Result<()> {
        for served in self.roster.all().iter() {
            let kind = served.ledger.kind();
            while served.is_routed && self.instances.paces(served) {
                let until = Instant::now() + PATIENCE;
                let letters = served.ledger.trim(self.dead, BATCH, until).await?;
                self.notices.trimmed(kind, letters);
                if letters == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Buries the jobs of a ledger that are overdue by `age`, and that nobody has a route for.
    async fn bury(&self, ledger: &Ledger, age: Duration) -> Result<()> {
        let mut lane = Lane::new();
        let mut skip = 0;
        loop {
            let until = Instant::now() + PATIENCE;
            let found = ledger.sweep(age, (skip, 0), BATCH, until).await?.overdue;
            let is_routed = |id: &&str| {
                let key = ledger.kind().key(id);
                key.is_ok_and(|key| self.instances.route(&key))
            };
            let all = found.iter().map(String::as_str);
            let (routed, unrouted): (Vec<&str>, Vec<&str>) = all.partition(is_routed);
            if !unrouted.is_empty() {
                let claim = ledger.claim(&mut lane, &unrouted, 0, LEASE, until).await?;
                let letters: Vec<Settlement> = claim
                    .jobs
                    .into_iter()
                    .filter_map(|job| letter(ledger.kind(), job, age))
                    .collect();
                let (_, trimmed) = ledger.settle(&mut lane, &letters, self.dead, until).await?;
                let kind = ledger.kind();
                tracing::warn!(%kind, jobs = letters.len(), "jobs without a route were buried");
                self.notices.trimmed(kind, trimmed);
            }
            if found.len() < BATCH {
                return Ok(());
            }
            skip += routed.len();
        }
    }
}

/// The settlement that makes a job a dead letter for want of a route.
fn letter(kind: &Kind, job: Claimed, age: Duration) -> Option<Settlement> {
    let payload_bytes = job.record.len();
    let mut header = Record::parse(job.record).map_or_else(
        |_| Header::new(Headers::new(), Terms::default()),
        |record| record.header,
    );
    header.error = Some(format!(
        "it was overdue by {age:?}, and no live instance had a route for it"
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
