//! The audit of many kinds, and of the keys that all kinds share.

use std::collections::BTreeSet;
use std::future::IntoFuture;

use super::{AuditReport, Damage};
use crate::client::operating::partial::PartialView;
use crate::client::{Client, Pending, Selection, Unseen};
use crate::error::{ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::is_of_absence;

/// A call to [`Selection::audit`]; sent when it is awaited. Answers [`AuditAllReport`].
#[must_use = "nothing is audited until it is awaited"]
pub struct AuditAll<'a> {
    selection: Selection<'a>,
    repair: bool,
}

/// The findings of an audit of many kinds.
#[derive(Debug)]
#[non_exhaustive]
pub struct AuditAllReport {
    /// Damage of the keys that all kinds share: the lists of kinds, of pauses and of instances, and
    /// the settings of each server. These keys are audited only if all kinds are. Also the kinds
    /// with jobs that the list of kinds lacks.
    pub damaged: Vec<Damage>,
    /// The audited kinds, in order: the listed kinds, and kinds that have jobs without being
    /// listed. An error in one kind does not stop the others.
    pub kinds: Vec<(Kind, Result<AuditReport>)>,
    /// Whether all keys of the database were searched for unlisted kinds. The search covers ten
    /// million keys of each server, if this user may `SCAN`.
    pub is_searched: bool,
    /// The shards that were not audited, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl<'a> Selection<'a> {
    /// Audits each kind, as [`Client::audit`] does. To find unlisted kinds that have jobs, it reads
    /// the names of all keys of the database. A selection of [everything](Client::everything) also
    /// audits the keys that all kinds share.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// let report = client.everything().audit().repair().await?;
    /// for damage in &report.damaged {
    ///     println!("{}: {}: {}", damage.key, damage.what, damage.remedy);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: if the prefix is not valid or extends into the id, or Redis does not
    /// answer in time. With several servers or a cluster, an error of one kind stands in its entry
    /// of the report.
    pub fn audit(self) -> AuditAll<'a> {
        AuditAll {
            selection: self,
            repair: false,
        }
    }
}

impl AuditAll<'_> {
    /// Repairs the findings, as [`Audit::repair`](crate::Audit::repair) does. An error in one kind
    /// does not stop the others.
    pub fn repair(mut self) -> Self {
        self.repair = true;
        self
    }
}

impl AuditAllReport {
    /// Whether nothing is wrong and nothing was missed.
    pub fn is_clean(&self) -> bool {
        let is_clean =
            |audited: &Result<AuditReport>| audited.as_ref().is_ok_and(AuditReport::is_clean);
        self.damaged.is_empty()
            && self.unseen.is_empty()
            && self.kinds.iter().all(|(_, audited)| is_clean(audited))
    }
}

impl<'a> IntoFuture for AuditAll<'a> {
    type Output = Result<AuditAllReport>;
    type IntoFuture = Pending<'a, AuditAllReport>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let client = self.selection.client;
            let prefix = self.selection.prefix?.of_kinds("audited")?;
            client.audit_all(&prefix, self.repair).await
        })
    }
}

impl Client {
    async fn audit_all(&self, prefix: &Prefix, repair: bool) -> Result<AuditAllReport> {
        let is_about_all = *prefix == Prefix::everything();
        let damaged = match is_about_all {
            true => self.audit_common(repair).await?,
            false => Vec::new(),
        };
        let (listed, view) = match self.kinds_listed(prefix, self.deadline()).await {
            // The audit of the shared keys has reported it.
            Err(error) if is_about_all && error.kind() == ErrorKind::Damaged => {
                (Vec::new(), PartialView::now(self.store()))
            }
            listed => listed?,
        };
        let searched = self.store().search(|| self.deadline()).await?;
        let mut report = AuditAllReport {
            damaged,
            kinds: Vec::new(),
            is_searched: searched.is_complete,
            unseen: view.unseen(),
        };
        let listed: BTreeSet<Kind> = listed.into_iter().collect();
        let mut all = listed.clone();
        all.extend(searched.kinds.into_iter().filter(|it| prefix.covers(it)));
        for kind in all {
            let audit = self.audit(kind.as_str());
            let audited = match repair {
                true => audit.repair().await,
                false => audit.await,
            };
            // With several servers or nodes, other kinds may still be reachable.
            let is_alone = !self.store().is_several() && !self.store().is_cluster();
            if let Err(error) = &audited
                && is_of_absence(error)
                && is_alone
            {
                return audited.map(|_| report);
            }
            if !listed.contains(&kind) {
                if !audited.as_ref().map_or(true, is_used) {
                    continue;
                }
                report.damaged.push(self.unlisted(&kind, &audited));
            }
            if let Ok(audited) = &audited {
                Unseen::merge(&mut report.unseen, &audited.unseen);
            }
            report.kinds.push((kind, audited));
        }
        Ok(report)
    }

    /// Audits the keys that all kinds share. Types first: fields can be read only if the type is
    /// right.
    async fn audit_common(&self, repair: bool) -> Result<Vec<Damage>> {
        let (wrong, _away) = self.store().wrong_types(self.deadline()).await?;
        let mut damaged = Damage::all(self, wrong, repair).await?;
        let wrong = self.store().wrong_fields(self.deadline()).await?;
        damaged.extend(Damage::all(self, wrong, repair).await?);
        Ok(damaged)
    }

    /// The report of a kind that has jobs and is not listed.
    fn unlisted(&self, kind: &Kind, audited: &Result<AuditReport>) -> Damage {
        let repaired = audited.as_ref().is_ok_and(|report| report.is_known);
        Damage {
            key: self.store().names().kinds(),
            field: Some(kind.to_string()),
            what: "it is missing, and the kind has jobs: workers with wildcards do not find them"
                .to_owned(),
            repaired,
            remedy: match repaired {
                true => "listed again".to_owned(),
                false => format!("`keyfall audit {kind}: --repair` lists it again"),
            },
        }
    }
}

/// Whether the kind has jobs, ever had some, or cannot be read.
fn is_used(report: &AuditReport) -> bool {
    let stats = &report.stats;
    let is_empty = stats.pending + stats.leased + stats.successors + stats.dead == 0;
    !is_empty
        || stats.accepted > 0
        || !report.damaged.is_empty()
        || !report.flawed.is_empty()
        || !report.unseen.is_empty()
}
