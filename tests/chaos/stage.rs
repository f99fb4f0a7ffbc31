//! What a scenario ill-treats: a Redis, workers and producers, and the journal of what was done
//! to them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use keyfall::Client;
use keyfall::embedded::Embedded;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ToRedisArgs};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::clock::FakeClock;
use crate::cluster::Cluster;
use crate::daemons::DAEMONS;
use crate::journal::{Journal, Part, What, now};
use crate::order::Plan;
use crate::process::Process;
use crate::proxy::Proxy;
use crate::sentinels::Sentinels;
use crate::target::{Target, Ways};
use crate::wires::Wires;
use crate::{agreed, aof, consumer, daemons, kept, load, plain, waiting, witness, worker};

/// How many jobs a second are scheduled, over all producers, in a second without faults. Some
/// stories schedule twice, some not at all. Two trials at a time are as much as two cores can do.
const STORIES_A_SECOND: f64 = 280.0;

/// Through daemons, of which an unoptimised build makes several times the work; and where jobs come
/// one by one.
const STORIES_OF_DAEMONS: f64 = 180.0;
const STORIES_ONE_BY_ONE: f64 = 120.0;

/// How many keys a second are set by plain commands, where so many jobs are.
const KEYS_TO_JOBS: f64 = 0.1;

const PRODUCERS: u64 = 2;

/// How long anything may take before a trial gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a scenario begins with.
#[derive(Default)]
pub(crate) struct Setting {
    /// Of `redis-server`, beside those of the shipped configuration.
    pub(crate) redis: Vec<&'static str>,
    /// How many of 10,000 jobs have these plans.
    pub(crate) special: Vec<(Plan, u32)>,
    /// Whether there is a network between Redis and everybody else, and every script is called;
    /// around each server, if there are several.
    pub(crate) network: bool,
    /// Whether Redis has replicas, and sentinels that watch it. Nobody sets plain keys then.
    pub(crate) sentinels: bool,
    /// Whether jobs are on a cluster. Nobody sets plain keys then.
    pub(crate) cluster: bool,
    /// Whether servers can be cut off from each other, where there are several.
    pub(crate) wires: bool,
    /// How many shards each kind has; one if nothing is said.
    pub(crate) shards: Option<u16>,
    /// Whose wall clock can be set.
    pub(crate) clock: Option<Whose>,
    /// Whether daemons work, and how jobs reach the consumers that take the place of workers then.
    pub(crate) target: Option<Target>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Redis,
    Workers,
}

/// The processes of a trial.
pub(crate) struct Stage {
    /// The primary, where there are several, unless it is a cluster.
    server: Option<Embedded>,
    cluster: Option<Cluster>,
    shards: u16,
    sentinels: Option<Sentinels>,
    /// Or consumers.
    pub(crate) workers: Vec<Slot>,
    /// How jobs reach consumers, and the daemons that live.
    daemons: Option<(Ways, Vec<Option<Process>>)>,
    /// The Redis that lists and streams are on.
    outlet: Option<Embedded>,
    pub(crate) random: StdRng,
    /// How long the bad weather is to last.
    pub(crate) span: Duration,
    /// Where workers and producers find Redis.
    url: String,
    network: Option<Proxy>,
    clock: Option<(Whose, FakeClock)>,
    producers: Vec<Process>,
    witness: Option<JoinHandle<()>>,
    journal: Journal,
    dir: PathBuf,
    seed: u64,
    special: Vec<(Plan, u32)>,
}

/// A place for a worker: there is one in it, or was.
pub(crate) struct Slot {
    number: usize,
    generation: u32,
    process: Option<Process>,
}

impl Stage {
    /// Everything runs, and nobody works against it yet.
    pub(crate) async fn set(
        setting: Setting,
        dir: PathBuf,
        seed: u64,
        span: Duration,
    ) -> Result<Self, String> {
        let clock = match setting.clock {
            Some(whose) => Some((whose, FakeClock::new(&dir)?)),
            None => None,
        };
        let binary = match &clock {
            Some((Whose::Redis, clock)) => Some(clock.redis_server()?),
            _ => None,
        };
        let options = || {
            let options = Embedded::options()
                // The history of a log that is rewritten is gone, and is evidence.
                .args(["--auto-aof-rewrite-percentage", "0"])
                .args(setting.redis.clone());
            match &binary {
                Some(binary) => options.binary(binary),
                None => options,
            }
        };
        let wires = setting.wires.then(Wires::default);
        let (mut server, mut sentinels, mut cluster) = (None, None, None);
        if setting.cluster {
            cluster = Some(Cluster::start(options(), wires).await?);
        } else if setting.sentinels {
            let started = Sentinels::start(options, setting.network, wires, &dir).await?;
            (server, sentinels) = (Some(started.0), Some(started.1));
        } else {
            let started = options().start().await;
            server = Some(started.map_err(|error| error.to_string())?);
        }
        let network = match &server {
            Some(server) if setting.network && sentinels.is_none() => {
                let proxy = Proxy::to(socket_of(server), &dir).await;
                Some(proxy.map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        let outlet = match setting.target {
            Some(target) if target.has_an_outlet() => {
                Some(Embedded::start().await.map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        let url = outlet.as_ref().map(Embedded::url).unwrap_or_default();
        let ways = setting.target.map(|target| Ways::new(target, url));
        let ways = ways.transpose().map_err(|error| error.to_string())?;
        let daemons = ways.map(|ways| (ways, Vec::new()));
        let workers = (0..WORKERS).map(|number| Slot {
            number,
            generation: 0,
            process: None,
        });
        let mut stage = Stage {
            workers: workers.collect(),
            daemons,
            outlet,
            random: StdRng::seed_from_u64(seed),
            span,
            url: match (&network, &sentinels, &cluster, &server) {
                (Some(proxy), ..) => proxy.url.clone(),
                (_, Some(sentinels), ..) => sentinels.url(),
                (_, _, Some(cluster), _) => cluster.url(),
                _ => server.as_ref().map(Embedded::url).unwrap_or_default(),
            },
            sentinels,
            cluster,
            shards: setting.shards.unwrap_or(1),
            network,
            clock,
            server,
            producers: Vec::new(),
            witness: None,
            journal: Journal::open(&dir, "harness"),
            dir,
            seed,
            special: setting.special,
        };
        if setting.shards.is_some() {
            let client = stage.client().await?;
            let wait = waiting::schedule(&client, stage.shards, &stage.journal);
            wait.await.map_err(|error| error.to_string())?;
        }
        stage.start_all_daemons();
        for number in 0..WORKERS {
            stage.start(number);
        }
        stage.all_live().await?;
        Ok(stage)
    }

    /// What programs are told of where jobs are.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Where the files of this trial are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) async fn client(&self) -> Result<Client, String> {
        let client = Client::connect(&self.url).await;
        client.map_err(|error| error.to_string())
    }

    async fn all_live(&self) -> Result<(), String> {
        let client = self.client().await?;
        let all = if self.daemons.is_some() {
            DAEMONS
        } else {
            WORKERS
        };
        let deadline = Instant::now() + PATIENCE;
        while client
            .instances()
            .await
            .is_ok_and(|instances| instances.len() < all)
        {
            if Instant::now() > deadline {
                return Err("the workers do not start".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    // The load.

    pub(crate) fn produce(&mut self) {
        let stories_a_second = match &self.daemons {
            Some((ways, _)) if ways.target.is_one_by_one() => STORIES_ONE_BY_ONE,
            Some(_) => STORIES_OF_DAEMONS,
            None => STORIES_A_SECOND,
        };
        for number in 0..PRODUCERS {
            let terms = load::Terms {
                name: format!("producer-{number}"),
                number,
                url: self.url.clone(),
                ways: self.daemons.as_ref().map(|(ways, _)| ways.clone()),
                journals: self.dir.clone(),
                seed: self.seed.wrapping_add(number),
                stories_a_second: stories_a_second / PRODUCERS as f64,
                special: self.special.clone(),
                sundry: self.network.is_some(),
            };
            let producer = Process::start("producer", &terms.name, &terms, &self.dir, &[]);
            self.producers.push(producer);
        }
        let (None, None, Some(server)) = (&self.sentinels, &self.cluster, &self.server) else {
            return;
        };
        let terms = plain::Terms {
            name: "plain".into(),
            url: self.url.clone(),
            journals: self.dir.clone(),
            seed: self.seed,
            stories_a_second: stories_a_second * KEYS_TO_JOBS,
            names_times: !matches!(self.clock, Some((Whose::Redis, _))),
        };
        let program = Process::start("plain", &terms.name, &terms, &self.dir, &[]);
        self.producers.push(program);
        self.witness = Some(witness::start(server.url(), &self.dir));
    }

    /// Asks the producers to end, and waits for their last calls.
    pub(crate) async fn stop_producing(&mut self) -> Vec<String> {
        stop_all(self.producers.drain(..)).await
    }

    /// Asks the workers to end, and waits for it; then the daemons.
    pub(crate) async fn stop_working(&mut self) -> Vec<String> {
        let workers = self.workers.iter_mut();
        let mut wrong = stop_all(workers.filter_map(|slot| slot.process.take())).await;
        if let Some(sentinels) = &self.sentinels {
            wrong.extend(sentinels.is_it_still().await.err());
        }
        if let Some(witness) = self.witness.take() {
            witness.abort();
        }
        if let Some((_, daemons)) = &mut self.daemons {
            let living: Vec<Process> = daemons.drain(..).flatten().collect();
            living.iter().for_each(|one| one.signal(Signal::TERM));
            wrong.extend(stop_all(living.into_iter()).await);
        }
        wrong
    }

    // What can be done to daemons.

    fn start_all_daemons(&mut self) {
        if let Some((_, living)) = &mut self.daemons {
            living.resize_with(DAEMONS, || None);
            (0..DAEMONS).for_each(|number| self.start_daemon(number));
        }
    }

    /// Starts the daemon in this place.
    pub(crate) fn start_daemon(&mut self, number: usize) {
        if let Some((ways, living)) = &mut self.daemons {
            let command = daemons::command(ways, number, &self.url, &self.dir);
            let name = format!("daemon-{number}");
            living[number] = Some(Process::spawn(command, &name, &self.dir));
        }
    }

    /// Kills the daemon in this place.
    pub(crate) fn kill_daemon(&mut self, number: usize) {
        let living = self.daemons.as_mut();
        if let Some(mut process) = living.and_then(|(_, living)| living[number].take()) {
            self.fault("killed", Some(&process));
            process.kill();
        }
    }

    // What can be done to workers.

    /// Starts a worker in this place.
    pub(crate) fn start(&mut self, number: usize) {
        let slot = &mut self.workers[number];
        slot.generation += 1;
        if let Some((ways, _)) = &self.daemons {
            let terms = consumer::Terms {
                name: format!("consumer-{}.{}", slot.number, slot.generation),
                ways: ways.clone(),
                journals: self.dir.clone(),
            };
            let process = Process::start("consumer", &terms.name, &terms, &self.dir, &[]);
            slot.process = Some(process);
            return;
        }
        let terms = worker::Terms {
            name: format!("worker-{}.{}", slot.number, slot.generation),
            url: self.url.clone(),
            journals: self.dir.clone(),
            adopts: self.cluster.is_none(),
        };
        let environment = match &self.clock {
            Some((Whose::Workers, clock)) => clock.environment(),
            _ => Vec::new(),
        };
        let process = Process::start("worker", &terms.name, &terms, &self.dir, &environment);
        slot.process = Some(process);
    }

    /// Kills the worker in this place.
    pub(crate) fn kill(&mut self, number: usize) {
        let Some(mut process) = self.workers[number].process.take() else {
            return;
        };
        self.fault("killed", Some(&process));
        process.kill();
        self.journal.note(What::Gone {
            process: process.name.clone(),
        });
    }

    /// Sends the worker in this place a signal that does not end it.
    pub(crate) fn signal(&mut self, number: usize, signal: Signal, name: &str) {
        if let Some(process) = &self.workers[number].process {
            self.fault(name, Some(process));
            process.signal(signal);
        }
    }

    /// Starts another worker in place of each that has ended by itself.
    fn replace_the_dead(&mut self) {
        for number in 0..self.workers.len() {
            let slot = &mut self.workers[number];
            if let Some(process) = &mut slot.process
                && process.ended().is_some()
            {
                let name = process.name.clone();
                slot.process = None;
                self.journal.note(What::Fault {
                    name: "died".into(),
                    process: Some(name.clone()),
                });
                self.journal.note(What::Gone { process: name });
                self.start(number);
            }
        }
    }

    /// Lets some time pass.
    pub(crate) async fn live_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.replace_the_dead();
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until nothing runs any more and nothing is due soon.
    ///
    /// # Errors
    /// If it does not come to that.
    pub(crate) async fn drain(&mut self, client: &Client) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let rest = match self.still_to_do(client).await {
                Ok(None) => return Ok(()),
                Ok(Some(rest)) => rest,
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(format!("{PATIENCE:?} after the load: {rest}"));
            }
            self.live_for(Duration::from_millis(50)).await;
        }
    }

    async fn still_to_do(
        &self,
        client: &Client,
    ) -> Result<Option<String>, Box<dyn std::error::Error>> {
        if let Some(rest) = kept::still_to_do(client).await? {
            return Ok(Some(rest));
        }
        match &self.server {
            Some(_) => agreed::disagreement(client, &mut self.redis().await?).await,
            None => Ok(None),
        }
    }

    // What can be done to the Redis of lists and streams.

    /// Kills it, if there is one.
    pub(crate) async fn kill_outlet(&mut self) -> keyfall::Result<()> {
        if self.outlet.is_some() {
            self.strike("the other Redis is killed");
        }
        match &mut self.outlet {
            Some(outlet) => outlet.kill_server().await,
            None => Ok(()),
        }
    }

    /// Starts it again, with its log.
    pub(crate) async fn restart_outlet(&mut self) -> keyfall::Result<()> {
        match &mut self.outlet {
            Some(outlet) => outlet.restart().await,
            None => Ok(()),
        }
    }

    // What can be done to Redis.

    pub(crate) async fn command<T: FromRedisValue>(
        &self,
        args: &[impl ToRedisArgs],
    ) -> redis::RedisResult<T> {
        let mut redis = self.redis().await?;
        redis::Cmd::new().arg(args).query_async(&mut redis).await
    }

    /// The only one, or the primary.
    ///
    /// # Panics
    /// If it is a cluster.
    pub(crate) fn server(&mut self) -> &mut Embedded {
        self.server.as_mut().expect("it is no cluster")
    }

    fn the_server(&self) -> &Embedded {
        self.server.as_ref().expect("it is no cluster")
    }

    /// Whether plain commands can be sent to the place where all keys are.
    pub(crate) fn is_one_place(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) async fn redis(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(self.the_server()).await
    }

    /// The files of its log.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        logs_at(&socket_of(self.the_server()))
    }

    /// The whole log so far of each server whose data count, even if it was rewritten; they stay
    /// with the journals.
    pub(crate) fn kept_logs(&self) -> std::io::Result<Vec<Vec<PathBuf>>> {
        let sockets = match &self.cluster {
            Some(cluster) => cluster.sockets(),
            None => vec![socket_of(self.the_server())],
        };
        let kept = sockets.iter().enumerate().map(|(number, socket)| {
            let dir = self.dir.join(format!("redis-{number}"));
            aof::keep(&logs_at(socket), &dir)?;
            Ok(aof::files(&dir))
        });
        kept.collect()
    }

    pub(crate) fn signal_server(&self, signal: Signal) {
        signal_to(self.the_server(), signal);
    }

    /// The cluster that the setting asked for.
    pub(crate) fn cluster(&mut self) -> Result<&mut Cluster, &'static str> {
        self.cluster.as_mut().ok_or("there is no cluster")
    }

    /// The sentinels that the setting asked for.
    pub(crate) fn sentinels(&mut self) -> Result<&mut Sentinels, &'static str> {
        self.sentinels.as_mut().ok_or("there are no sentinels")
    }

    /// Waits until another server is the primary. Returns the port of the old one.
    pub(crate) async fn follow(&mut self) -> Result<u16, String> {
        let sentinels = self.sentinels.as_mut().ok_or("there are no sentinels")?;
        let server = self.server.as_mut().ok_or("there is no primary")?;
        sentinels.follow(server).await
    }

    /// Sends the server that was the primary a signal.
    pub(crate) fn signal_other(&mut self, port: u16, signal: Signal) -> Result<(), &'static str> {
        signal_to(self.sentinels()?.other(port), signal);
        Ok(())
    }

    /// Waits until all replicas follow the primary.
    pub(crate) async fn are_followed(&self) -> Result<(), String> {
        let sentinels = self.sentinels.as_ref().ok_or("there are no sentinels")?;
        sentinels.are_followed(self.the_server()).await
    }

    /// Has the server that was the primary follow the new one.
    pub(crate) async fn rejoin(&self, port: u16) -> Result<(), String> {
        let sentinels = self.sentinels.as_ref().ok_or("there are no sentinels")?;
        sentinels.rejoin(port, self.the_server()).await
    }

    /// The network that the setting asked for.
    pub(crate) fn network(&self) -> Result<&Proxy, &'static str> {
        self.network.as_ref().ok_or("there is no network")
    }

    /// The clock that the setting asked for.
    pub(crate) fn clock(&self) -> Result<&FakeClock, &'static str> {
        let clock = self.clock.as_ref().ok_or("there is no clock to set")?;
        Ok(&clock.1)
    }

    // What is written down.

    fn fault(&self, name: &str, process: Option<&Process>) {
        self.journal.note(What::Fault {
            name: name.to_owned(),
            process: process.map(|process| process.name.clone()),
        });
    }

    /// Something is about to be done to everybody.
    pub(crate) fn strike(&self, name: &str) {
        self.fault(name, None);
    }

    pub(crate) fn weather(&self, bad: bool) {
        self.journal.note(What::Weather { bad });
    }

    /// Redis has gone back to what it had at `kept`.
    pub(crate) fn rolled_back(&self, kept: u64) {
        debug_assert!(kept <= now());
        self.journal.note(What::RolledBack { kept, of: None });
    }

    /// So have the ledgers with these hash tags, `app:module:biz/3.17`.
    pub(crate) fn ledgers_rolled_back(&self, kept: u64, tags: &[String]) {
        debug_assert!(kept <= now());
        let name = |tag: &String| match tag.rsplit_once('/') {
            Some((kind, shard)) => format!("{kind}/{}", shard.split('.').next().unwrap_or(shard)),
            None => tag.clone(),
        };
        let of = Some(Part {
            shards: self.shards,
            ledgers: tags.iter().map(name).collect(),
        });
        self.journal.note(What::RolledBack { kept, of });
    }

    /// Another primary serves what one served that was ill-treated.
    pub(crate) fn is_served(&self) {
        self.journal.note(What::Served);
    }

    // Time.

    pub(crate) fn until_the_end(&self) -> Instant {
        Instant::now() + self.span
    }

    /// Some time between these, in ms.
    pub(crate) fn some_ms(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(range))
    }

    pub(crate) fn some_worker(&mut self) -> usize {
        self.some(WORKERS)
    }

    /// A number below this one.
    pub(crate) fn some(&mut self, count: usize) -> usize {
        self.random.random_range(0..count)
    }
}

/// The default gives up after half a second, which a busy machine may need.
pub(crate) async fn connect(server: &Embedded) -> redis::RedisResult<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(server.url())?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// The files of the log of the server that has its socket there.
fn logs_at(socket: &Path) -> Vec<PathBuf> {
    let dir = socket.parent();
    aof::files(dir.expect("the socket is in a directory"))
}

pub(crate) fn signal_to(server: &Embedded, signal: Signal) {
    let pid = server.pid().and_then(|pid| pid.try_into().ok());
    let pid = pid.and_then(Pid::from_raw).expect("the server runs");
    // Fails only if it has ended.
    let _ = kill_process(pid, signal);
}

pub(crate) fn socket_of(server: &Embedded) -> PathBuf {
    server.url().trim_start_matches("redis+unix://").into()
}

pub(crate) const WORKERS: usize = 3;

async fn stop_all(processes: impl Iterator<Item = Process>) -> Vec<String> {
    let ends = join_all(processes.map(Process::stop)).await;
    ends.into_iter().filter_map(Result::err).collect()
}
