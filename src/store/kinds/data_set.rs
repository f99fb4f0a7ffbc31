//! The id of the data set: a copy keeps it too, so that a Redis that lost its data is told from the
//! one that was copied. Beside it is the note of the last copier, which the doctor reads.

use std::time::Instant;

use crate::error::Result;
use crate::store::{Server, Store, from_value};
#[cfg(feature = "worker")]
use crate::time::UnixMs;

/// The field of `keyfall:meta` with the id.
const FIELD: &str = "data-set";

/// The field with the note.
const COPIER: &str = "copier";

/// What a copier has found when it compared the data sets.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopierNote {
    /// When it looked, by the clock of Redis.
    pub(crate) at: UnixMs,
    /// Why it copies nothing; `None` if it copies.
    pub(crate) stopped: Option<String>,
}

impl Store {
    /// The id of the data set of each server, with its address; `None` for a server without one.
    ///
    /// # Errors
    /// If a server does not answer before `until`.
    pub(crate) async fn data_sets(&self, until: Instant) -> Result<Vec<(String, Option<String>)>> {
        let asked = self.on_each(until, |it, until| Box::pin(it.meta_field(FIELD, until)));
        let (ids, mut away) = asked.await.there()?;
        match away.pop() {
            Some(away) => Err(away.error),
            None => {
                let servers = self.servers.iter().map(|it| it.address());
                Ok(servers.zip(ids).collect())
            }
        }
    }

    /// Gives each server the id, or only those without one.
    ///
    /// # Errors
    /// If a server does not answer before `until`. Repeat the call.
    pub(crate) async fn set_data_set(&self, id: &str, replace: bool, until: Instant) -> Result<()> {
        let set = self.on_each(until, |it, until| {
            let mut cmd = redis::cmd(if replace { "HSET" } else { "HSETNX" });
            cmd.arg(it.names.meta()).arg(FIELD).arg(id);
            Box::pin(async move { it.command(&cmd, until).await })
        });
        match set.await.there()?.1.pop() {
            Some(away) => Err(away.error),
            None => Ok(()),
        }
    }

    /// Notes on each server that is there what a copier has found now.
    ///
    /// # Errors
    /// If no server answers before `until`.
    pub(crate) async fn note_copier(&self, stopped: Option<&str>, until: Instant) -> Result<()> {
        let now = self.time(until).await?.floor_ms();
        let note = match stopped {
            None => now.0.to_string(),
            Some(why) => format!("{} {why}", now.0),
        };
        let set = self.on_each(until, |it, until| {
            let mut cmd = redis::cmd("HSET");
            cmd.arg(it.names.meta()).arg(COPIER).arg(&note);
            Box::pin(async move { it.command(&cmd, until).await })
        });
        set.await.there().map(drop)
    }

    /// The newest note of the servers that are there; `None` if no copier has left one.
    ///
    /// # Errors
    /// If no server answers before `until`.
    #[cfg(feature = "worker")]
    pub(crate) async fn copier_note(&self, until: Instant) -> Result<Option<CopierNote>> {
        let asked = self.on_each(until, |it, until| Box::pin(it.meta_field(COPIER, until)));
        let (notes, _) = asked.await.there()?;
        let notes = notes
            .iter()
            .flatten()
            .filter_map(|it| CopierNote::parse(it));
        Ok(notes.max_by_key(|it| it.at))
    }
}

#[cfg(feature = "worker")]
impl CopierNote {
    fn parse(text: &str) -> Option<Self> {
        let (at, stopped) = match text.split_once(' ') {
            None => (text, None),
            Some((at, why)) => (at, Some(why.to_owned())),
        };
        let at = UnixMs(at.parse().ok()?);
        Some(CopierNote { at, stopped })
    }
}

impl Server {
    async fn meta_field(&self, field: &str, until: Instant) -> Result<Option<String>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.meta()).arg(field);
        from_value(self.command(&get, until).await?)
    }
}
