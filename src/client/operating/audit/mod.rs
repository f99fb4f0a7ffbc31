//! Audits: whether the counters of a kind balance and its parts fit together, with the flaws and
//! their repair.

mod damage;
pub(crate) mod everything;
mod ledger;

use std::future::IntoFuture;

pub use damage::Damage;

use self::ledger::{Auditor, OfKind};
use super::partial::PartialView;
use crate::client::{Client, Pending, Stats, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::flaw::Flaw;
use crate::key::Kind;

/// A call to [`Client::audit`]; sent when it is awaited. Answers [`AuditReport`].
#[must_use = "nothing is audited until it is awaited"]
pub struct Audit<'a> {
    client: &'a Client,
    kind: Result<Kind>,
    repair: bool,
}

/// The findings of an audit of one kind; from [`Client::audit`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuditReport {
    /// The counts and counters at the end of the audit, of one instant in each shard.
    /// [`Stats::difference`] and [`Stats::letters_difference`] tell whether they balance, and by
    /// how much they do not.
    pub stats: Stats,
    /// Whether the number of stored records and leases fits the number of jobs that need one.
    pub is_consistent: bool,
    /// Whether the kind is on the list of kinds. If not, its name is misspelt and it was never
    /// used; or its entry is lost, and workers with wildcards do not find its jobs.
    pub is_known: bool,
    /// Damaged keys and fields. If a key of a ledger has the wrong type, the ledger is not audited
    /// further until that is repaired.
    pub damaged: Vec<Damage>,
    /// The flaws and their names: the first thousand.
    pub flawed: Vec<Flawed>,
    /// Whether the whole kind was audited. If not, there are more flaws than reported: repair
    /// these, and audit again.
    pub is_complete: bool,
    /// The number of names that were checked. A job is stored in several parts, and is counted in
    /// each.
    pub scanned: u64,
    /// The shards that were not audited, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

/// A job or dead letter with a flaw.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flawed {
    /// The kind and the id; for a dead letter, also its number.
    pub name: String,
    /// The flaw.
    pub flaw: Flaw,
    /// Whether it was repaired.
    pub repaired: bool,
}

impl Client {
    /// Audits a kind, `app:module:biz`: checks that its counters balance and its parts fit
    /// together, and scans all parts for jobs of which one is missing. Work goes on meanwhile; each
    /// reported flaw was there at one instant. The call may take as long as it makes progress.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// let report = client.audit("app1:trans:notice").await?;
    /// if !report.is_clean() {
    ///     println!("{report:?}");
    ///     client.audit("app1:trans:notice").repair().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: if the kind is not valid, or Redis does not answer in time. Damage is no
    /// error: it is in the report.
    pub fn audit(&self, kind: &str) -> Audit<'_> {
        Audit {
            client: self,
            kind: Kind::parse(kind),
            repair: false,
        }
    }
}

impl Audit<'_> {
    /// Repairs the findings, as each [`Flaw`] describes; each is checked again in the same step.
    ///
    /// A kind that is in use and not listed is listed again.
    ///
    /// A key of the wrong type is moved out of the way, and kept under another name. An invalid
    /// value is removed; a known value takes its place.
    ///
    /// Nothing disappears, and no counter is adjusted for its own sake: a difference that no flaw
    /// explains stays, and is reported. If a repair recovers a job that is missing by the counters,
    /// the counters balance again; if none is missing, the job is counted as accepted.
    pub fn repair(mut self) -> Self {
        self.repair = true;
        self
    }
}

impl AuditReport {
    /// The sum of the reports of two shards.
    fn and(mut self, other: Self) -> Self {
        self.stats = self.stats.plus(&other.stats);
        self.is_consistent &= other.is_consistent;
        self.is_known &= other.is_known;
        self.damaged.extend(other.damaged);
        self.flawed.extend(other.flawed);
        self.is_complete &= other.is_complete;
        self.scanned += other.scanned;
        self
    }

    /// The report of a kind that could not be read.
    fn of_nothing() -> Self {
        AuditReport {
            stats: Stats::default(),
            is_consistent: true,
            is_known: true,
            damaged: Vec::new(),
            flawed: Vec::new(),
            is_complete: true,
            scanned: 0,
            unseen: Vec::new(),
        }
    }

    /// Whether nothing is wrong: the kind is listed, balanced and consistent, without a flaw or
    /// damage, and was read completely.
    pub fn is_clean(&self) -> bool {
        self.is_known
            && self.stats.is_balanced()
            && self.is_consistent
            && self.is_complete
            && self.damaged.is_empty()
            && self.flawed.is_empty()
            && self.unseen.is_empty()
    }
}

impl<'a> IntoFuture for Audit<'a> {
    type Output = Result<AuditReport>;
    type IntoFuture = Pending<'a, AuditReport>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, repair) = (self.client, self.repair);
            let kind = self.kind?;
            // The layout first: without it, the jobs cannot be found.
            let store = client.store();
            let wrong = store.wrong_layouts(&kind, client.deadline()).await?;
            let mut damaged = Damage::all(client, wrong, repair).await?;
            if damaged.iter().any(|it| !it.repaired) {
                let mut report = AuditReport::of_nothing();
                (report.damaged, report.is_complete) = (damaged, false);
                return Ok(report);
            }
            // A damaged list is reported with the keys that all kinds share.
            let is_no_list = |error: &Error| error.kind() == ErrorKind::Damaged;
            let kind_shards = match client.kind_shards_now(&kind, client.deadline()).await {
                Err(error) if is_no_list(&error) => client.kind_shards(kind.as_str())?,
                kind_shards => kind_shards?,
            };
            let is_listed = match store.knows(&kind, client.deadline()).await {
                Err(error) if is_no_list(&error) => false,
                listed => listed?,
            };
            let layout = kind_shards.layout;
            let of_kind = OfKind { is_listed, layout };
            let mut view = PartialView::now(store);
            let mut reports = Vec::new();
            for shard_client in kind_shards.all() {
                let auditor = Auditor::new(client, shard_client.ledger.clone(), repair);
                reports.extend(view.see(&shard_client.ledger, auditor.run(of_kind)).await?);
            }
            let all = reports.into_iter().reduce(AuditReport::and);
            let mut report = all.unwrap_or_else(AuditReport::of_nothing);
            report.unseen = view.unseen();
            damaged.append(&mut report.damaged);
            report.damaged = damaged;
            Ok(report)
        })
    }
}
