//! Which kinds leave records for an archive, and changes for a copy: their terms.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::SystemTime;

use super::partial::PartialView;
use crate::client::{Client, Pending, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::keeping::{ArchiveTerms, CopyTerms, KindTerms};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::{TermsRule, this_process};

/// A call to [`Selection::archive`], [`Selection::copy`], or one that ends them; sent when it is
/// awaited. Answers the kinds that exist now, in order.
#[must_use = "nothing is changed until it is awaited"]
pub struct SetTerms<'a, T> {
    selection: Selection<'a>,
    terms: Option<T>,
    by: Option<String>,
}

/// A kind or prefix of kinds whose jobs leave records for an archive, or changes for a copy; from
/// [`Client::archives`] and [`Client::copies`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermsOf<T> {
    /// The prefix: a kind with a colon behind it, `app:module:`, `app:`, or empty for all kinds. Of
    /// the prefixes that cover a kind, the longest one holds.
    pub prefix: String,
    /// The terms.
    pub terms: T,
    /// The time at which they were set, by Redis' clock.
    pub since: SystemTime,
    /// The operator or process that [set](SetTerms::by) them.
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
    pub fn archive(self, terms: ArchiveTerms) -> SetTerms<'a, ArchiveTerms> {
        SetTerms::new(self, Some(terms))
    }

    /// Removes the terms of this prefix. The terms of a shorter prefix, if there are any, hold
    /// again. Records that wait stay until they are in the archive.
    ///
    /// # Errors
    /// When it is awaited: as [`archive`](Self::archive).
    pub fn stop_archive(self) -> SetTerms<'a, ArchiveTerms> {
        SetTerms::new(self, None)
    }

    /// Has the changes of these kinds' jobs noted, so that a program can keep a copy of the jobs that
    /// are to run: `keyfall serve` with a database does. As with [`archive`](Self::archive), it holds
    /// for kinds that come later, and the longest prefix holds. Returns the kinds that exist now.
    ///
    /// # Errors
    /// When it is awaited: as [`archive`](Self::archive).
    pub fn copy(self, terms: CopyTerms) -> SetTerms<'a, CopyTerms> {
        SetTerms::new(self, Some(terms))
    }

    /// Removes the terms of this prefix. Without the terms of a shorter prefix, changes are noted no
    /// more, and the copy loses these kinds.
    ///
    /// # Errors
    /// When it is awaited: as [`archive`](Self::archive).
    pub fn stop_copy(self) -> SetTerms<'a, CopyTerms> {
        SetTerms::new(self, None)
    }
}

impl Client {
    /// The prefixes whose jobs leave records for an archive, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn archives(&self) -> Result<Vec<TermsOf<ArchiveTerms>>> {
        self.terms().await
    }

    /// The prefixes whose jobs are copied, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn copies(&self) -> Result<Vec<TermsOf<CopyTerms>>> {
        self.terms().await
    }

    async fn terms<T: KindTerms>(&self) -> Result<Vec<TermsOf<T>>> {
        let rules = self.store().terms_rules(self.deadline()).await?;
        let terms = rules.into_iter().filter_map(|(prefix, rule)| {
            Some(TermsOf {
                prefix,
                terms: rule.terms?,
                since: rule.set.to_system(),
                by: rule.by,
            })
        });
        Ok(terms.collect())
    }

    /// The kinds that leave records for an archive, or once did, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn archived_kinds(&self) -> Result<Vec<Kind>> {
        self.kinds_with_terms::<ArchiveTerms>().await
    }

    /// The kinds that are copied, or once were, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn copied_kinds(&self) -> Result<Vec<Kind>> {
        self.kinds_with_terms::<CopyTerms>().await
    }

    async fn kinds_with_terms<T: KindTerms>(&self) -> Result<Vec<Kind>> {
        let rules = self.store().terms_rules::<T>(self.deadline()).await?;
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let is_covered = |kind: &Kind| {
            let name = format!("{kind}:");
            rules.iter().any(|(prefix, _)| name.starts_with(prefix))
        };
        Ok(self.kinds().await?.into_iter().filter(is_covered).collect())
    }

    /// Gives the shards of a kind the terms of its archive, in case one has lost or missed them, as a
    /// server that was away. Does nothing for a kind that is not listed.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn archive_again(&self, kind: &Kind) -> Result<()> {
        self.tell_terms_again::<ArchiveTerms>(kind).await
    }

    /// The same with the terms of its copy.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn copy_again(&self, kind: &Kind) -> Result<()> {
        self.tell_terms_again::<CopyTerms>(kind).await
    }

    /// The rules of archives, copies and limits, as Redis stores them, for a copy of its data.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn stored_rules(&self) -> Result<BTreeMap<String, String>> {
        self.store().stored_rules(self.deadline()).await
    }

    /// Brings [stored rules](Self::stored_rules) back to a Redis that has lost them. Rules that are
    /// there stay. Kinds follow them from their first job on, or once
    /// [told again](Self::follow_rules).
    ///
    /// # Errors
    /// If Redis does not answer in time, or one of several servers is away. Repeat the call.
    pub async fn restore_rules(&self, rules: &BTreeMap<String, String>) -> Result<()> {
        self.store().restore_rules(rules, self.deadline()).await
    }

    /// Has a kind follow the rules that cover it: pause, limit, archive and copy.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn follow_rules(&self, kind: &Kind) -> Result<()> {
        let (store, until) = (self.store(), self.deadline());
        let layout = store.look_up(kind, until).await?;
        store.apply_rules(kind, layout, until).await
    }

    async fn tell_terms_again<T: KindTerms>(&self, kind: &Kind) -> Result<()> {
        let (store, until) = (self.store(), self.deadline());
        if !store.knows(kind, until).await? {
            return Ok(());
        }
        let layout = store.look_up(kind, until).await?;
        let away = store.apply_terms_rule::<T>(kind, layout, until).await?;
        away.map_or(Ok(()), Err)
    }
}

impl<'a, T: KindTerms> SetTerms<'a, T> {
    fn new(selection: Selection<'a>, terms: Option<T>) -> Self {
        SetTerms {
            selection,
            terms,
            by: None,
        }
    }

    /// The operator who sets the terms, for [`TermsOf::by`]. Defaults to this process, as
    /// `host:process`.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    async fn send(self) -> Result<Vec<Kind>> {
        let prefix = whole_segments::<T>(self.selection.prefix?.of_kinds(T::DONE)?)?;
        let terms = self.terms.map(T::check).transpose()?;
        let client = self.selection.client;
        let (store, until) = (client.store(), client.deadline());
        let set = store.time(until).await?.floor_ms();
        let rule = TermsRule {
            terms,
            set,
            by: self.by.unwrap_or_else(|| this_process().to_owned()),
        };
        // A kind that begins from now on reads the rule.
        store.set_terms_rule(&prefix, &rule, until).await?;
        let (kinds, view) = client.kinds_in_view(&prefix, until).await?;
        let mut missed = None;
        for kind in &kinds {
            let layout = store.look_up(kind, until).await?;
            // The rule of another prefix may hold.
            if let Some(away) = store.apply_terms_rule::<T>(kind, layout, until).await? {
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

impl<'a, T: KindTerms> IntoFuture for SetTerms<'a, T> {
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
fn whole_segments<T: KindTerms>(prefix: Prefix) -> Result<Prefix> {
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
            "the prefix `{text}` of the {} ends within a segment: write a kind, \
             `app1:mail:send`, or a prefix that ends with a colon, `app1:mail:`",
            T::FIELD
        ),
    ))
}
