//! Many jobs at once, named by what their keys begin with.

use std::time::Instant;

use futures_util::future::BoxFuture;

use super::partial::{Kinds, PartialView};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;

/// All jobs whose keys begin alike; from [`Client::prefix`] or [`Client::everything`].
///
/// Each call that changes something has a `dry_run`, which tells what it would be about and
/// changes nothing.
#[derive(Debug)]
#[must_use = "a selection does nothing by itself"]
pub struct Selection<'a> {
    pub(crate) client: &'a Client,
    /// A text that is no prefix is told when the call is awaited.
    pub(crate) prefix: Result<Prefix>,
}

impl Client {
    /// The jobs whose keys begin with this text: `app1:`, `app1:trans:notice:`, or
    /// `app1:trans:notice:16`.
    ///
    /// It is a text and nothing more: `app1:trans:notice` is also the beginning of the kind
    /// `app1:trans:notice2`. End it with a colon to mean one kind, module or app.
    ///
    /// A call on a text that is empty, or that no job key can begin with, fails with
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey).
    pub fn prefix(&self, text: &str) -> Selection<'_> {
        Selection {
            client: self,
            prefix: Prefix::parse(text),
        }
    }

    /// Every job of every kind.
    pub fn everything(&self) -> Selection<'_> {
        Selection {
            client: self,
            prefix: Ok(Prefix::everything()),
        }
    }

    /// The kinds that were ever used, in order.
    ///
    /// # Errors
    /// If Redis does not answer in time; of several servers, if none does.
    pub async fn kinds(&self) -> Result<Kinds> {
        let (kinds, view) = self
            .kinds_in_view(&Prefix::everything(), self.deadline())
            .await?;
        let unseen = view.unseen();
        Ok(Kinds { kinds, unseen })
    }

    /// The kinds that a prefix covers, in order.
    pub(crate) async fn kinds_of(&self, prefix: &Prefix) -> Result<Vec<Kind>> {
        Ok(self.kinds_in_view(prefix, self.deadline()).await?.0)
    }

    /// The same, and what can be seen of them.
    ///
    /// # Errors
    /// If the list of kinds is lost, or this one missing, and there are jobs: nobody is to take them
    /// for none. What other kinds a list lacks takes an [audit](Selection::audit) to find out.
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
                // Rare, and not a part of the type of every call.
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
                    "`{}` does not list {kind}, and there are jobs of it: `keyfall audit --repair` \
                     lists all kinds again that have jobs",
                    store.names().kinds()
                ),
            )),
        }
    }

    /// The kinds that are listed and that a prefix covers, in order.
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
