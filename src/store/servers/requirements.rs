//! The requirements for a server: version, role, eviction policy, schema, and key events. A client
//! checks them when it connects, and a worker when it starts.

use std::collections::HashMap;
#[cfg(feature = "worker")]
use std::time::Duration;
use std::time::Instant;

use futures_util::future::join_all;

use crate::error::{Error, ErrorKind, Result};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::servers::membership::{self, is_not_alone};
use crate::store::servers::nodes::ServerNode;
use crate::store::servers::schema::{self, SCHEMA};
use crate::store::{Away, Server, Store, from_value};

/// The oldest supported Redis version: `ZMSCORE`, and `SET` with `PXAT`, came with 6.2.
const OLDEST: (u32, u32) = (6, 2);

/// The setting that selects the key events.
#[cfg(feature = "worker")]
const FLAGS_NAME: &str = "notify-keyspace-events";

/// The longest that replicas of a cluster are waited for, which announce events only once they are
/// promoted.
#[cfg(feature = "worker")]
const REPLICAS: Duration = Duration::from_millis(200);

/// The events that Redis must announce.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedEvents {
    /// Expired keys.
    Expiry,
    /// Expired keys, and changes of keys of any type (`g`) and of strings (`$`).
    Changes,
}

#[cfg(feature = "worker")]
impl WantedEvents {
    /// The notification flags that these events need.
    pub(crate) fn flags(self) -> &'static str {
        match self {
            WantedEvents::Expiry => "Ex",
            WantedEvents::Changes => "ExKg$",
        }
    }

    /// True if these flags contain all needed ones. `A` stands for all sorts of events, but for
    /// neither sort of channel.
    pub(crate) fn is_announced_by(self, flags: &str) -> bool {
        let is_set = |flag| flags.contains(flag) || !"KE".contains(flag) && flags.contains('A');
        self.flags().chars().all(is_set)
    }

    /// The events that flags leave out, for people.
    pub(crate) fn missing(self, flags: &str) -> &'static str {
        match (WantedEvents::Expiry.is_announced_by(flags), self) {
            (true, _) => "changes of keys",
            (false, WantedEvents::Changes) => "expired keys and changes of keys",
            (false, WantedEvents::Expiry) => "expired keys",
        }
    }

    /// Logs a warning that the flags `set` replace the flags `was`.
    pub(crate) fn say_set(self, was: &str, set: &str) {
        tracing::warn!(
            was,
            set,
            "Redis did not announce {}; this process has set the missing flags until Redis \
             restarts: put `notify-keyspace-events {set}` into its configuration",
            self.missing(was),
        );
    }

    /// These flags, and behind them the needed flags that they lack.
    pub(crate) fn merged_into(self, flags: &str) -> String {
        let is_missing = |flag: &char| match flag {
            'K' | 'E' => !flags.contains(*flag),
            _ => !flags.contains(['A', *flag]),
        };
        let missing = self.flags().chars().filter(is_missing);
        flags.chars().chain(missing).collect()
    }
}

/// Whether Redis announces the wanted events.
#[cfg(feature = "worker")]
pub(crate) enum Announced {
    Already,
    /// The missing flags were added to the flags that were set.
    FromNow {
        was: String,
        set: String,
    },
    /// It does not announce them: the flags are `was`, and could not be changed for this reason.
    Never {
        was: String,
        error: Error,
    },
    /// Its flags cannot be read.
    Unknown(Error),
    /// It did not answer the question.
    Unanswered(Error),
}

#[cfg(feature = "worker")]
impl Announced {
    /// How urgent a state is; of several servers the most urgent one is reported.
    fn badness(&self) -> u8 {
        match self {
            Announced::Already => 0,
            Announced::Unanswered(_) => 1,
            Announced::FromNow { .. } => 2,
            Announced::Unknown(_) => 3,
            Announced::Never { .. } => 4,
        }
    }
}

/// The fields of `INFO`, by name.
pub(crate) struct Info(HashMap<String, String>);

/// The keys that Redis evicts when memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// No key: writes are refused.
    Nothing,
    /// Keys with a TTL, and so triggers.
    Triggers,
    /// Any key, and so ledgers.
    Anything,
}

impl Info {
    /// Parses the answer of `INFO`; headings are skipped.
    pub(crate) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Info(
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// The value of a field; empty if this server does not know the field.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// True for versions before 6.2. Valkey reports the Redis version that it forked from, which
    /// suffices.
    pub(crate) fn is_too_old(&self) -> bool {
        let mut parts = self.text("redis_version").split('.');
        let mut next = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        (next(), next()) < OLDEST
    }

    /// True if it has functions, which came with Redis 7.0.
    pub(crate) fn has_functions(&self) -> bool {
        let major = self.text("redis_version").split('.').next();
        major
            .and_then(|text| text.parse().ok())
            .is_some_and(|major: u32| major >= 7)
    }

    /// True for a node of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.text("cluster_enabled") == "1"
    }

    /// True for a sentinel.
    pub(crate) fn is_sentinel(&self) -> bool {
        // Valkey has its own name for the field.
        let modes = ["redis_mode", "server_mode"];
        modes.iter().any(|mode| self.text(mode) == "sentinel")
    }

    /// True for a replica.
    pub(crate) fn is_replica(&self) -> bool {
        self.text("role") == "slave"
    }

    /// True if there is a memory limit. Without one, nothing is evicted.
    pub(crate) fn is_limited(&self) -> bool {
        !matches!(self.text("maxmemory"), "" | "0")
    }

    /// The keys that the policy evicts when memory is full.
    pub(crate) fn evicted(&self) -> Evicted {
        match self.text("maxmemory_policy") {
            policy if policy.starts_with("allkeys") => Evicted::Anything,
            policy if policy.starts_with("volatile") => Evicted::Triggers,
            _ => Evicted::Nothing,
        }
    }
}

impl Store {
    /// Verifies each server's version, role, eviction policy (unless `allow_eviction`) and schema,
    /// and that it is number m of n. Stores schema and number on a server that has none. Logs a
    /// warning for each of several servers that is away.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`], [`ErrorKind::ReadOnly`] for a replica,
    /// [`ErrorKind::InvalidSetting`] for a sentinel, and the failures of a call.
    pub(crate) async fn check(&self, allow_eviction: bool, until: Instant) -> Result<()> {
        let checked = self.on_each(until, |it, until| Box::pin(it.check(allow_eviction, until)));
        let (_, away) = checked.await.unless_refused()?;
        let joined = self.on_each(until, |it, until| Box::pin(it.join(until)));
        joined.await.unless_refused()?;
        for Away { error, .. } in &away {
            tracing::warn!(%error, "one of the servers is unavailable, and its jobs wait");
        }
        Ok(())
    }

    /// Makes each server, and each node of a cluster, announce these events: adds the missing flags
    /// to the present ones. Returns the most urgent state. Another process that has read the flags
    /// before and sets them afterwards undoes this, so it must be checked again a little later.
    #[cfg(feature = "worker")]
    pub(crate) async fn announce(&self, wanted: WantedEvents, until: Instant) -> Announced {
        let asked = self.servers.iter().map(|it| it.announce(wanted, until));
        let worst = join_all(asked)
            .await
            .into_iter()
            .max_by_key(Announced::badness);
        worst.unwrap_or(Announced::Already)
    }
}

impl Server {
    /// Gives one of several servers its number, if no server has contradicted.
    async fn join(&self, until: Instant) -> Result<()> {
        let Some(membership) = self.link.membership() else {
            return Ok(());
        };
        // A server that is away gets its number with its next connection.
        membership.agree();
        let [note, ask] = membership.note();
        let mut there: Option<String> = from_value(self.command(&ask, until).await?)?;
        // Written only if it is missing, like the schema.
        if there.is_none() {
            let now: (u64, u64) = from_value(self.command(&redis::cmd("TIME"), until).await?)?;
            self.command(&membership.note_emptied(now), until).await?;
            self.command(&note, until).await?;
            there = from_value(self.command(&ask, until).await?)?;
            membership.compare(&there.unwrap_or_default(), &self.address())?;
            // Whatever data the server had before, it is empty now.
            return Ok(self.link.tell_missed().await?);
        }
        membership.compare(&there.unwrap_or_default(), &self.address())
    }

    /// Verifies one server: all its nodes, and the schema.
    async fn check(&self, allow_eviction: bool, until: Instant) -> Result<()> {
        let servers = self.data_nodes(until).await?;
        let checked = servers
            .iter()
            .map(|server| self.check_one(server, allow_eviction, until));
        let checked = join_all(checked).await;
        let is_any_there = checked.iter().any(Result::is_ok);
        for checked in checked {
            match checked {
                // A node that is dead may still be listed as a primary by a node that has not heard
                // of its successor, for example if the slot was being moved.
                Err(error) if is_any_there && is_of_absence(&error) => {
                    tracing::debug!(%error, "a node of the cluster could not be checked");
                }
                checked => checked?,
            }
        }
        let address = self.address();
        let guard = self.link.schema_guard();
        guard.compare(&self.schema(until).await?, &address)?;
        guard.begin();
        Ok(())
    }

    /// Verifies one node: that it is no sentinel, its version, mode, role and eviction policy.
    async fn check_one(
        &self,
        server: &ServerNode,
        allow_eviction: bool,
        until: Instant,
    ) -> Result<()> {
        let info = redis::cmd("INFO");
        let text: String = from_value(self.command_at(server, &info, until).await?)?;
        let info = Info::parse(&text);
        let address = self.address_of(server);
        if info.is_sentinel() {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "the server at {address} is a sentinel: write redis+sentinel://{address}/NAME, \
                     with the name of its primary, and add the other sentinels after commas"
                ),
            ));
        }
        if info.is_too_old() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the server at {address} is Redis {:?}: Keyfall needs Redis 6.2 or newer, or \
                     Valkey",
                    info.text("redis_version"),
                ),
            ));
        }
        if info.is_cluster() && !self.is_cluster() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "Redis at {address} is part of a cluster: write redis+cluster://host:port, \
                     with one of its nodes or several"
                ),
            ));
        }
        // A node of a cluster may have become a replica a moment ago.
        if info.is_replica() && !self.is_cluster() {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("Redis at {address} is a replica: name the primary"),
            ));
        }
        self.check_eviction(&info, &address, allow_eviction)
    }

    /// The schema of the stored data. If there is none, ours is stored; only then, so that a worker
    /// can start while Redis is full, and work its jobs off.
    async fn schema(&self, until: Instant) -> Result<String> {
        if !self.is_member() {
            let mut get = redis::cmd("HGET");
            get.arg(self.names.meta()).arg(membership::FIELD);
            let server = self.command(&get, until).await;
            let server = server.map_err(|error| self.of_meta(error))?;
            if let Some(there) = from_value::<Option<String>>(server)? {
                return Err(is_not_alone(&self.address(), &there));
            }
        }
        let ask = self.link.schema_guard().ask();
        let known = self.command(&ask, until).await;
        let known = known.map_err(|error| self.of_meta(error))?;
        if let Some(schema) = from_value::<Option<String>>(known)? {
            return Ok(schema);
        }
        let mut set = redis::cmd("HSETNX");
        set.arg(self.names.meta()).arg(schema::FIELD).arg(SCHEMA);
        self.command(&set, until).await?;
        from_value(self.command(&ask, until).await?)
    }

    /// Adds the remedy for a damaged `meta` to an error. Without `meta` no call works, not even an
    /// audit, so an operator must repair it.
    fn of_meta(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Damaged {
            return error;
        }
        let meta = self.names.meta();
        let namespace = self.names.namespace();
        Error::new(
            ErrorKind::Damaged,
            format!(
                "Redis at {}: `{meta}` should be a hash: move it out of the way with `redis-cli \
                 RENAMENX '{meta}' '{namespace}:aside:{{{meta}}}:by-hand'`, and look for other \
                 damage with `keyfall audit`",
                self.address()
            ),
        )
    }

    /// Refuses an `allkeys-*` policy, which evicts ledgers and with them jobs, unless `allowed`;
    /// warns of it and of a `volatile-*` policy, which evicts triggers. Without a memory limit
    /// nothing is evicted.
    fn check_eviction(&self, info: &Info, address: &str, allowed: bool) -> Result<()> {
        let policy = info.text("maxmemory_policy");
        let limited = info.is_limited();
        let evicted = info.evicted();
        if evicted == Evicted::Anything && limited && !allowed {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "Redis at {address} evicts any key when it is full (maxmemory-policy {policy}), \
                     and would drop jobs: set `maxmemory-policy noeviction`, or give Keyfall a \
                     Redis of its own; `redis.allow_eviction` or `ClientBuilder::allow_eviction` \
                     accepts the loss"
                ),
            ));
        }
        // A worker's client has logged the warnings already.
        if self.insists {
            return Ok(());
        }
        if evicted == Evicted::Anything {
            tracing::warn!(
                address,
                policy,
                "Redis evicts any key {}, so jobs are lost: set `maxmemory-policy noeviction`",
                if limited {
                    "when it is full"
                } else {
                    "as soon as it has a maxmemory"
                }
            );
        } else if evicted == Evicted::Triggers && limited {
            tracing::warn!(
                address,
                policy,
                "Redis evicts triggers when it is full: no job is lost, but jobs may start some \
                 20 ms late; set `maxmemory-policy noeviction`"
            );
        }
        Ok(())
    }

    /// Makes this server, and each node of a cluster, announce these events.
    #[cfg(feature = "worker")]
    pub(crate) async fn announce(&self, wanted: WantedEvents, until: Instant) -> Announced {
        let (primaries, replicas) = match self.nodes(until).await {
            Ok(nodes) => nodes,
            Err(error) => return Announced::Unanswered(error),
        };
        let of_primaries = primaries.iter().map(|it| (it, until));
        // Replicas announce nothing yet, so a replica that hangs must not hold up the others.
        let soon = until.min(Instant::now() + REPLICAS);
        let of_replicas = replicas.iter().map(|it| (it, soon));
        let all = of_primaries.chain(of_replicas);
        let asked = all.map(|(server, until)| self.announce_at(server, wanted, until));
        let answers = join_all(asked).await;
        // The most urgent state.
        let worst = answers.into_iter().max_by_key(Announced::badness);
        worst.unwrap_or(Announced::Already)
    }

    /// Makes one node announce these events.
    #[cfg(feature = "worker")]
    async fn announce_at(
        &self,
        server: &ServerNode,
        wanted: WantedEvents,
        until: Instant,
    ) -> Announced {
        let was = match self.flags(server, until).await {
            Ok(flags) => flags,
            Err(error) if is_passing(&error) => return Announced::Unanswered(error),
            Err(error) => return Announced::Unknown(error),
        };
        if wanted.is_announced_by(&was) {
            return Announced::Already;
        }
        let merged = wanted.merged_into(&was);
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(FLAGS_NAME).arg(&merged);
        match self.command_at(server, &set, until).await {
            Ok(_) => Announced::FromNow { was, set: merged },
            Err(error) if is_passing(&error) => Announced::Unanswered(error),
            Err(error) => Announced::Never { was, error },
        }
    }

    /// The present notification flags of a node.
    #[cfg(feature = "worker")]
    async fn flags(&self, server: &ServerNode, until: Instant) -> Result<String> {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(FLAGS_NAME);
        let answer = self.command_at(server, &get, until).await?;
        let mut pair: HashMap<String, String> = from_value(answer)?;
        // Some managed servers answer, but show only the settings that users may change.
        pair.remove(FLAGS_NAME).ok_or_else(|| {
            let what = format!("{} does not show `{FLAGS_NAME}`", self.address());
            Error::new(ErrorKind::Denied, what)
        })
    }
}

/// True if the server may answer differently later.
#[cfg(feature = "worker")]
fn is_passing(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
    )
}

#[cfg(all(test, feature = "worker"))]
mod tests {
    use super::*;

    #[test]
    fn missing_flags_are_merged_and_none_is_removed() {
        for (was, wanted, merged) in [
            ("", WantedEvents::Expiry, "Ex"),
            ("", WantedEvents::Changes, "ExKg$"),
            ("xE", WantedEvents::Changes, "xEKg$"),
            ("AK", WantedEvents::Expiry, "AKE"),
            ("AK", WantedEvents::Changes, "AKE"),
            ("g$K", WantedEvents::Expiry, "g$KEx"),
            ("lKE", WantedEvents::Changes, "lKExg$"),
        ] {
            assert!(!wanted.is_announced_by(was), "{was}");
            assert_eq!(wanted.merged_into(was), merged);
            assert!(wanted.is_announced_by(merged), "{merged}");
            assert_eq!(wanted.merged_into(merged), merged);
        }
    }
}
