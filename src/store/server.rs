//! What a server must be to carry Keyfall.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::IntoConnectionInfo;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};

use super::{Store, from_value};
use crate::error::{Error, ErrorKind, Result};

/// The layout of what is stored. Another number in `meta` means another layout.
const SCHEMA: u32 = 1;

/// The oldest server whose commands suffice: `ZMSCORE`, and `SET` with `PXAT`, came with 6.2.
const OLDEST: (u32, u32) = (6, 2);

/// The notification flags that make Redis announce expired keys.
#[cfg(feature = "worker")]
const FLAGS: &str = "Ex";

/// A client for `url`, with a socket that sends at once and notices a dead network.
pub(super) fn client(url: &str) -> Result<redis::Client> {
    // The URL may hold a password, so no message repeats it.
    let invalid = |error: redis::RedisError| {
        Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "the Redis URL is not valid ({}): write redis://[user:password@]host:port/database \
                 or redis+unix:///path?db=0",
                error.category()
            ),
        )
    };
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    let info = url
        .into_connection_info()
        .map_err(invalid)?
        .set_tcp_settings(tcp);
    redis::Client::open(info).map_err(invalid)
}

impl Store {
    /// Refuses a server that cannot carry Keyfall: too old, a replica, one that would evict
    /// the ledger, or one that holds another schema.
    pub(crate) async fn check(&self, until: Instant) -> Result<()> {
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
        let policy = info.get("maxmemory_policy").copied().unwrap_or_default();
        let limited = info.get("maxmemory").is_some_and(|limit| *limit != "0");
        if policy.starts_with("allkeys") && limited {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "Redis at {address} evicts any key when it is full (maxmemory-policy {policy}), \
                     and would drop jobs: set `maxmemory-policy noeviction`, or give Keyfall a \
                     Redis of its own"
                ),
            ));
        }
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
    /// are set. An error means that it may not announce them.
    #[cfg(feature = "worker")]
    pub(crate) async fn announce_expired(&self, until: Instant) -> Result<()> {
        const NAME: &str = "notify-keyspace-events";
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(NAME);
        let pair: HashMap<String, String> = from_value(self.command(&get, until).await?)?;
        let flags = pair.get(NAME).cloned().unwrap_or_default();
        if flags.contains('E') && (flags.contains('x') || flags.contains('A')) {
            return Ok(());
        }
        let merged = format!("{flags}{FLAGS}");
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(NAME).arg(&merged);
        self.command(&set, until).await?;
        tracing::warn!(
            was = flags,
            set = merged,
            "Redis did not announce expired keys; the missing flags are set until it restarts: \
             put `notify-keyspace-events {merged}` into its configuration"
        );
        Ok(())
    }
}
