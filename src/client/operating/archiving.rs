//! The archive of ended jobs: which kinds leave records for it, and the records that wait.

use std::future::IntoFuture;
use std::time::SystemTime;

use super::partial::PartialView;
use crate::archive::ArchiveTerms;
use crate::client::{Client, Pending, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::{ArchiveRule, this_process};

/// A call to [`Selection::archive`] or [`Selection::stop_archive`]; sent when it is awaited. Answers
/// the kinds that exist now, in order.
#[must_use = "nothing is changed until it is awaited"]
pub struct SetArchive<'a> {
    selection: Selection<'a>,
    terms: Option<ArchiveTerms>,
    by: Option<String>,
}

/// A kind or prefix of kinds whose jobs leave records for an archive; from [`Client::archives`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Archived {
    /// The prefix: a kind with a colon behind it, `app:module:`, `app:`, or empty for all kinds. Of
    /// the prefixes that cover a kind, the longest one holds.
    pub prefix: String,
    /// The terms.
    pub terms: ArchiveTerms,
    /// The time at which they were set, by Redis' clock.
    pub since: SystemTime,
    /// The operator or process that [set](SetArchive::by) them.
    pub by: String,
}

impl<'a> Selection<'a> {
    /// Has each job of these kinds leave a record when it ends, for an archive such as the one in
    /// PostgreSQL. It holds for kinds that are used for the first time later, too, and replaces the
    /// terms of this prefix; of several prefixes that cover a kind the longest holds. Returns the
    /// kinds that exist now.
    ///
    /// A record is written by the step that ends the job, so none is missing, from the moment on at
    /// which the call is answered. Only something that copies the records, and removes them with
    /// [`Client::forget_ended`], keeps Redis from filling up to
    /// [the bound](ArchiveTerms::waiting): `keyfall serve` with a database does.
    ///
    /// # Errors
    /// When it is awaited: if the prefix is not valid or does not end at a segment, the terms are out
    /// of range, Redis does not answer in time, or one of several servers is away.
    pub fn archive(self, terms: ArchiveTerms) -> SetArchive<'a> {
        SetArchive {
            selection: self,
            terms: Some(terms),
            by: None,
        }
    }

    /// Removes the terms of this prefix. The terms of a shorter prefix, if there are any, hold
    /// again. Records that wait stay until they are in the archive.
    ///
    /// # Errors
    /// When it is awaited: as [`archive`](Self::archive).
    pub fn stop_archive(self) -> SetArchive<'a> {
        SetArchive {
            selection: self,
            terms: None,
            by: None,
        }
    }
}

impl Client {
    /// The prefixes whose jobs leave records for an archive, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn archives(&self) -> Result<Vec<Archived>> {
        let rules = self.store().archive_rules(self.deadline()).await?;
        let archived = rules.into_iter().filter_map(|(prefix, rule)| {
            Some(Archived {
                prefix,
                terms: rule.terms?,
                since: rule.set.to_system(),
                by: rule.by,
            })
        });
        Ok(archived.collect())
    }
}

impl Client {
    /// The kinds that leave records for an archive, or once did, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn archived_kinds(&self) -> Result<Vec<Kind>> {
        let rules = self.store().archive_rules(self.deadline()).await?;
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let is_covered = |kind: &Kind| {
            let name = format!("{kind}:");
            rules.iter().any(|(prefix, _)| name.starts_with(prefix))
        };
        Ok(self.kinds().await?.into_iter().filter(is_covered).collect())
    }

    /// Gives the shards of a kind the terms that cover it, in case one has lost or missed them, as a
    /// server that was away. Does nothing for a kind that is not listed.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn archive_again(&self, kind: &Kind) -> Result<()> {
        let (store, until) = (self.store(), self.deadline());
        if !store.knows(kind, until).await? {
            return Ok(());
        }
        let layout = store.look_up(kind, until).await?;
        let away = store.apply_archive_rule(kind, layout, until).await?;
        away.map_or(Ok(()), Err)
    }
}

impl SetArchive<'_> {
    /// The operator who sets the terms, for [`Archived::by`]. Defaults to this process, as
    /// `host:process`.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    async fn send(self) -> Result<Vec<Kind>> {
        let prefix = whole_segments(self.selection.prefix?.of_kinds("archived")?)?;
        let terms = self.terms.map(ArchiveTerms::check).transpose()?;
        let client = self.selection.client;
        let (store, until) = (client.store(), client.deadline());
        let set = store.time(until).await?.floor_ms();
        let rule = ArchiveRule {
            terms,
            set,
            by: self.by.unwrap_or_else(|| this_process().to_owned()),
        };
        // A kind that begins from now on reads the rule.
        store.set_archive_rule(&prefix, &rule, until).await?;
        let (kinds, view) = client.kinds_in_view(&prefix, until).await?;
        let mut missed = None;
        for kind in &kinds {
            let layout = store.look_up(kind, until).await?;
            // The rule of another prefix may hold.
            if let Some(away) = store.apply_archive_rule(kind, layout, until).await? {
                missed = Some(away);
            }
        }
        if let Some(error) = missed {
            return Err(error);
        }
        PartialView::all_done(view)?;
        Ok(kinds)
    }
}

impl<'a> IntoFuture for SetArchive<'a> {
    type Output = Result<Vec<Kind>>;
    type IntoFuture = Pending<'a, Vec<Kind>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// The prefix, with a colon behind the name of a kind.
///
/// # Errors
/// [`ErrorKind::InvalidKey`] if it ends within a segment.
fn whole_segments(prefix: Prefix) -> Result<Prefix> {
    let text = prefix.as_str();
    if text.is_empty() || text.ends_with(':') {
        return Ok(prefix);
    }
    if Kind::parse(text).is_ok() {
        return Prefix::parse(&format!("{text}:"));
    }
    Err(Error::new(
        ErrorKind::InvalidKey,
        format!(
            "the prefix `{text}` of an archive ends within a segment: write a kind, \
             `app1:mail:send`, or a prefix that ends with a colon, `app1:mail:`"
        ),
    ))
}
