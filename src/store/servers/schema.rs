//! The schema: the version of all that is stored, in the field `schema` of `meta`.
//!
//! A client verifies it when it connects. From then on it verifies it with each new connection,
//! because a newer version may raise it while this process runs: `docs/upgrade.md` says when.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult};

use crate::error::{Error, ErrorKind, Result};
use crate::names::Names;
use crate::store::connections::fault::Fault;

/// The version of the stored data. A database with another number in `meta` is refused.
pub(crate) const SCHEMA: u32 = 1;

/// The field of `meta` with the version.
pub(in crate::store) const FIELD: &str = "schema";

/// Verifies the schema of a server with each new connection.
pub(in crate::store) struct SchemaGuard {
    /// For the name of `meta`.
    names: Names,
    /// True once the schema was the right one. Before, the doctor looks at servers of any schema.
    is_on: AtomicBool,
}

impl SchemaGuard {
    /// A guard that lets all connections pass for now.
    pub(in crate::store) fn new(names: Names) -> Self {
        SchemaGuard {
            names,
            is_on: AtomicBool::new(false),
        }
    }

    /// From now on, new connections to another schema are refused.
    pub(in crate::store) fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Verifies the schema behind a new connection. A server without one passes: it has lost its
    /// data, or is a node of a cluster that does not have `meta`.
    ///
    /// # Errors
    /// A refusal if the server has another schema; a fault of the connection.
    pub(in crate::store) async fn check(
        &self,
        to: &mut MultiplexedConnection,
        address: &str,
    ) -> Result<(), Fault> {
        if !self.is_on.load(Ordering::Relaxed) {
            return Ok(());
        }
        let found: RedisResult<Option<String>> = self.ask().query_async(to).await;
        match found {
            Ok(Some(found)) => self.compare(&found, address).map_err(Fault::refused),
            Ok(None) => Ok(()),
            Err(error) if error.is_io_error() => Err(Fault::from_connecting(error, address)),
            // Such as a `meta` of another type, which the audit reports.
            Err(_) => Ok(()),
        }
    }

    /// The command that reads the schema.
    pub(in crate::store) fn ask(&self) -> Cmd {
        let mut ask = redis::cmd("HGET");
        ask.arg(self.names.meta()).arg(FIELD);
        ask
    }

    /// Verifies the schema that a server has.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] if it is another one.
    pub(in crate::store) fn compare(&self, found: &str, address: &str) -> Result<()> {
        if found == SCHEMA.to_string() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "Redis at {address} holds schema {found} under {}, and this version of Keyfall, \
                 {}, reads and writes {SCHEMA}: use the version that wrote it, or another \
                 namespace",
                self.names.meta(),
                env!("CARGO_PKG_VERSION"),
            ),
        ))
    }
}
