//! What a server must be to carry Keyfall.

use std::collections::HashMap;
use std::time::Instant;

use super::{Store, from_value};
use crate::error::{Error, ErrorKind, Result};

/// The layout of what is stored. Another number in `meta` means another layout.
const SCHEMA: u32 = 1;

/// The oldest server whose commands suffice: `ZMSCORE`, and `SET` with `PXAT`, came with 6.2.
const OLDEST: (u32, u32) = (6, 2);

/// The notification flags that make Redis announce expired keys.
#[cfg(feature = "worker")]
const FLAGS: &str = "Ex";

#[cfg(feature = "worker")]
const FLAGS_NAME: &str = "notify-keyspace-events";

/// Whether Redis announces the keys that it expires.
#[cfg(feature = "worker")]
pub(crate) enum Announced {
    Already,
    /// The missing flags were merged into those that were set.
    FromNow {
        was: String,
        set: String,
    },
    /// It does not, and for this reason it cannot be told to.
    Never(Error),
    /// That may not be looked up.
    Unknown(Error),
    /// It did not answer the question.
    Unanswered(Error),
}

impl Store {
    /// Refuses a server that cannot carry Keyfall: too old, a replica, one that would evict
    /// the ledger unless that is allowed, or one that holds another schema.
    pub(crate) async fn check(&self, allow_eviction: bool, until: Instant) -> Result<()> {
        let text: String = from_value(self.command(&redis::cmd("INFO"), until).await?)?;
        let info: HashMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .collect();
        let address = self.address();
        self.check_version(&info)?;
        if info.get("role").is_some_and(|role| *role == "slave") {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("Redis at {address} is a replica: name the primary"),
            ));
        }
        self.check_eviction(&info, allow_eviction)?;
        let schema = self.schema(until).await?;
        if schema != SCHEMA.to_string() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "Redis at {address} holds schema {schema} under {}, and this version writes \
                     {SCHEMA}: use the version that wrote it, or another namespace",
                    self.names.meta()
                ),
            ));
        }
        Ok(())
    }

    /// The schema of what is stored; ours, if nothing is. Written only then, so that a worker
    /// can start, and empty it, while Redis is full.
    async fn schema(&self, until: Instant) -> Result<String> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.meta()).arg("schema");
        let known: Option<String> = from_value(self.command(&get, until).await?)?;
        if let Some(schema) = known {
            return Ok(schema);
        }
        let mut set = redis::cmd("HSETNX");
        set.arg(self.names.meta()).arg("schema").arg(SCHEMA);
        self.command(&set, until).await?;
        from_value(self.command(&get, until).await?)
    }

    /// An `allkeys-*` policy evicts ledgers, and with them jobs; a `volatile-*` one evicts
    /// triggers. Without a limit of memory nothing is evicted.
    fn check_eviction(&self, info: &HashMap<&str, &str>, allowed: bool) -> Result<()> {
        let address = self.address();
        let policy = info.get("maxmemory_policy").copied().unwrap_or_default();
        let limited = info.get("maxmemory").is_some_and(|limit| *limit != "0");
        let all_keys = policy.starts_with("allkeys");
        if all_keys && limited && !allowed {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "Redis at {address} evicts any key when it is full (maxmemory-policy {policy}), \
                     and would drop jobs: set `maxmemory-policy noeviction`, or give Keyfall a \
                     Redis of its own; `ClientBuilder::allow_eviction` accepts the loss"
                ),
            ));
        }
        // The client of a worker has said it.
        if self.insists {
            return Ok(());
        }
        if all_keys {
            tracing::warn!(
                %address,
                policy,
                "Redis evicts any key {}, and with it jobs: set `maxmemory-policy noeviction`",
                if limited { "when it is full" } else { "as soon as it has a maxmemory" }
            );
        } else if policy.starts_with("volatile") && limited {
            tracing::warn!(
                %address,
                policy,
                "Redis evicts triggers when it is full: no job is lost, but jobs may start some \
                 20 ms late; set `maxmemory-policy noeviction`"
            );
        }
        Ok(())
    }

    fn check_version(&self, info: &HashMap<&str, &str>) -> Result<()> {
        // Valkey reports the Redis version that it forked from, which suffices.
        let version = info.get("redis_version").copied().unwrap_or_default();
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if found < OLDEST {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the server at {} is Redis {version:?}: Keyfall needs Redis 6.2 or newer, or Valkey",
                    self.address()
                ),
            ));
        }
        Ok(())
    }

    /// Makes Redis announce expired keys: merges the flags that are missing into those that
    /// are set.
    #[cfg(feature = "worker")]
    pub(crate) async fn announce_expired(&self, until: Instant) -> Announced {
        let flags = match self.flags(until).await {
            Ok(flags) => flags,
            Err(error) if is_passing(&error) => return Announced::Unanswered(error),
            Err(error) => return Announced::Unknown(error),
        };
        if flags.contains('E') && (flags.contains('x') || flags.contains('A')) {
            return Announced::Already;
        }
        let merged = format!("{flags}{FLAGS}");
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(FLAGS_NAME).arg(&merged);
        match self.command(&set, until).await {
            Ok(_) => Announced::FromNow {
                was: flags,
                set: merged,
            },
            Err(error) if is_passing(&error) => Announced::Unanswered(error),
            Err(error) => Announced::Never(error),
        }
    }

    /// The notification flags that are set.
    #[cfg(feature = "worker")]
    async fn flags(&self, until: Instant) -> Result<String> {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(FLAGS_NAME);
        let mut pair: HashMap<String, String> = from_value(self.command(&get, until).await?)?;
        Ok(pair.remove(FLAGS_NAME).unwrap_or_default())
    }
}

#[cfg(feature = "worker")]
fn is_passing(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
    )
}
