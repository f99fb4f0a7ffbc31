//! The version of the server under test, and assertions that depend on it.

use std::collections::HashMap;
use std::fmt;

use redis::aio::MultiplexedConnection;

use crate::site::command;

use ServerVersion::{Redis, Valkey};

/// Ordered: Valkey, which began as a copy of Redis 7.2, comes after every Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerVersion {
    Redis(u32, u32),
    Valkey(u32, u32),
}

impl ServerVersion {
    pub(crate) async fn of(redis: &mut MultiplexedConnection) -> Self {
        let text: String = command(redis, &["INFO", "server"]).await;
        let info: HashMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .collect();
        let parse = |text: &str| {
            let mut parts = text.split('.').map(|part| part.parse().unwrap());
            (parts.next().unwrap(), parts.next().unwrap())
        };
        // Valkey also names the Redis version that it is compatible with.
        match info.get("valkey_version").map(|text| parse(text)) {
            Some((major, minor)) => Valkey(major, minor),
            None => {
                let (major, minor) = parse(info["redis_version"]);
                Redis(major, minor)
            }
        }
    }

    /// Compares the observed behaviour of this server with the table: the last entry that is not of
    /// a later version. A Valkey without an entry has the entry of Redis.
    ///
    /// # Panics
    /// When they differ.
    #[track_caller]
    pub(crate) fn holds<T>(self, what: &str, seen: &T, said: &[(ServerVersion, T)])
    where
        T: PartialEq + fmt::Debug,
    {
        let known = said.iter().rfind(|(since, _)| *since <= self);
        let (since, told) = known.expect("what is said begins with the oldest version");
        assert!(
            seen == told,
            "{self} differs in this: {what}\n  seen: {seen:?}\n  {since} and later: {told:?}\n\
             Find out whether Keyfall bears it. Then write it down, in this test and in \
             docs/servers.md, with the version that it begins with"
        );
    }

    /// Compares the observed behaviour of this server with the behaviour of all servers.
    ///
    /// # Panics
    /// When they differ.
    #[track_caller]
    pub(crate) fn always<T: PartialEq + fmt::Debug>(self, what: &str, seen: &T, told: T) {
        self.holds(what, seen, &[(Redis(6, 2), told)]);
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redis(major, minor) => write!(f, "Redis {major}.{minor}"),
            Valkey(major, minor) => write!(f, "Valkey {major}.{minor}"),
        }
    }
}
