//! Selections: all jobs whose keys share a prefix; and the list of kinds.

use std::time::Instant;

use futures_util::future::BoxFuture;

use super::partial::{Kinds, PartialView};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;

/// All jobs whose keys share a prefix; from [`Client::prefix`] or [`Client::everything`].
///
/// Each call that changes something has a `dry_run`, which changes nothing and reports the jobs or
/// kinds that the call would affect.
#[derive(Debug)]
#[must_use = "a selection does nothing by itself"]
pub struct Selection<'a> {
    pub(crate) client: &'a Client,
    /// An invalid prefix is reported when the call is awaited.
    pub(crate) prefix: Result<Prefix>,
}

impl Client {
    /// Selects the jobs whose keys begin with this text: `app1:`, `app1:trans:notice:`, or
    /// `app1:trans:notice:16`.
    ///
    /// The text is compared character by character: `app1:trans:notice` also covers the kind
    /// `app1:trans:notice2`. End it with a colon to select one kind, module or app.
    ///
    /// If the text is empty, or no job key can begin with it, the call on the selection fails with
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey).
    pub fn prefix(&self, text: &str) -> Selection<'_> {
        Selection {
            client: self,
            prefix: Prefix::parse(text),
        }
    }

    /// Selects every job of every kind.
    pub fn everything(&self) -> Selection<'_> {
        Selection {
            client: self,
            prefix: Ok(Prefix::everything()),
        }
    }

    /// The kinds on the list of kinds, in order: all that were ever used and not dropped.
    ///
    /// # Errors
    /// If Redis does not answer in time; if there are several servers, only if none of them
    /// answers.
    pub async fn kinds(&self) -> Result<Kinds> {
        let (kinds, view) = self
            .kinds_in_view(&Prefix::everything(), self.deadline())
            .await?;
        let unseen = view.unseen();
        Ok(Kinds { kinds, unseen })
    }

    /// The kinds with this prefix, in order.
    pub(crate) async fn kinds_of(&self, prefix: &Prefix) -> Result<Vec<Kind>> {
        Ok(self.kinds_in_view(prefix, self.deadline()).await?.0)
    }

    /// The kinds with this prefix, in order, and the servers that can be seen.
    ///
    /// # Errors
    /// If the list of kinds, or the entry of this kind, is lost while there are jobs: an empty
    /// answer would hide them. An [audit](Selection::audit) finds other kinds that the list lacks.
    pub(crate) async fn kinds_in_view(
        &self,
        prefix: &Prefix,
        until: Instant,
    ) -> Result<(Vec<Kind>, PartialView)> {
        let (kinds, view) = self.kinds_listed(prefix, until).await?;
        if !kinds.is_empty() {
            return Ok((kinds, view));
        }
        let store = self.store();
        let unlisted = match prefix.kind() {
            Some(kind) => {
                let kind = Kind::parse(kind)?;
                let is_used = store.has_accepted(&kind, until).await;
                is_used.then_some(kind)
            }
            None if self
                .kinds_listed(&Prefix::everything(), until)
                .await?
                .0
                .is_empty() =>
            {
                // Rare; boxed, so that it does not enlarge the future of every call.
                let looking: BoxFuture<'_, _> = Box::pin(store.kind_with_jobs(until));
                looking.await
            }
            None => None,
        };
        match unlisted {
            None => Ok((kinds, view)),
            Some(kind) => Err(Error::new(
                ErrorKind::Damaged,
                format!(
                    "`{}` does not list {kind}, and the kind has jobs: `keyfall audit --repair` \
                     lists all kinds with jobs again",
                    store.names().kinds()
                ),
            )),
        }
    }

    /// The kinds with this prefix on the list of kinds, in order. A lost list is not detected.
    pub(crate) async fn kinds_listed(
        &self,
        prefix: &Prefix,
        until: Instant,
    ) -> Result<(Vec<Kind>, PartialView)> {
        let (mut kinds, away) = self.0.store.kinds_seen(until).await?;
        kinds.retain(|kind| prefix.covers(kind));
        kinds.sort_unstable();
        Ok((kinds, PartialView::new(&self.0.store, away)))
    }
}
