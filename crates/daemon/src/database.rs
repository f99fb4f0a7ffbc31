//! The database beside the daemon: its tables, the relay of its outbox, the archiver and the copier.

use std::future::pending;
use std::time::Duration;

use anyhow::Context;
use keyfall::Client;
use keyfall_database::{Archiver, Copier, Database, Error, Relay};

use crate::config::Config;

/// How long to wait before the tables are looked at again, while the database is away.
const PAUSE: Duration = Duration::from_secs(2);

/// The work between Redis and the configured database.
pub(crate) struct DatabaseWork {
    database: Database,
    migrates: bool,
    refuses_lost_data: bool,
    is_ready: bool,
}

impl DatabaseWork {
    /// Makes or checks the tables; `None` if the configuration names no database. A database that is
    /// away does not keep the daemon from its other work.
    ///
    /// # Errors
    /// If the database refuses the settings, or its tables are not those of Keyfall.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(settings) = config.database_settings() else {
            return Ok(None);
        };
        let mut work = DatabaseWork {
            database: Database::open(settings)?,
            migrates: config.database.migrate,
            refuses_lost_data: config.database.refuse_lost_data,
            is_ready: false,
        };
        match work.prepare().await {
            Ok(()) => work.is_ready = true,
            Err(error @ Error::Unreachable(_)) => {
                tracing::warn!(%error, "outbox and archive wait for the database");
            }
            Err(error) => return Err(error).context("the database of `database.url`"),
        }
        Ok(Some(work))
    }

    async fn prepare(&self) -> Result<(), Error> {
        match self.migrates {
            true => self.database.migrate().await.map(drop),
            false => self.database.check().await,
        }
    }

    /// The database, for calls that read it.
    pub(crate) fn database(&self) -> Database {
        self.database.clone()
    }

    /// Compares the data set of Redis with the one that was copied, if the configuration asks for it.
    ///
    /// # Errors
    /// If they differ, the copy is stopped for another reason, or the database is away: after a power
    /// failure Redis can be back, with old data, before the database is.
    pub(crate) async fn check_data_set(&self, client: &Client) -> anyhow::Result<()> {
        if !self.refuses_lost_data {
            return Ok(());
        }
        if !self.is_ready {
            anyhow::bail!(
                "the database of `database.url` is away, so nobody knows whether Redis has lost \
                 data: start the daemon again when the database is there. With \
                 `database.refuse_lost_data = false` the worker starts without it"
            );
        }
        let compared = Copier::compare_once(client, &self.database).await;
        let Some(why) = compared.context("the data set of Redis and the copy")? else {
            return Ok(());
        };
        if let Err(error) = client.note_copier(Some(&why)).await {
            tracing::debug!(%error, "the doctor was not told of the copy");
        }
        anyhow::bail!(
            "{why}: see with `keyfall rebuild` what is missing, and bring it back with `keyfall \
             rebuild --yes`. With `database.refuse_lost_data = false` the worker starts without it"
        )
    }

    /// Passes on the rows of the outbox, stores the records of ended jobs, and keeps the copy, for
    /// ever.
    pub(crate) async fn run(mut self, client: Client) {
        let mut told = String::new();
        while !self.is_ready {
            tokio::time::sleep(PAUSE).await;
            match self.prepare().await {
                Ok(()) => self.is_ready = true,
                Err(Error::Unreachable(_)) => {}
                Err(error) if error.to_string() == told => {}
                Err(error) => {
                    tracing::error!(%error, "outbox and archive cannot be used");
                    told = error.to_string();
                }
            }
        }
        tracing::info!(
            "rows of keyfall_outbox are passed on, ended jobs archived, and jobs copied"
        );
        let relay = Relay::new(client.clone(), self.database.clone());
        let archiver = Archiver::new(client.clone(), self.database.clone());
        let copier = Copier::new(client, self.database);
        tokio::join!(
            relay.run_until(pending()),
            archiver.run_until(pending()),
            copier.run_until(pending()),
        );
    }
}
