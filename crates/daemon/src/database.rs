//! The database beside the daemon: its tables, and the relay of its outbox.

use std::time::Duration;

use anyhow::Context;
use keyfall::Client;
use keyfall_database::{Database, Error, Relay};

use crate::config::Config;

/// How long to wait before the tables are looked at again, while the database is away.
const PAUSE: Duration = Duration::from_secs(2);

/// The outbox of the configured database.
pub(crate) struct Outbox {
    database: Database,
    migrates: bool,
    is_ready: bool,
}

impl Outbox {
    /// Makes or checks the tables; `None` if the configuration names no database. A database that is
    /// away does not keep the daemon from its other work.
    ///
    /// # Errors
    /// If the database refuses the settings, or its tables are not those of Keyfall.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(settings) = config.database_settings() else {
            return Ok(None);
        };
        let mut outbox = Outbox {
            database: Database::open(settings)?,
            migrates: config.database.migrate,
            is_ready: false,
        };
        match outbox.prepare().await {
            Ok(()) => outbox.is_ready = true,
            Err(error @ Error::Unreachable(_)) => {
                tracing::warn!(%error, "the outbox waits for the database");
            }
            Err(error) => return Err(error).context("the database of `database.url`"),
        }
        Ok(Some(outbox))
    }

    async fn prepare(&self) -> Result<(), Error> {
        match self.migrates {
            true => self.database.migrate().await.map(drop),
            false => self.database.check().await,
        }
    }

    /// Passes on the rows of the outbox, for ever.
    pub(crate) async fn run(mut self, client: Client) {
        let mut told = String::new();
        while !self.is_ready {
            tokio::time::sleep(PAUSE).await;
            match self.prepare().await {
                Ok(()) => self.is_ready = true,
                Err(Error::Unreachable(_)) => {}
                Err(error) if error.to_string() == told => {}
                Err(error) => {
                    tracing::error!(%error, "the outbox cannot be used");
                    told = error.to_string();
                }
            }
        }
        tracing::info!("rows of keyfall_outbox are passed on");
        let relay = Relay::new(client, self.database);
        relay.run_until(std::future::pending()).await;
    }
}
