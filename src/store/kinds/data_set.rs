//! The id of the data set: a copy keeps it too, so that a Redis that lost its data is told from the
//! one that was copied.

use std::time::Instant;

use crate::error::Result;
use crate::store::{Server, Store, from_value};

/// The field of `keyfall:meta`.
const FIELD: &str = "data-set";

impl Store {
    /// The id of the data set of each server, with its address; `None` for a server without one.
    ///
    /// # Errors
    /// If a server does not answer before `until`.
    pub(crate) async fn data_sets(&self, until: Instant) -> Result<Vec<(String, Option<String>)>> {
        let asked = self.on_each(until, |it, until| Box::pin(it.data_set(until)));
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
}

impl Server {
    async fn data_set(&self, until: Instant) -> Result<Option<String>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.meta()).arg(FIELD);
        from_value(self.command(&get, until).await?)
    }
}
