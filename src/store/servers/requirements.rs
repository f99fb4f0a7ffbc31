//! What a server must be to carry Keyfall.

use std::collections::HashMap;
#[cfg(feature = "worker")]
use std::time::Duration;
use std::time::Instant;

use futures_util::future::join_all;

use crate::error::{Error, ErrorKind, Result};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::servers::membership::{self, is_not_alone};
use crate::store::servers::nodes::ServerNode;
use crate::store::{Away, Server, Store, from_value};

/// The layout of what is stored. Another number in `meta` means another layout.
pub(crate) const SCHEMA: u32 = 1;

/// The oldest server whose commands suffice: `ZMSCORE`, and `SET` with `PXAT`, came with 6.2.
const OLDEST: (u32, u32) = (6, 2);

#[cfg(feature = "worker")]
const FLAGS_NAME: &str = "notify-keyspace-events";

/// How long the replicas of a cluster are waited for to announce what they may have to one day.
#[cfg(feature = "worker")]
const REPLICAS: Duration = Duration::from_millis(200);

/// What Redis is to announce.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedEvents {
    /// The keys that it expires.
    Expiry,
    /// Those, and what else happens to single keys, of whatever type (`g`), and to strings (`$`).
    Changes,
}

#[cfg(feature = "worker")]
impl WantedEvents {
    /// The notification flags that it takes.
    pub(crate) fn flags(self) -> &'static str {
        match self {
            WantedEvents::Expiry => "Ex",
            WantedEvents::Changes => "ExKg$",
        }
    }

    /// Whether these flags have all that it takes. `A` stands for all sorts of events, and for
    /// neither sort of channel.
    pub(crate) fn is_announced_by(self, flags: &str) -> bool {
        let is_set = |flag| flags.contains(flag) || !"KE".contains(flag) && flags.contains('A');
        self.flags().chars().all(is_set)
    }

    /// What is not announced of it, by the flags that are set.
    pub(crate) fn missing(self, flags: &str) -> &'static str {
        match (WantedEvents::Expiry.is_announced_by(flags), self) {
            (true, _) => "changes of keys",
            (false, WantedEvents::Changes) => "expired keys and changes of keys",
            (false, WantedEvents::Expiry) => "expired keys",
        }
    }

    /// Says that these flags were set in the place of those that there were.
    pub(crate) fn say_set(self, was: &str, set: &str) {
        tracing::warn!(
            was,
            set,
            "Redis did not announce {}; the missing flags are set until it restarts: put \
             `notify-keyspace-events {set}` into its configuration",
            self.missing(was),
        );
    }

    /// These flags, and what is missing of those that it takes.
    pub(crate) fn merged_into(self, flags: &str) -> String {
        let is_missing = |flag: &char| match flag {
            'K' | 'E' => !flags.contains(*flag),
            _ => !flags.contains(['A', *flag]),
        };
        let missing = self.flags().chars().filter(is_missing);
        flags.chars().chain(missing).collect()
    }
}

/// Whether Redis announces what is wanted.
#[cfg(feature = "worker")]
pub(crate) enum Announced {
    Already,
    /// The missing flags were merged into those that were set.
    FromNow {
        was: String,
        set: String,
    },
    /// It does not, by the flags that are set, and for this reason it cannot be told to.
    Never {
        was: String,
        error: Error,
    },
    /// That may not be looked up.
    Unknown(Error),
    /// It did not answer the question.
    Unanswered(Error),
}

#[cfg(feature = "worker")]
impl Announced {
    /// Of several servers that which says most of what is to be done.
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

/// What a server says of itself, `INFO`.
pub(crate) struct Info(HashMap<String, String>);

/// What goes when memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evicted {
    Nothing,
    /// The keys with a TTL, and so triggers.
    Triggers,
    /// Whatever there is, and so ledgers.
    Anything,
}

impl Info {
    pub(crate) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Info(
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// A field; nothing if this server does not know it.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// Valkey reports the Redis version that it forked from, which suffices.
    pub(crate) fn is_too_old(&self) -> bool {
        let mut parts = self.text("redis_version").split('.');
        let mut next = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        (next(), next()) < OLDEST
    }

    /// Whether it has functions, which came with Redis 7.
    pub(crate) fn has_functions(&self) -> bool {
        let major = self.text("redis_version").split('.').next();
        major
            .and_then(|text| text.parse().ok())
            .is_some_and(|major: u32| major >= 7)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.text("cluster_enabled") == "1"
    }

    pub(crate) fn is_sentinel(&self) -> bool {
        // Valkey has a name of its own for it.
        let modes = ["redis_mode", "server_mode"];
        modes.iter().any(|mode| self.text(mode) == "sentinel")
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.text("role") == "slave"
    }

    /// Whether there is a limit of memory. Without one nothing is evicted.
    pub(crate) fn is_limited(&self) -> bool {
        !matches!(self.text("maxmemory"), "" | "0")
    }

    /// What goes when memory is full, by the policy.
    pub(crate) fn evicted(&self) -> Evicted {
        match self.text("maxmemory_policy") {
            policy if policy.starts_with("allkeys") => Evicted::Anything,
            policy if policy.starts_with("volatile") => Evicted::Triggers,
            _ => Evicted::Nothing,
        }
    }
}

impl Store {
    /// Refuses a server that cannot carry Keyfall: too old, a replica, one that would evict
    /// the ledger unless that is allowed, or one that holds another schema.
    ///
    /// Of several servers some may be away, which is said.
    pub(crate) async fn check(&self, allow_eviction: bool, until: Instant) -> Result<()> {
        let checked = self.on_each(until, |it, until| Box::pin(it.check(allow_eviction, until)));
        let (_, away) = checked.await.unless_refused()?;
        let joined = self.on_each(until, |it, until| Box::pin(it.join(until)));
        joined.await.unless_refused()?;
        for Away { error, .. } in &away {
            tracing::warn!(%error, "one of the servers is away, and with it its jobs");
        }
        Ok(())
    }

    /// Makes Redis announce this: merges the flags that are missing into those that are set, on
    /// each node of a cluster. Somebody else who has read them before and sets them after it undoes
    /// that, so it is to be looked at again a little later.
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
    /// Tells one of several servers which one it is, when none of them has said otherwise.
    async fn join(&self, until: Instant) -> Result<()> {
        let Some(membership) = self.link.membership() else {
            return Ok(());
        };
        // One that is away is told when it is there.
        membership.agree();
        let [note, ask] = membership.note();
        let mut there: Option<String> = from_value(self.command(&ask, until).await?)?;
        // Written only then, as the schema is.
        if there.is_none() {
            let now: (u64, u64) = from_value(self.command(&redis::cmd("TIME"), until).await?)?;
            self.command(&membership.note_emptied(now), until).await?;
            self.command(&note, until).await?;
            there = from_value(self.command(&ask, until).await?)?;
            membership.compare(&there.unwrap_or_default(), &self.address())?;
            // Whatever it was before, it is empty.
            return Ok(self.link.tell_missed().await?);
        }
        membership.compare(&there.unwrap_or_default(), &self.address())
    }

    async fn check(&self, allow_eviction: bool, until: Instant) -> Result<()> {
        let servers = self.data_nodes(until).await?;
        let checked = servers
            .iter()
            .map(|server| self.check_one(server, allow_eviction, until));
        let checked = join_all(checked).await;
        let is_any_there = checked.iter().any(Result::is_ok);
        for checked in checked {
            match checked {
                // A node that is dead may still be taken for a primary by one that has not heard who
                // took over, as of a slot that was on its way.
                Err(error) if is_any_there && is_of_absence(&error) => {
                    tracing::debug!(%error, "a node of the cluster could not be checked");
                }
                checked => checked?,
            }
        }
        let address = self.address();
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
                    "what answers at {address} is a sentinel: write \
                     redis+sentinel://{address}/NAME, with the name of the primary that it \
                     watches, and the other sentinels behind commas"
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
        // It may be one since a moment ago.
        if info.is_replica() && !self.is_cluster() {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("Redis at {address} is a replica: name the primary"),
            ));
        }
        self.check_eviction(&info, &address, allow_eviction)
    }

    /// The schema of what is stored; ours, if nothing is. Written only then, so that a worker
    /// can start, and empty it, while Redis is full.
    async fn schema(&self, until: Instant) -> Result<String> {
        let get = |field: &str| {
            let mut get = redis::cmd("HGET");
            get.arg(self.names.meta()).arg(field);
            get
        };
        if !self.is_member() {
            let server = self.command(&get(membership::FIELD), until).await;
            let server = server.map_err(|error| self.of_meta(error))?;
            if let Some(there) = from_value::<Option<String>>(server)? {
                return Err(is_not_alone(&self.address(), &there));
            }
        }
        let known = self.command(&get("schema"), until).await;
        let known = known.map_err(|error| self.of_meta(error))?;
        if let Some(schema) = from_value::<Option<String>>(known)? {
            return Ok(schema);
        }
        let mut set = redis::cmd("HSETNX");
        set.arg(self.names.meta()).arg("schema").arg(SCHEMA);
        self.command(&set, until).await?;
        from_value(self.command(&get("schema"), until).await?)
    }

    /// Without it nobody gets in, so no audit repairs it.
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
                 RENAMENX '{meta}' '{namespace}:aside:{{{meta}}}:by-hand'`, and look what else was \
                 changed with `keyfall audit`",
                self.address()
            ),
        )
    }

    /// An `allkeys-*` policy evicts ledgers, and with them jobs; a `volatile-*` one evicts
    /// triggers. Without a limit of memory nothing is evicted.
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
        // The client of a worker has said it.
        if self.insists {
            return Ok(());
        }
        if evicted == Evicted::Anything {
            tracing::warn!(
                address,
                policy,
                "Redis evicts any key {}, and with it jobs: set `maxmemory-policy noeviction`",
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

    /// Makes this server announce this.
    #[cfg(feature = "worker")]
    pub(crate) async fn announce(&self, wanted: WantedEvents, until: Instant) -> Announced {
        let (primaries, replicas) = match self.nodes(until).await {
            Ok(nodes) => nodes,
            Err(error) => return Announced::Unanswered(error),
        };
        let of_primaries = primaries.iter().map(|it| (it, until));
        // They announce nothing yet, and one that hangs holds nobody up.
        let soon = until.min(Instant::now() + REPLICAS);
        let of_replicas = replicas.iter().map(|it| (it, soon));
        let all = of_primaries.chain(of_replicas);
        let asked = all.map(|(server, until)| self.announce_at(server, wanted, until));
        let answers = join_all(asked).await;
        // The worst of them.
        let worst = answers.into_iter().max_by_key(Announced::badness);
        worst.unwrap_or(Announced::Already)
    }

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

    /// The notification flags that are set.
    #[cfg(feature = "worker")]
    async fn flags(&self, server: &ServerNode, until: Instant) -> Result<String> {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(FLAGS_NAME);
        let answer = self.command_at(server, &get, until).await?;
        let mut pair: HashMap<String, String> = from_value(answer)?;
        // Some managed servers answer the question, and show only what they let users set.
        pair.remove(FLAGS_NAME).ok_or_else(|| {
            let what = format!("{} does not show `{FLAGS_NAME}`", self.address());
            Error::new(ErrorKind::Denied, what)
        })
    }
}

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
    fn what_is_missing_is_merged_and_nothing_is_taken_away() {
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
