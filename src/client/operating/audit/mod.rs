//! Whether the books of a kind balance, and what is wrong if they do not.

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

/// A call to [`Client::audit`]; sent when it is awaited.
#[must_use = "nothing is audited until it is awaited"]
pub struct Audit<'a> {
    client: &'a Client,
    kind: Result<Kind>,
    repair: bool,
}

/// What an audit found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuditReport {
    /// The counts and counters at the end of the audit, of one instant. Whether they balance,
    /// and by how much they fail to, is told by [`Stats::difference`] and
    /// [`Stats::letters_difference`].
    pub stats: Stats,
    /// Whether as many records and leases are stored as there are jobs that need one.
    pub is_consistent: bool,
    /// Whether the kind was ever used, for all that the list of kinds says. One that is spelt
    /// wrong was not. If it was all the same, its entry in the list is lost: workers with
    /// wildcards do not find its jobs.
    pub is_known: bool,
    /// Keys, and fields of them, that are not what they should be. A ledger of which a key is of
    /// another type is looked at no further until that was repaired.
    pub damaged: Vec<Damage>,
    /// What is wrong, and with which names: the first thousand flaws.
    pub flawed: Vec<Flawed>,
    /// Whether all was looked at. If not, there were more flaws than are reported: repair
    /// these, and audit again.
    pub is_complete: bool,
    /// How many names were looked at. A job is stored in several parts, and is met in each.
    pub scanned: u64,
    /// What was not looked at, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

/// A name with which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flawed {
    /// Its kind and its id; of a dead letter, its number as well.
    pub name: String,
    /// What is wrong.
    pub flaw: Flaw,
    /// Whether it was repaired.
    pub repaired: bool,
}

impl Client {
    /// Audits a kind, `app:module:biz`: looks whether its counters balance and its parts fit
    /// together, and goes through all of them for jobs of which some part is missing. Work goes
    /// on meanwhile; what is reported was so at one instant.
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
    pub fn audit(&self, kind: &str) -> Audit<'_> {
        Audit {
            client: self,
            kind: Kind::parse(kind),
            repair: false,
        }
    }
}

impl Audit<'_> {
    /// Repairs what is found, as each [`Flaw`] says; each is looked at again in the same step.
    ///
    /// A kind that is used and was not known is made known.
    ///
    /// A key of another type is moved out of the way, and kept under another name; a value that is
    /// none is taken out, and what else is known takes its place.
    ///
    /// Nothing disappears, and no counter is put right for its own sake: a difference that no
    /// flaw explains stays, and is reported. A job that comes to light fills the gap, if by the
    /// counters one is missing; if none is, it is counted as accepted.
    pub fn repair(mut self) -> Self {
        self.repair = true;
        self
    }
}

impl AuditReport {
    /// Of two shards of the kind.
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

    /// Of a kind of which nothing was seen.
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

    /// Whether everything is as it should be: known, balanced, consistent, without a flaw or damage,
    /// and seen.
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
            // Without it nobody knows where the jobs are.
            let store = client.store();
            let wrong = store.wrong_layouts(&kind, client.deadline()).await?;
            let mut damaged = Damage::all(client, wrong, repair).await?;
            if damaged.iter().any(|it| !it.repaired) {
                let mut report = AuditReport::of_nothing();
                (report.damaged, report.is_complete) = (damaged, false);
                return Ok(report);
            }
            // A list that is none is told with what all kinds have in common.
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
