//! What an ACL user must be allowed, tried before anything depends on it.

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

/// Who needs rights. Those who run jobs need what those need who schedule them, and those who look
/// after jobs need both.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    Producers,
    Workers,
    Operators,
}

#[cfg(feature = "worker")]
impl Whom {
    /// How many channels a worker subscribes to.
    pub(crate) const CHANNELS: usize = 3;
}

/// What a user may not do.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// A command, as `SCRIPT|LOAD`.
    pub(crate) command: &'static str,
    /// The keys or the channel that it was tried on; nothing if it has none.
    pub(crate) name: String,
}

/// Commands that change nothing, and of which only the rights are of interest.
#[cfg(feature = "worker")]
#[derive(Default)]
struct Tries {
    pipeline: Pipeline,
    names: Vec<Refused>,
}

#[cfg(feature = "worker")]
impl Tries {
    fn add(&mut self, command: &'static str, name: String, cmd: Cmd) {
        self.pipeline.add_command(cmd);
        self.names.push(Refused { command, name });
    }

    fn on(&mut self, command: &'static str, name: &str, arguments: &[&str]) {
        let mut cmd = redis::cmd(command);
        cmd.arg(name).arg(arguments);
        self.add(command, name.to_owned(), cmd);
    }

    fn alone(&mut self, command: &'static str, cmd: &Cmd) {
        self.add(command, String::new(), cmd.clone());
    }

    /// Those that were refused. Whatever else is wrong, such as a full memory, may pass, and is
    /// told elsewhere.
    async fn refused(mut self, server: &Server, until: Instant) -> Result<Vec<Refused>> {
        let answers = server.each(&mut self.pipeline, until).await?;
        let both = answers.into_iter().zip(self.names);
        let is_refused = |answer: &Value| matches!(answer, Value::ServerError(error) if error.code() == "NOPERM");
        let refused = both.filter(|(answer, _)| is_refused(answer));
        Ok(refused.map(|(_, name)| name).collect())
    }
}

/// What scripts do to triggers, on one that is not there: it can be asked of every server, and
/// nothing changes. The scripts pass over what fails of it, since a trigger is a hint.
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
    /// Warns of a user who may store jobs of a kind and not keep their triggers.
    pub(crate) async fn warn_of_rights(&self, kind: &Kind, until: Instant) {
        // What one of them does not answer it warns nobody of.
        let _ = self
            .on_rest(until, |it, until| {
                Box::pin(async move {
                    it.warn_of_rights(kind, it.patience_for_one(until)).await;
                    Ok(())
                })
            })
            .await;
    }

    /// Refuses a user who may not change the triggers or the ledger of a kind, and whose jobs
    /// would be claimed and never settled.
    #[cfg(feature = "worker")]
    pub(crate) async fn check_rights(&self, kind: &Kind, until: Instant) -> Result<()> {
        let checked = self.on_rest(until, |it, until| Box::pin(it.check_rights(kind, until)));
        checked.await.unless_refused().map(drop)
    }

    /// Refuses a user who may not do what it takes to adopt these keys, and a server that does not
    /// announce what is done to them, unless that is accepted: they would go unheard, or become no
    /// job.
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
                    // It is there, and to hear that nothing is announced takes its time.
                    false => it.check_announced(globs, until).await,
                }
            })
        });
        checked.await.unless_refused().map(drop)
    }
}

impl Server {
    async fn warn_of_rights(&self, kind: &Kind, until: Instant) {
        for (command, cmd) in on_a_trigger(kind) {
            if let Err(error) = self.command(&cmd, until).await
                && error.kind() == ErrorKind::Denied
            {
                return tracing::warn!(
                    %kind,
                    address = self.address(),
                    "this user may not {command} `{kind}:*`: jobs are stored and run, some of \
                     them late; allow it with `ACL SETUSER … ~{kind}:* +{}`, or see acl.conf",
                    command.to_lowercase(),
                );
            }
        }
        self.warn_of_history(kind, until).await;
    }

    /// Warns of a user who may change a ledger and not write what was done. An entry without a
    /// number is never written.
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
                "this user may not XADD `{history}`: nobody will be able to tell what became of \
                 these jobs; allow it with `ACL SETUSER … +xadd`, or see acl.conf",
            );
        }
    }

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
                "Redis at {}: this user may not {command} `{name}`, without which jobs of \
                 {kind} could be claimed and never settled: allow it with \
                 `ACL SETUSER … ~{kind}:* ~{}:* +{}`, or see acl.conf",
                self.address(),
                self.names.namespace(),
                command.to_lowercase(),
            ),
        ))
    }

    /// What this user may not do with the triggers and the ledger of a kind. Tries the commands
    /// themselves, on a name that no job has and fields that no ledger has: every server can be
    /// asked that, and nothing changes.
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

    /// What this user may not do of what these people need, kinds aside; the lists are those of
    /// acl.conf. `known` is a kind that is known to all. Nothing is changed, by the type of the key,
    /// or by arguments that are wrong.
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
                // Refused for what they say, behind the rights and before anything is done.
                tries.on("HSET", &meta, &["schema", "1", "odd"]);
                tries.on("HINCRBY", &meta, &["schema", "none"]);
                tries.on("ZADD", &meta, &["none", "schema"]);
                tries.on("ZREM", &meta, &[""]);
                tries.on("ZSCORE", &meta, &[""]);
                tries.on("ZMSCORE", &meta, &[""]);
                tries.on("ZRANGEBYSCORE", &meta, &["1", "0"]);
                tries.on("XADD", &meta, &["NOMKSTREAM", "0-0", "what", ""]);
                // It stands there.
                if let Some(kind) = known {
                    tries.on("HSETNX", &kinds, &[kind.as_str(), "1"]);
                }
                // A word that no worker knows.
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
                tries.on("ZCARD", &meta, &[]);
                tries.on("ZCOUNT", &meta, &["1", "0"]);
                tries.on("ZRANGE", &meta, &["1", "0"]);
                tries.on("ZREMRANGEBYRANK", &meta, &["1", "0"]);
            }
            Whom::Operators => {
                tries.on("ZREVRANGE", &meta, &["1", "0"]);
                tries.on("XRANGE", &meta, &["-", "+"]);
                tries.on("XREVRANGE", &meta, &["+", "-"]);
                let mut read = redis::cmd("XREAD");
                read.arg("STREAMS").arg(&meta).arg("0");
                tries.add("XREAD", meta.clone(), read);
                tries.on("HSTRLEN", &meta, &["schema"]);
                tries.on("HSCAN", &meta, &["0"]);
                tries.on("ZSCAN", &meta, &["0"]);
                tries.on("TYPE", &meta, &[]);
                // To where it is.
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

    /// What this user may not do of what it takes to adopt keys that look like this, beside what
    /// workers need. The keys and channels of no globs are tried with none.
    #[cfg(feature = "worker")]
    pub(crate) async fn refused_to_adopt(
        &self,
        globs: &[String],
        until: Instant,
    ) -> Result<Vec<Refused>> {
        let mut tries = Tries::default();
        // The own keys, and of the others names that no job has.
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

    #[cfg(feature = "worker")]
    async fn check_adoption(&self, globs: &[String], until: Instant) -> Result<()> {
        if self.is_cluster() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "a route adopts plain keys, and {} is a cluster, on which that does not work \
                     yet: a key and its ledger are on different nodes; use a single Redis, or \
                     schedule through the API",
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
                "Redis at {}: this user may not {what}, without which plain keys do not become \
                 jobs: allow it with `ACL SETUSER … {rule}`, or see keyfall-adopter in acl.conf",
                self.address(),
            ),
        ))
    }

    /// The channels that this user may not subscribe to, of those on which changes of keys are
    /// announced. A rule must be the pattern to the letter. On a connection of its own.
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

    /// The channels that this user may not subscribe to, of those of a worker. On a connection of
    /// its own: one that has subscribed is good for nothing else.
    #[cfg(feature = "worker")]
    async fn unheard(&self, until: Instant) -> Result<Vec<Refused>> {
        let address = self.address();
        let mut unheard = Vec::new();
        let subscribe = async {
            // What it says is not read; dropping it ends the connection.
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
                        // Each instance has one of its own.
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
