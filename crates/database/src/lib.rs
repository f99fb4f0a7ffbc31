//! Keyfall beside PostgreSQL 13 or later.
//!
//! A program that stores an order and schedules its reminder has two writes, and can be killed between
//! them. With the outbox it has one: a row of `keyfall_outbox`, written in the transaction of the
//! order. A [`Relay`] passes the row on to Redis after the commit, within milliseconds and exactly
//! once. What was rolled back never happens.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | the place of the database, and TLS |
//! | `connection` | connections: a pool, and the one that listens |
//! | `migrations` | the tables: made, brought up to date, checked |
//! | `outbox` | the relay |
//! | `archive` | every job that has ended: stored once, dropped by months, found again |
//! | `copy` | every pending job, so that a Redis that is lost can be built again |
//! | `rounds` | the turns of kinds, for archive and copy |
//! | `error` | the one error type |
//!
//! [`Database::archived`] looks for jobs that have ended, in the table `keyfall_archive`.
//!
//! ```no_run
//! # async fn example(client: keyfall::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use keyfall_database::{Database, Relay, Settings};
//!
//! let database = Database::open(&Settings::new("postgresql:///orders"))?;
//! database.migrate().await?;
//! Relay::new(client, database).run_until(std::future::pending()).await;
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

mod archive;
mod connection;
mod copy;
mod error;
mod migrations;
mod outbox;
mod rounds;
pub mod settings;

pub use archive::{ArchivePage, ArchiveQuery, ArchivedJob, Archiver, How};
pub use connection::Database;
pub use copy::{CopiedKind, Copier, CopyState, Missing, Rebuild, Rebuilt};
pub use error::{Error, Result};
pub use outbox::{OutboxStatus, Relay};
pub use settings::Settings;

/// For the tests of this package; it changes without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::archive::{Row, store};
    pub use crate::copy::{
        Change, CopiedRow, Judged, KindLock, LedgerMark, LedgerRow, Lost, RolledBack, Stored,
    };
}
