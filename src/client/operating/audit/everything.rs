//! The audit of many kinds, and of what they have in common.

use std::collections::BTreeSet;
use std::future::IntoFuture;

use super::{AuditReport, Damage};
use crate::client::operating::partial::PartialView;
use crate::client::{Client, Pending, Selection, Unseen};
use crate::error::{ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::is_of_absence;

/// A call to [`Selection::audit`]; sent when it is awaited.
#[must_use = "nothing is audited until it is awaited"]
pub struct AuditAll<'a> {
    selection: Selection<'a>,
    repair: bool,
}

/// What an audit of many kinds found.
#[derive(Debug)]
#[non_exhaustive]
pub struct AuditAllReport {
    /// What is wrong with the keys that all kinds have in common: the lists of kinds, of pauses and of
    /// instances, and what each server knows of itself. Only where all kinds are audited.
    pub damaged: Vec<Damage>,
    /// The kinds, in order: those that are listed, and those of which jobs are there all the same.
    /// One that cannot be audited keeps nobody from the others.
    pub kinds: Vec<(Kind, Result<AuditReport>)>,
    /// Whether all keys of the database were looked at for kinds that are not listed. Ten million of
    /// each server are, if this user may `SCAN`.
    pub is_searched: bool,
    /// What was not looked at, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl<'a> Selection<'a> {
    /// Audits each of the kinds, as [`Client::audit`] does; finds those that have jobs and are not
    /// listed, for which it goes through the names of all keys of the database; and, if it is about
    /// [everything](Client::everything), looks at the keys that all kinds have in common.
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
    pub fn audit(self) -> AuditAll<'a> {
        AuditAll {
            selection: self,
            repair: false,
        }
    }
}

impl AuditAll<'_> {
    /// Repairs what is found, as [`Audit::repair`](crate::Audit::repair) does. What is wrong with one
    /// kind keeps it from none of the others.
    pub fn repair(mut self) -> Self {
        self.repair = true;
        self
    }
}

impl AuditAllReport {
    /// Whether everything is as it should be, and was seen.
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
            // That was said.
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
            // Elsewhere others may be there: on other servers or nodes, or in slots that are whole.
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

    /// Types first, since fields can only be looked at where these are right.
    async fn audit_common(&self, repair: bool) -> Result<Vec<Damage>> {
        let (wrong, _away) = self.store().wrong_types(self.deadline()).await?;
        let mut damaged = Damage::all(self, wrong, repair).await?;
        let wrong = self.store().wrong_fields(self.deadline()).await?;
        damaged.extend(Damage::all(self, wrong, repair).await?);
        Ok(damaged)
    }

    /// That a kind has jobs, and the list does not know it.
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

/// Whether jobs are there, or ever were; or cannot be looked at.
fn is_used(report: &AuditReport) -> bool {
    let stats = &report.stats;
    let is_empty = stats.pending + stats.leased + stats.successors + stats.dead == 0;
    !is_empty
        || stats.accepted > 0
        || !report.damaged.is_empty()
        || !report.flawed.is_empty()
        || !report.unseen.is_empty()
}
