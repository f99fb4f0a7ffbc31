//! Observations for the doctor: the state and settings of a server, its clock, and samples of
//! ledgers.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use redis::Value;

use crate::error::Result;
use crate::names::MARKER;
use crate::shards::Layout;
use crate::store::connections::link::Request;
use crate::store::servers::nodes::ServerNode;
use crate::store::servers::requirements::Info;
use crate::store::{Ledger, Server, Store, from_value};
use crate::time::{UnixMs, UnixUs};

/// A value that was looked up, or the reason why it could not be seen, for people.
pub(crate) type Observed<T> = std::result::Result<T, String>;

/// The state of one server or node, from one round trip.
pub(crate) struct ServerReport {
    /// Its `INFO`.
    pub(crate) info: Observed<Info>,
    /// The schema of the stored data; `None` if there is no data.
    pub(crate) schema: Observed<Option<String>>,
    /// True if sentinels watch it, or it is a cluster, as far as the URL tells.
    pub(crate) is_watched: bool,
    /// By name, the settings that were asked for.
    config: HashMap<&'static str, Observed<String>>,
}

/// Numbers of one ledger, or several, beside its counts.
#[derive(Default)]
pub(crate) struct LedgerSample {
    /// Jobs with a record; of several ledgers the highest number.
    pub(crate) jobs: u64,
    /// Dead letters since the given time.
    pub(crate) died: u64,
    /// When the oldest dead letter died.
    pub(crate) oldest: Option<UnixMs>,
    /// Ids of the examined jobs whose name is the key of a value that Keyfall did not write.
    pub(crate) foreign: Vec<String>,
}

impl LedgerSample {
    /// The sample of two ledgers together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.jobs = self.jobs.max(other.jobs);
        self.died += other.died;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self.foreign.extend(other.foreign);
        self
    }
}

/// One reading of a server's clock.
pub(crate) struct ClockReading {
    /// The time that the server told.
    pub(crate) server: UnixUs,
    /// When the request was sent, by the clock of this process.
    pub(crate) asked: SystemTime,
    /// How long the answer took.
    pub(crate) took: Duration,
}

impl ServerReport {
    /// A report of a server of which nothing could be seen.
    #[cfg(test)]
    pub(crate) fn unseen() -> Self {
        ServerReport {
            info: Err("not checked".to_owned()),
            schema: Err("not checked".to_owned()),
            is_watched: false,
            config: HashMap::new(),
        }
    }

    /// The value of a setting, if it was asked for and this user may see it.
    pub(crate) fn setting(&self, name: &str) -> Observed<&str> {
        match self.config.get(name) {
            Some(Ok(value)) => Ok(value),
            Some(Err(why)) => Err(why.clone()),
            None => Err("not requested".to_owned()),
        }
    }

    /// True if settings were asked for and none was shown: then this user may not change any,
    /// either.
    pub(crate) fn hides_settings(&self) -> bool {
        !self.config.is_empty() && self.config.values().all(Result::is_err)
    }
}

impl Store {
    /// Changes a setting on each server, and each node of a cluster, until it restarts.
    pub(crate) async fn set(&self, name: &str, value: &str, until: Instant) -> Result<()> {
        let set = self.on_each(until, |it, until| Box::pin(it.set(name, value, until)));
        set.await.of_those_there().map(drop)
    }

    /// The number of the database on the first server.
    pub(crate) fn database(&self) -> i64 {
        self.servers[0].database
    }

    /// The kinds that were ever used, each with its layout, as text that may not be valid.
    pub(crate) async fn shards(&self, until: Instant) -> Result<Vec<(String, String)>> {
        let listed = self.on_each(until, |it, until| Box::pin(it.shards(until)));
        let mut listed = listed.await.of_those_there()?.concat();
        if self.is_several() {
            // Two servers can list different layouts of a kind: the newer one counts.
            listed.sort_by(|(one, _), (other, _)| one.cmp(other));
            listed.dedup_by(|(one, layout), (kind, before)| {
                let is_same = one == kind;
                let read = (Layout::parse(layout), Layout::parse(before));
                if let (true, (Some(newer), Some(older))) = (is_same, read)
                    && newer.follows(older)
                {
                    std::mem::swap(layout, before);
                }
                is_same
            });
        }
        Ok(listed)
    }
}

impl Server {
    /// The state of a server or node, and these settings; one round trip. Fails only without an
    /// answer: each value that this user may not see is an error of its own.
    pub(crate) async fn vitals(
        &self,
        server: &ServerNode,
        settings: &[&'static str],
        until: Instant,
    ) -> Result<ServerReport> {
        let mut asked = redis::pipe();
        asked.cmd("INFO");
        asked.cmd("HGET").arg(self.names.meta()).arg("schema");
        for name in settings {
            // One by one: only Redis 7 accepts several in one call.
            asked.cmd("CONFIG").arg("GET").arg(name);
        }
        let mut answers = self.each_of(server, &mut asked, until).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let info = seen::<String>(next()).map(|text| Info::parse(&text));
        let schema = seen(next());
        let of = |name: &str, value| {
            let mut pair: HashMap<String, String> = seen(value)?;
            let known = pair.remove(name);
            known.ok_or_else(|| format!("this server has no setting {name}"))
        };
        let config = settings.iter().map(|name| (*name, of(name, next())));
        Ok(ServerReport {
            info,
            schema,
            is_watched: self.link.origin().can_move(),
            config: config.collect(),
        })
    }

    async fn set(&self, name: &str, value: &str, until: Instant) -> Result<()> {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        for server in self.all_nodes(until).await? {
            self.command_at(&server, &set, until).await?;
        }
        Ok(())
    }

    /// Reads the clock of a server or node, and how long the answer takes.
    pub(crate) async fn tick(&self, server: &ServerNode, until: Instant) -> Result<ClockReading> {
        let time = redis::cmd("TIME");
        let request = match server {
            Some(node) => Request::At(node, &time),
            None => Request::One(&time),
        };
        // The call may be repeated, or wait for a connection; only the last try is timed.
        let answer = self.link.send(request, until).await?;
        let back = answer.received.elapsed();
        let took = answer.received - answer.sent.instant;
        let (seconds, micros): (u64, u64) = from_value(answer.value)?;
        Ok(ClockReading {
            server: UnixUs(seconds * 1_000_000 + micros),
            asked: SystemTime::now() - back - took,
            took,
        })
    }

    async fn shards(&self, until: Instant) -> Result<Vec<(String, String)>> {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(self.names.kinds());
        from_value(self.command(&cmd, until).await?)
    }

    /// Sends several commands together, and returns an answer or error for each.
    pub(in crate::store) async fn each(
        &self,
        asked: &mut redis::Pipeline,
        until: Instant,
    ) -> Result<Vec<Value>> {
        self.each_of(&None, asked, until).await
    }

    /// The same; commands without a key are for this node.
    async fn each_of(
        &self,
        server: &ServerNode,
        asked: &mut redis::Pipeline,
        until: Instant,
    ) -> Result<Vec<Value>> {
        let request = Request::Each(asked.ignore_errors(), server.as_ref());
        Ok(match self.link.send(request, until).await?.value {
            Value::Array(answers) => answers,
            other => vec![other],
        })
    }
}

impl Ledger {
    /// Takes a sample: the number of jobs, the dead letters since `since`, the age of the oldest
    /// one, and those of the next `most` due jobs whose names are keys of foreign values. Two round
    /// trips at most.
    pub(crate) async fn sample(
        &self,
        since: UnixMs,
        most: usize,
        until: Instant,
    ) -> Result<Observed<LedgerSample>> {
        let mut asked = redis::pipe();
        asked
            .cmd("ZCOUNT")
            .arg(&self.names.dead)
            .arg(since.0)
            .arg("(inf");
        let dead = asked.cmd("ZRANGEBYSCORE").arg(&self.names.dead);
        dead.arg("-inf").arg("(inf").arg("WITHSCORES");
        dead.arg("LIMIT").arg(0).arg(1);
        let due = asked.cmd("ZRANGEBYSCORE").arg(&self.names.due);
        due.arg("-inf").arg("(inf").arg("LIMIT").arg(0).arg(most);
        asked.cmd("HLEN").arg(&self.names.shadow);
        let mut answers = self.server.each(&mut asked, until).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let (died, oldest) = (seen(next()), seen::<Vec<(String, f64)>>(next()));
        let (due, jobs) = (seen::<Vec<String>>(next()), seen(next()));
        let (died, oldest, due, jobs) = match (died, oldest, due, jobs) {
            (Ok(died), Ok(oldest), Ok(due), Ok(jobs)) => (died, oldest, due, jobs),
            (Err(why), ..) | (_, Err(why), ..) | (_, _, Err(why), _) | (.., Err(why)) => {
                return Ok(Err(why));
            }
        };
        let mut asked = redis::pipe();
        for id in &due {
            // One byte more than our marker has, to tell a longer value apart.
            let trigger = asked.cmd("GETRANGE").arg(format!("{}:{id}", self.kind()));
            trigger.arg(0).arg(MARKER.len());
        }
        let mut foreign = Vec::new();
        if !due.is_empty() {
            let values = self.server.each(&mut asked, until).await?;
            for (id, value) in due.into_iter().zip(values) {
                match seen::<Vec<u8>>(value) {
                    Ok(text) if text.is_empty() || text == MARKER.as_bytes() => {}
                    Err(why) if !why.starts_with("WRONGTYPE") => return Ok(Err(why)),
                    _ => foreign.push(id),
                }
            }
        }
        Ok(Ok(LedgerSample {
            jobs,
            died,
            oldest: oldest.first().map(|(_, score)| UnixMs(*score as u64)),
            foreign,
        }))
    }
}

/// Decodes an answer; a refusal becomes its code and text, without the arguments of the command.
fn seen<T: redis::FromRedisValue>(value: Value) -> Observed<T> {
    if let Value::ServerError(error) = &value {
        let details = error.details().unwrap_or_default();
        // The error for an unknown command repeats its arguments, which we have sent.
        let details = details.split(", with args").next().unwrap_or_default();
        return Err(format!("{} {details}", error.code()).trim_end().to_owned());
    }
    from_value(value).map_err(|error| error.to_string())
}
