//! The log of actions, `keyfall:actions`: what operators did, to which jobs, and when.

use std::time::Instant;

use crate::error::Result;
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Server, Store, from_value};

/// About the number of actions that are kept. Redis trims whole nodes of a stream, so there may be
/// some more.
const KEPT: u64 = 10_000;

/// The number of actions that are read in one call.
const PAGE: usize = 500;

/// The most calls for one read: they reach back as far as the log does.
const PAGES: usize = 40;

/// An entry of the log: its id, and its fields.
pub(crate) type ActionEntry = (String, Vec<(String, String)>);

impl Store {
    /// Adds an action to the log. Of several servers, the first that is there keeps it.
    pub(crate) async fn log_action(&self, fields: &[(&str, &str)], until: Instant) -> Result<()> {
        let mut added = Ok(());
        for server in &self.servers {
            added = server.log_action(fields, server.patience(until)).await;
            match &added {
                Err(error) if is_of_absence(error) => {}
                _ => break,
            }
        }
        added
    }

    /// Up to `last` actions of each server that is there, the newest first. Those that `read` does
    /// not turn into anything are left out.
    pub(crate) async fn actions<T: Send>(
        &self,
        last: usize,
        read: &(impl Fn(ActionEntry) -> Option<T> + Sync),
        until: Instant,
    ) -> Result<Vec<T>> {
        let found = self.on_each(until, |it, until| Box::pin(it.actions(last, read, until)));
        Ok(found
            .await
            .of_those_there()?
            .into_iter()
            .flatten()
            .collect())
    }
}

impl Server {
    async fn log_action(&self, fields: &[(&str, &str)], until: Instant) -> Result<()> {
        let mut add = redis::cmd("XADD");
        add.arg(self.names.actions());
        add.arg("MAXLEN").arg("~").arg(KEPT).arg("*").arg(fields);
        self.command(&add, until).await.map(drop)
    }

    async fn actions<T: Send>(
        &self,
        last: usize,
        read: &(impl Fn(ActionEntry) -> Option<T> + Sync),
        until: Instant,
    ) -> Result<Vec<T>> {
        let (mut found, mut end) = (Vec::new(), "+".to_owned());
        for _ in 0..PAGES {
            let mut cmd = redis::cmd("XREVRANGE");
            cmd.arg(self.names.actions()).arg(&end).arg("-");
            cmd.arg("COUNT").arg(PAGE);
            let page: Vec<ActionEntry> = from_value(self.command(&cmd, until).await?)?;
            let Some((oldest, _)) = page.last() else {
                break;
            };
            end = format!("({oldest}");
            let is_last = page.len() < PAGE;
            found.extend(page.into_iter().filter_map(read));
            if is_last || found.len() >= last {
                break;
            }
        }
        found.truncate(last);
        Ok(found)
    }
}
