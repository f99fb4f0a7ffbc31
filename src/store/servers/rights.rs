//! The rights that an ACL user needs. They are tried with commands that change nothing, before any
//! job depends on them.

use std::time::Instant;

use redis::Cmd;
#[cfg(feature = "worker")]
use redis::{Pipeline, Value};
#[cfg(feature = "worker")]
use tokio::time::timeout_at;

use crate::error::ErrorKind;
#[cfg(feature = "worker")]
use crate::error::{Error, Result};
use crate::key::Kind;
use crate::names::MARKER;
#[cfg(feature = "worker")]
use crate::names::Names;
#[cfg(feature = "worker")]
use crate::store::connections::fault::Fault;
#[cfg(feature = "worker")]
use crate::store::ledger::script::STATS;
use crate::store::{Server, Store, unique_id};

/// The role of a user. Workers also need the rights of producers; operators need all rights.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Schedule, change, cancel and look up jobs.
    Producers,
    /// Run jobs.
    Workers,
    /// Look after jobs: list, inspect, repair.
    Operators,
}

#[cfg(feature = "worker")]
impl Whom {
    /// The number of channels that a worker subscribes to.
    pub(crate) const CHANNELS: usize = 3;
}

/// A command that a user may not use, or not on this key or channel.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The command, such as `SCRIPT|LOAD`.
    pub(crate) command: &'static str,
    /// The keys or the channel that it was tried on, as a pattern or name; empty if it has none.
    pub(crate) name: String,
}

/// Commands that change nothing, sent together to find out which of them the ACL refuses.
#[cfg(feature = "worker")]
#[derive(Default)]
struct Tries {
    pipeline: Pipeline,
    /// For each command its entry in the result, in case it is refused.
    names: Vec<Refused>,
}

#[cfg(feature = "worker")]
impl Tries {
    /// Adds a command; `name` is the key or channel for the result.
    fn add(&mut self, command: &'static str, name: String, cmd: Cmd) {
        self.pipeline.add_command(cmd);
        self.names.push(Refused { command, name });
    }

    /// Adds a command on one key.
    fn on(&mut self, command: &'static str, name: &str, arguments: &[&str]) {
        let mut cmd = redis::cmd(command);
        cmd.arg(name).arg(arguments);
        self.add(command, name.to_owned(), cmd);
    }

    /// Adds a command without a key.
    fn alone(&mut self, command: &'static str, cmd: &Cmd) {
        self.add(command, String::new(), cmd.clone());
    }

    /// Sends the commands, and returns the commands that the ACL refused. Other errors, such as a
    /// full memory, may pass and are reported by other checks, so they do not count.
    async fn refused(mut self, server: &Server, until: Instant) -> Result<Vec<Refused>> {
        let answers = server.each(&mut self.pipeline, until).await?;
        let both = answers.into_iter().zip(self.names);
        let is_refused = |answer: &Value| matches!(answer, Value::ServerError(error) if error.code() == "NOPERM");
        let refused = both.filter(|(answer, _)| is_refused(answer));
        Ok(refused.map(|(_, name)| name).collect())
    }
}

/// The commands that scripts use on triggers, for a trigger that does not exist: any server can be
/// asked, and nothing changes. The scripts go on when one of them fails, since a trigger is a hint.
fn on_a_trigger(kind: &Kind) -> [(&'static str, Cmd); 4] {
    let trigger = format!("{kind}:{}", unique_id());
    [
        ("SET", &[MARKER, "XX", "PX", "1"][..]),
        ("GETRANGE", &["0", "1"]),
        ("PEXPIREAT", &["1"]),
        ("DEL", &[]),
    ]
    .map(|(command, arguments)| {
        let mut cmd = redis::cmd(command);
        cmd.arg(&trigger).arg(arguments);
        (command, cmd)
    })
}

impl Store {
    /// Warns of a user who may store jobs of a kind, but not set their triggers.
    pub(crate) async fn warn_of_rights(&self, kind: &Kind, until: Instant) {
        // A server that does not answer causes no warning.
        let _ = self
            .on_rest(until, |it, until| {
                Box::pin(async move {
                    it.warn_of_rights(kind, it.patience_for_one(until)).await;
                    Ok(())
                })
            })
            .await;
    }

    /// Verifies that this user may change the triggers and the ledger of a kind: without these
    /// rights jobs would be claimed and never settled.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`], with the missing ACL rule.
    #[cfg(feature = "worker")]
    pub(crate) async fn check_rights(&self, kind: &Kind, until: Instant) -> Result<()> {
        let checked = self.on_rest(until, |it, until| Box::pin(it.check_rights(kind, until)));
        checked.await.unless_refused().map(drop)
    }

    /// Verifies that this user may adopt keys that match these globs, and, unless
    /// `allow_unannounced`, that each server announces their changes. Without that, keys would go
    /// unheard, or not become jobs.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] for a missing right; [`ErrorKind::Incompatible`] for a cluster, or a
    /// server that announces no changes.
    #[cfg(feature = "worker")]
    pub(crate) async fn check_adoption(
        &self,
        globs: &[String],
        allow_unannounced: bool,
        until: Instant,
    ) -> Result<()> {
        let checked = self.on_rest(until, |it, patience| {
            Box::pin(async move {
                it.check_adoption(globs, patience).await?;
                match allow_unannounced {
                    true => Ok(()),
                    // The server has just answered, and the proof that it announces nothing takes
                    // time.
                    false => it.check_announced(globs, until).await,
                }
            })
        });
        checked.await.unless_refused().map(drop)
    }
}

impl Server {
    /// Warns if this user may not use one of the commands on triggers.
    async fn warn_of_rights(&self, kind: &Kind, until: Instant) {
        for (command, cmd) in on_a_trigger(kind) {
            if let Err(error) = self.command(&cmd, until).await
                && error.kind() == ErrorKind::Denied
            {
                return tracing::warn!(
                    %kind,
                    address = self.address(),
                    "this user may not {command} `{kind}:*`: jobs are stored and run, but some \
                     start late; allow the command with `ACL SETUSER … ~{kind}:* +{}`, or see \
                     acl.conf",
                    command.to_lowercase(),
                );
            }
        }
        self.warn_of_history(kind, until).await;
    }

    /// Warns of a user who may change a ledger, but not write its history. Tries an entry with the
    /// id `0-0`, which Redis never writes.
    async fn warn_of_history(&self, kind: &Kind, until: Instant) {
        let history = self.names.ledger(kind, 0).history;
        let mut add = redis::cmd("XADD");
        add.arg(&history).arg("NOMKSTREAM").arg("0-0");
        add.arg("what").arg("");
        if let Err(error) = self.command(&add, until).await
            && error.kind() == ErrorKind::Denied
        {
            tracing::warn!(
                %kind,
                address = self.address(),
                "this user may not XADD `{history}`: these jobs have no history; allow the command \
                 with `ACL SETUSER … +xadd`, or see acl.conf",
            );
        }
    }

    /// The error of the first right that is missing for this kind.
    #[cfg(feature = "worker")]
    async fn check_rights(&self, kind: &Kind, until: Instant) -> Result<()> {
        let refused = self.refused_of_kind(kind, until).await?;
        let Some(Refused { command, name }) = refused.into_iter().next() else {
            self.warn_of_history(kind, until).await;
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "Redis at {}: this user may not {command} `{name}`, so this worker could claim \
                 jobs of {kind} and never settle them: allow the command with `ACL SETUSER … \
                 ~{kind}:* ~{}:* +{}`, or see acl.conf",
                self.address(),
                self.names.namespace(),
                command.to_lowercase(),
            ),
        ))
    }

    /// The commands that this user may not use on the triggers and the ledger of a kind. Tries the
    /// commands themselves, on a name that no job has and fields that no ledger has: any server can
    /// be asked, and nothing changes.
    #[cfg(feature = "worker")]
    pub(crate) async fn refused_of_kind(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Vec<Refused>> {
        let ledger = self.names.ledger(kind, 0);
        let mut tries = Tries::default();
        let mut look = redis::cmd("EXISTS");
        look.arg(format!("{kind}:{}", unique_id()));
        for (command, cmd) in [("EXISTS", look)].into_iter().chain(on_a_trigger(kind)) {
            tries.add(command, format!("{kind}:*"), cmd);
        }
        for (command, keys) in [
            ("ZREM", [&ledger.due, &ledger.leased, &ledger.dead]),
            ("HDEL", [&ledger.shadow, &ledger.lease, &ledger.next]),
            ("HDEL", [&ledger.grave, &ledger.stats, &ledger.calls]),
        ] {
            for key in keys {
                tries.on(command, key, &[""]);
            }
        }
        // A range that ends before it begins.
        tries.on("ZREMRANGEBYRANK", &ledger.due, &["1", "0"]);
        tries.refused(self, until).await
    }

    /// The commands that this role needs and this user may not use, apart from the keys of kinds;
    /// acl.conf has the same lists. `known` is a kind that is listed on all servers. Nothing
    /// changes, because the type of the key, or an argument, is wrong.
    #[cfg(feature = "worker")]
    pub(crate) async fn refused_to(
        &self,
        whom: Whom,
        known: Option<&Kind>,
        until: Instant,
    ) -> Result<Vec<Refused>> {
        let (meta, kinds) = (self.names.meta(), self.names.kinds());
        let mut tries = Tries::default();
        match whom {
            Whom::Producers => {
                tries.alone("INFO", redis::cmd("INFO").arg("server"));
                tries.alone("TIME", &redis::cmd("TIME"));
                tries.alone("SCRIPT|LOAD", &STATS.load());
                // No script has this hash.
                let mut call = redis::cmd("EVALSHA");
                tries.alone("EVALSHA", call.arg("0".repeat(40)).arg(0));
                tries.on("HGET", &kinds, &[""]);
                tries.on("HMGET", &meta, &["schema"]);
                tries.on("HLEN", &meta, &[]);
                tries.on("HGETALL", &self.names.paused(), &[]);
                tries.on("HDEL", &kinds, &[""]);
                tries.on("HDEL", &meta, &[""]);
                // Redis refuses their arguments after it has checked the rights, and before it
                // writes.
                tries.on("HSET", &meta, &["schema", "1", "odd"]);
                tries.on("HINCRBY", &meta, &["schema", "none"]);
                tries.on("ZADD", &meta, &["none", "schema"]);
                tries.on("ZREM", &meta, &[""]);
                tries.on("ZSCORE", &meta, &[""]);
                tries.on("ZMSCORE", &meta, &[""]);
                tries.on("ZRANGEBYSCORE", &meta, &["1", "0"]);
                // The first call on a kind gives it its limit.
                tries.on("ZCARD", &meta, &[]);
                tries.on("ZCOUNT", &meta, &["1", "0"]);
                tries.on("ZREMRANGEBYSCORE", &meta, &["1", "0"]);
                tries.on("HSCAN", &meta, &["0", "COUNT", "1"]);
                tries.on("XADD", &meta, &["NOMKSTREAM", "0-0", "what", ""]);
                if let Some(kind) = known {
                    // This field exists, so that it is not written.
                    tries.on("HSETNX", &kinds, &[kind.as_str(), "1"]);
                    // No key has this name.
                    let [turns, ..] = self.names.ledger(kind, 0).of_groups();
                    let mut unlink = redis::cmd("UNLINK");
                    unlink.arg(format!("{turns}:{}", unique_id()));
                    tries.add("UNLINK", turns, unlink);
                }
                // Workers ignore this message.
                let wake = self.names.wake(self.database);
                tries.on("PUBLISH", &wake, &["doctor"]);
            }
            Whom::Workers => {
                let instances = self.names.instances();
                tries.on("HKEYS", &kinds, &[]);
                tries.on("HEXISTS", &meta, &[""]);
                tries.on("HGETALL", &instances, &[]);
                tries.on("HDEL", &instances, &[""]);
                tries.on("EXISTS", &meta, &[]);
                tries.on("ZRANGE", &meta, &["1", "0"]);
                tries.on("ZREMRANGEBYRANK", &meta, &["1", "0"]);
                tries.on("ZRANGEBYLEX", &meta, &["(b", "(a"]);
                tries.on("ZLEXCOUNT", &meta, &["(b", "(a"]);
            }
            Whom::Operators => {
                tries.on("ZREVRANGE", &meta, &["1", "0"]);
                tries.on("XRANGE", &meta, &["-", "+"]);
                tries.on("XREVRANGE", &meta, &["+", "-"]);
                let actions = self.names.actions();
                tries.on("XREVRANGE", &actions, &["+", "-", "COUNT", "1"]);
                tries.on("XADD", &actions, &["NOMKSTREAM", "0-0", "what", ""]);
                let mut read = redis::cmd("XREAD");
                read.arg("STREAMS").arg(&meta).arg("0");
                tries.add("XREAD", meta.clone(), read);
                tries.on("HSTRLEN", &meta, &["schema"]);
                tries.on("ZSCAN", &meta, &["0"]);
                tries.on("TYPE", &meta, &[]);
                // Renames the key to its own name, which exists.
                tries.on("RENAMENX", &meta, &[&meta]);
                tries.alone("SCAN", redis::cmd("SCAN").arg(0).arg("COUNT").arg(1));
            }
        }
        let mut refused = tries.refused(self, until).await?;
        if whom == Whom::Workers {
            refused.extend(self.unheard(until).await?);
        }
        Ok(refused)
    }

    /// The commands that the adoption of keys with these globs needs, beside the rights of workers,
    /// and that this user may not use. Without globs, commands are tried on our own key only.
    #[cfg(feature = "worker")]
    pub(crate) async fn refused_to_adopt(
        &self,
        globs: &[String],
        until: Instant,
    ) -> Result<Vec<Refused>> {
        let mut tries = Tries::default();
        // One key of our own; of the adopted keys, names that no job has.
        tries.on("HGET", &self.names.search(), &[""]);
        tries.on("GETRANGE", &self.names.searching(), &["0", "1"]);
        let foreign = globs
            .iter()
            .map(|glob| (glob.clone(), glob.replace('*', &unique_id())));
        let own = (self.names.searching(), self.names.searching());
        let keys = foreign.chain(globs.is_empty().then_some(own));
        for (name, key) in keys {
            for command in ["STRLEN", "GET", "PTTL", "TYPE"] {
                let mut cmd = redis::cmd(command);
                cmd.arg(&key);
                tries.add(command, name.clone(), cmd);
            }
        }
        tries.alone("DBSIZE", &redis::cmd("DBSIZE"));
        tries.alone("SCAN", redis::cmd("SCAN").arg(0).arg("COUNT").arg(1));
        tries.on("ZSCAN", &self.names.meta(), &["0"]);
        let mut refused = tries.refused(self, until).await?;
        refused.extend(self.unheard_changes(globs, until).await?);
        Ok(refused)
    }

    /// Verifies that this server is no cluster, and that this user may adopt keys with these globs.
    #[cfg(feature = "worker")]
    async fn check_adoption(&self, globs: &[String], until: Instant) -> Result<()> {
        if self.is_cluster() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "a route adopts plain keys, and {} is a cluster, where adoption is not \
                     supported: a key and its ledger are on different nodes; use a single Redis, \
                     or schedule through the API",
                    self.address(),
                ),
            ));
        }
        let refused = self.refused_to_adopt(globs, until).await?;
        let Some(Refused { command, name }) = refused.into_iter().next() else {
            return Ok(());
        };
        let what = match name.as_str() {
            "" => command.to_owned(),
            name => format!("{command} `{name}`"),
        };
        let rule = match command {
            "PSUBSCRIBE" => format!("&{name} +psubscribe"),
            "SCAN" => "+scan".to_owned(),
            _ => format!("~{name} +{}", command.to_lowercase()),
        };
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "Redis at {}: this user may not {what}, so plain keys do not become jobs: allow \
                 the command with `ACL SETUSER … {rule}`, or see keyfall-adopter in acl.conf",
                self.address(),
            ),
        ))
    }

    /// The channels for changes of keys that this user may not subscribe to. The ACL rule must
    /// equal the pattern letter by letter. Uses a connection of its own.
    #[cfg(feature = "worker")]
    async fn unheard_changes(&self, globs: &[String], until: Instant) -> Result<Vec<Refused>> {
        let address = self.address();
        let mut unheard = Vec::new();
        if globs.is_empty() {
            return Ok(unheard);
        }
        let subscribe = async {
            let (mut sink, _stream) = self.open_pubsub().await?.split();
            for glob in globs {
                let name = Names::changes(self.database, glob);
                match sink.psubscribe(&name).await {
                    Err(error) if error.code() == Some("NOPERM") => {
                        let command = "PSUBSCRIBE";
                        unheard.push(Refused { command, name });
                    }
                    Err(error) => return Err(Fault::from_redis(error, &address)),
                    Ok(()) => {}
                }
            }
            Ok(())
        };
        match timeout_at(until.into(), subscribe).await {
            Ok(subscribed) => subscribed?,
            Err(_) => return Err(Fault::unreachable(&address).into()),
        }
        Ok(unheard)
    }

    /// The channels of a worker that this user may not subscribe to. Uses a connection of its own:
    /// after a subscription it takes no other commands.
    #[cfg(feature = "worker")]
    async fn unheard(&self, until: Instant) -> Result<Vec<Refused>> {
        let address = self.address();
        let mut unheard = Vec::new();
        let subscribe = async {
            // The messages are not read; dropping the stream ends the connection.
            let (mut sink, _stream) = self.open_pubsub().await?.split();
            let instance = unique_id();
            let channels: [String; Whom::CHANNELS] = [
                Names::expired(self.database),
                self.names.wake(self.database),
                self.names.pulse(self.database, &instance),
            ];
            for channel in channels {
                match sink.subscribe(&channel).await {
                    Err(error) if error.code() == Some("NOPERM") => unheard.push(Refused {
                        command: "SUBSCRIBE",
                        // Each instance has its own channel.
                        name: channel.replace(&instance, "*"),
                    }),
                    Err(error) => return Err(Fault::from_redis(error, &address)),
                    Ok(()) => {}
                }
            }
            Ok(())
        };
        match timeout_at(until.into(), subscribe).await {
            Ok(subscribed) => subscribed?,
            Err(_) => return Err(Fault::unreachable(&address).into()),
        }
        Ok(unheard)
    }
}
