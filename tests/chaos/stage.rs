//! The processes of a trial, the faults that can hit them, and the journal of the faults.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use keyfall::Client;
use keyfall_testing::journals::Micros;
use keyfall_testing::process::LoggedProcess;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::adopted::JUMP;
use crate::clock::FakeClock;
use crate::common::Common;
use crate::daemons::DAEMONS;
use crate::database::Database;
use crate::deployment::Deployment;
use crate::journal::{Journal, Part, What};
use crate::order::Plan;
use crate::outlet::Outlet;
use crate::roles;
use crate::setting::{Setting, Whose};
use crate::several::Number;
use crate::shared::Shared;
use crate::target::{Transport, Ways};
use crate::{
    agreed, consumer, daemons, foreign, kept, load, plain, scenarios, sentinels, waiting, witness,
    worker,
};

/// How many stories all producers together begin in a second without faults. Some stories schedule
/// twice, some not at all. The jobs of limited kinds come beside them. Two trials at a time leave a third
/// of two cores unused: on cores without a rest, processes fall behind by more than the machine's own lateness explains.
const STORIES_A_SECOND: f64 = 90.0;

/// The same through daemons, which an unoptimised build makes several times as expensive; and where
/// jobs come one by one.
const STORIES_OF_DAEMONS: f64 = 180.0;
const STORIES_ONE_BY_ONE: f64 = 90.0;
/// The program that calls functions opens a connection for each attempt.
const STORIES_BESIDE_FUNCTIONS: f64 = 180.0;
/// Each push looks for its id in all topics, and some topics share their ids.
const STORIES_OF_TOPICS: f64 = 60.0;

/// The number of keys that plain commands set for each job.
const KEYS_TO_JOBS: f64 = 0.1;

const PRODUCERS: u64 = 2;

/// The limit of every wait of a trial.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The limit for a busy machine to work off its backlog.
const REST: Duration = Duration::from_secs(180);

/// The processes of a trial.
pub(crate) struct Stage {
    pub(crate) deployment: Deployment,
    shards: u16,
    /// Whether Redis loses jobs.
    loses: bool,
    /// The workers, or consumers.
    pub(crate) workers: Vec<Slot>,
    /// How jobs reach consumers, and the daemons that live.
    daemons: Option<(Ways, Vec<Option<LoggedProcess>>)>,
    /// The Redis of lists and streams.
    outlet: Option<Outlet>,
    /// The PostgreSQL beside Redis.
    pub(crate) database: Option<Database>,
    /// The lease of consumers, or of workers.
    lease: Duration,
    pub(crate) random: StdRng,
    /// Whether Redis keeps a log of its writes.
    pub(crate) keeps_a_log: bool,
    /// Whether a program calls Redis functions.
    functions: bool,
    /// How long the faults last.
    pub(crate) span: Duration,
    clock: Option<(Whose, FakeClock)>,
    producers: Vec<LoggedProcess>,
    witness: Option<JoinHandle<()>>,
    journal: Journal,
    dir: PathBuf,
    seed: u64,
    special: Vec<(Plan, u32)>,
    stories: Option<f64>,
    keys_to_jobs: f64,
    races: bool,
}

/// A place for a worker, which is there now or has ended.
pub(crate) struct Slot {
    number: usize,
    generation: u32,
    process: Option<LoggedProcess>,
}

impl Stage {
    /// Starts everything; no fault yet.
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
        let deployment = Deployment::start(&setting, clock.as_ref(), &dir).await?;
        let outlet = match setting.target {
            Some(target) if target.has_an_outlet() => {
                let started = Outlet::start(setting.outlet_forgets).await;
                Some(started.map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        let url = outlet.as_ref().map(Outlet::url).unwrap_or_default();
        let lease = setting.lease.unwrap_or(worker::LEASE);
        let ways = setting.target.map(|target| Ways::new(target, url, lease));
        let ways = ways.transpose().map_err(|error| error.to_string())?;
        let daemons = ways.map(|ways| (ways, Vec::new()));
        let workers = (0..WORKERS).map(|number| Slot {
            number,
            generation: 0,
            process: None,
        });
        let mut stage = Stage {
            deployment,
            workers: workers.collect(),
            daemons,
            outlet,
            database: None,
            lease,
            random: StdRng::seed_from_u64(seed),
            span,
            keeps_a_log: setting.keeps_a_log(),
            functions: setting.functions,
            shards: setting.shards.unwrap_or(1),
            loses: setting.loses,
            clock,
            producers: Vec::new(),
            witness: None,
            journal: Journal::open(&dir, "harness"),
            dir,
            seed,
            special: setting.special,
            stories: setting.stories,
            keys_to_jobs: setting.keys_to_jobs.unwrap_or(KEYS_TO_JOBS),
            races: setting.races,
        };
        if setting.shards.is_some() {
            let client = stage.client().await?;
            let wait = waiting::schedule(&client, stage.shards, &stage.journal);
            wait.await.map_err(|error| error.to_string())?;
        }
        if stage.functions {
            let functions = stage.client().await?.functions();
            let installed = functions.install().await;
            installed.map_err(|error| error.to_string())?;
        }
        if setting.database {
            let (url, client) = (stage.deployment.url(), stage.client().await?);
            stage.database = Some(Database::start(&url, &client, &stage.dir, setting.copy).await?);
        }
        stage.start_all_daemons();
        for number in 0..WORKERS {
            stage.start(number);
        }
        stage.all_live().await?;
        Ok(stage)
    }

    /// The folder of this trial's files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) async fn client(&self) -> Result<Client, String> {
        let client = Client::connect(&self.deployment.url_here()).await;
        client.map_err(|error| error.to_string())
    }

    async fn all_live(&self) -> Result<(), String> {
        let client = self.client().await?;
        let daemons_beside = if self.database.is_some() { DAEMONS } else { 0 };
        let all = match self.daemons.is_some() {
            true => DAEMONS,
            false => WORKERS + daemons_beside,
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

    // Producers.

    pub(crate) fn produce(&mut self) {
        let stories_a_second = match &self.daemons {
            Some((ways, _)) if ways.target == Transport::Classic => STORIES_OF_TOPICS,
            Some((ways, _)) if ways.target.is_one_by_one() => STORIES_ONE_BY_ONE,
            Some(_) => STORIES_OF_DAEMONS,
            None if self.functions => STORIES_BESIDE_FUNCTIONS,
            None => STORIES_A_SECOND,
        };
        let stories_a_second = self.stories.unwrap_or(stories_a_second);
        for number in 0..PRODUCERS {
            let terms = load::Terms {
                name: format!("producer-{number}"),
                number,
                url: self.deployment.url(),
                ways: self.daemons.as_ref().map(|(ways, _)| ways.clone()),
                journals: self.dir.clone(),
                seed: self.seed.wrapping_add(number),
                stories_a_second: stories_a_second / PRODUCERS as f64,
                special: self.special.clone(),
                sundry: self.deployment.network().is_ok(),
            };
            let command = roles::command("producer", &terms);
            let command = self.deployment.on_the_host_of(number as usize, command);
            let producer = LoggedProcess::spawn(command, &terms.name, &self.dir);
            self.producers.push(producer);
        }
        if self.functions
            && let Ok(sentinels) = self.deployment.sentinels()
        {
            let terms = foreign::Terms {
                name: "foreign".into(),
                sentinels: sentinels.addresses(),
                master: sentinels::NAME.into(),
                replicas: sentinels::REPLICAS as u64,
                journals: self.dir.clone(),
                seed: self.seed,
            };
            let program = roles::start("foreign", &terms.name, &terms, &self.dir, &[]);
            self.producers.push(program);
        }
        let lone = self.deployment.lone().filter(|_| !self.loses);
        let Some(server) = lone else {
            return;
        };
        self.journal.note(What::Begun);
        let terms = plain::Terms {
            name: "plain".into(),
            url: self.deployment.url(),
            journals: self.dir.clone(),
            seed: self.seed,
            stories_a_second: stories_a_second * self.keys_to_jobs,
            names_times: !matches!(self.clock, Some((Whose::Redis, _))),
            races: self.races,
        };
        let program = roles::start("plain", &terms.name, &terms, &self.dir, &[]);
        self.producers.push(program);
        self.witness = Some(witness::start(server.url(), &self.dir));
    }

    /// Waits until the first plain keys of each kind have become jobs: so long all programs are busy
    /// with starting.
    pub(crate) async fn until_at_work(&self) -> Result<(), String> {
        if self.witness.is_none() {
            return Ok(());
        }
        let client = self.client().await?;
        let deadline = Instant::now() + PATIENCE;
        for kind in [plain::RUN, plain::CANCEL] {
            let has_jobs = async || {
                let stats = client.stats(kind).await;
                stats.is_ok_and(|stats| stats.accepted > 0)
            };
            while !has_jobs().await {
                if Instant::now() > deadline {
                    return Err(format!("no key of {kind} becomes a job"));
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        self.journal.note(What::AtWork);
        Ok(())
    }

    /// Asks the producers to end, and waits for their last calls.
    pub(crate) async fn stop_producing(&mut self) -> Vec<String> {
        stop_all(self.producers.drain(..)).await
    }

    /// Asks the workers to end, and waits for them; then the daemons.
    pub(crate) async fn stop_working(&mut self) -> Vec<String> {
        let workers = self.workers.iter_mut();
        let mut wrong = stop_all(workers.filter_map(|slot| slot.process.take())).await;
        wrong.extend(self.deployment.is_it_still().await.err());
        if let Some(witness) = self.witness.take() {
            witness.abort();
        }
        if let Some((_, daemons)) = &mut self.daemons {
            let living: Vec<LoggedProcess> = daemons.drain(..).flatten().collect();
            living.iter().for_each(|one| one.signal(Signal::TERM));
            wrong.extend(stop_all(living.into_iter()).await);
        }
        if let Some(database) = &mut self.database {
            wrong.extend(stop_all(database.leave().into_iter()).await);
        }
        wrong
    }

    /// Pushes ids that topics share while `faults` run.
    pub(crate) async fn sharing_ids<F>(
        &mut self,
        faults: impl AsyncFnOnce(&mut Self) -> F,
    ) -> Result<F, String> {
        let (ways, _) = self.daemons.as_ref().ok_or("there are no daemons")?;
        let shared = Arc::new(Shared::new(ways, self.client().await?));
        let pushing = tokio::spawn({
            let shared = shared.clone();
            async move { shared.run().await }
        });
        let made = faults(self).await;
        shared.end();
        pushing.await.map_err(|error| error.to_string())??;
        Ok(made)
    }

    /// Uses ids that topics have in common while `faults` run.
    pub(crate) async fn using_common_ids<F>(
        &mut self,
        faults: impl AsyncFnOnce(&mut Self) -> F,
    ) -> Result<F, String> {
        let (ways, _) = self.daemons.as_ref().ok_or("there are no daemons")?;
        let common = Arc::new(Common::new(ways, &self.dir));
        let using = tokio::spawn(common.clone().run(self.seed));
        let made = faults(self).await;
        common.end();
        using.await.map_err(|error| error.to_string())?;
        Ok(made)
    }

    // Faults of daemons.

    fn start_all_daemons(&mut self) {
        if let Some((_, living)) = &mut self.daemons {
            living.resize_with(DAEMONS, || None);
            (0..DAEMONS).for_each(|number| self.start_daemon(number));
        }
    }

    /// Starts the daemon of this number.
    pub(crate) fn start_daemon(&mut self, number: usize) {
        if let Some((ways, living)) = &mut self.daemons {
            let command = daemons::command(ways, number, &self.deployment.url(), &self.dir);
            let name = format!("daemon-{number}");
            living[number] = Some(LoggedProcess::spawn(command, &name, &self.dir));
        }
    }

    /// Kills the daemon of this number.
    pub(crate) fn kill_daemon(&mut self, number: usize) {
        let living = self.daemons.as_mut();
        if let Some(process) = living.and_then(|(_, living)| living[number].take()) {
            self.kill_process(process);
        }
    }

    // Faults of workers.

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
            let process = roles::start("consumer", &terms.name, &terms, &self.dir, &[]);
            slot.process = Some(process);
            return;
        }
        let terms = worker::Terms {
            name: format!("worker-{}.{}", slot.number, slot.generation),
            url: self.deployment.url(),
            journals: self.dir.clone(),
            adopts: self.deployment.is_one_place(),
        };
        let environment = match &self.clock {
            Some((Whose::Workers, clock)) => clock.environment(),
            _ => Vec::new(),
        };
        let mut command = roles::command("worker", &terms);
        command.envs(environment);
        let command = self.deployment.on_the_host_of(slot.number, command);
        slot.process = Some(LoggedProcess::spawn(command, &terms.name, &self.dir));
    }

    /// Kills the worker in this place.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(process) = self.workers[number].process.take() {
            self.kill_process(process);
        }
    }

    /// Kills a process, unless it has ended by itself.
    pub(crate) fn kill_process(&self, mut process: LoggedProcess) {
        if let Some(status) = process.ended() {
            self.died(&process, status);
            return;
        }
        self.fault("killed", Some(&process));
        process.kill();
        self.journal.note(What::Gone {
            process: process.name.clone(),
        });
    }

    /// Notes that a process has ended by itself.
    fn died(&self, process: &LoggedProcess, status: ExitStatus) {
        self.journal.note(What::Died {
            process: process.name.clone(),
            status: status.to_string(),
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
            let status = slot.process.as_mut().and_then(LoggedProcess::ended);
            if let Some(status) = status
                && let Some(process) = slot.process.take()
            {
                self.died(&process, status);
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
    /// If that takes too long.
    pub(crate) async fn drain(&mut self, client: &Client) -> Result<(), String> {
        let deadline = Instant::now() + REST + 2 * self.lease;
        loop {
            let rest = match self.still_to_do(client).await {
                Ok(None) => return Ok(()),
                Ok(Some(rest)) => rest,
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(format!("{REST:?} after the load: {rest}"));
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
        match self.deployment.is_one_place() {
            true => agreed::disagreement(client, &mut self.deployment.redis().await?).await,
            false => Ok(None),
        }
    }

    // Faults of the Redis of lists and streams.

    pub(crate) fn outlet(&mut self) -> Result<&mut Outlet, &'static str> {
        self.outlet.as_mut().ok_or("there is no other Redis")
    }

    /// Kills it, if there is one.
    pub(crate) async fn kill_outlet(&mut self) -> scenarios::Result {
        if self.outlet.is_some() {
            self.strike("the other Redis is killed");
        }
        match &mut self.outlet {
            Some(outlet) => outlet.kill().await,
            None => Ok(()),
        }
    }

    /// Starts it again, with the data that it has kept.
    pub(crate) async fn restart_outlet(&mut self) -> scenarios::Result {
        match &mut self.outlet {
            Some(outlet) => outlet.restart().await,
            None => Ok(()),
        }
    }

    /// The whole log so far of each server whose data count, even if it was rewritten; the files
    /// stay with the journals.
    pub(crate) fn kept_logs(&self) -> std::io::Result<Vec<Vec<PathBuf>>> {
        self.deployment.kept_logs(&self.dir)
    }

    /// The clock that the setting asked for.
    pub(crate) fn clock(&self) -> Result<&FakeClock, &'static str> {
        let clock = self.clock.as_ref().ok_or("there is no clock to set")?;
        Ok(&clock.1)
    }

    // The journal of the faults.

    pub(crate) fn fault(&self, name: &str, process: Option<&LoggedProcess>) {
        self.journal.note(What::Fault {
            name: name.to_owned(),
            process: process.map(|process| process.name.clone()),
        });
    }

    /// Notes that a fault is about to hit all processes.
    pub(crate) fn strike(&self, name: &str) {
        self.fault(name, None);
    }

    pub(crate) fn weather(&self, bad: bool) {
        self.journal.note(What::Weather { bad });
    }

    /// Notes that Redis has gone back to its state at `kept`, by its mark; effects of calls that
    /// were answered before `since` had to be there, by the kind of the fault.
    pub(crate) fn rolled_back(&self, kept: Option<Micros>, since: Micros) {
        self.journal.note(What::RolledBack {
            kept,
            since,
            of: None,
            undone: None,
        });
    }

    /// The same for a snapshot that was there, and a server that was gone, at these times.
    pub(crate) fn restored(&self, kept: Option<Micros>, since: Micros, undone: (Micros, Micros)) {
        self.journal.note(What::RolledBack {
            kept,
            since,
            of: None,
            undone: Some(undone),
        });
    }

    /// The same for these ledgers.
    pub(crate) fn ledgers_rolled_back(&self, kept: Option<Micros>, since: Micros, part: Part) {
        self.journal.note(What::RolledBack {
            kept,
            since,
            of: Some(part),
            undone: None,
        });
    }

    /// Waits until the copy has all jobs, as they were at the time that is returned or later.
    pub(crate) async fn mark_copy(&self) -> scenarios::Result<Micros> {
        waiting::mark_copy(&self.client().await?, &self.journal).await
    }

    /// Notes that what Redis had lost was brought back from the copy, which had all changes before
    /// `copied`; and between which times the snapshot was made to which Redis had gone back, if to any.
    pub(crate) fn rebuilt(&self, snapshot: Option<(Micros, Micros)>, copied: Micros) {
        self.journal.note(What::Rebuilt { snapshot, copied });
    }

    /// Notes that a fault hit the servers of these ledgers from then on until now.
    pub(crate) fn suffered(&self, part: Part, since: Micros) {
        self.journal.note(What::Suffered { part, since });
    }

    /// The ledgers with these hash tags, `app:module:biz/3.17`.
    pub(crate) fn part(&self, tags: &[String]) -> Part {
        let name = |tag: &String| match tag.rsplit_once('/') {
            Some((kind, shard)) => format!("{kind}/{}", shard.split('.').next().unwrap_or(shard)),
            None => tag.clone(),
        };
        Part {
            shards: self.shards,
            ledgers: tags.iter().map(name).collect(),
        }
    }

    /// The ledgers of one of several servers.
    pub(crate) fn part_on(&mut self, place: Number) -> Result<Part, &'static str> {
        let shards = self.shards;
        let ledgers = self.deployment.several()?.ledgers_on(place, shards);
        Ok(Part { shards, ledgers })
    }

    /// All ledgers of a kind.
    pub(crate) fn part_of_kind(&self, kind: &str) -> Part {
        let shards = self.shards;
        let ledgers = (0..shards).map(|shard| format!("{kind}/{shard}"));
        Part {
            shards,
            ledgers: ledgers.collect(),
        }
    }

    /// Notes that the jobs are on a server with another clock, since then.
    pub(crate) fn has_another_clock(&self, since: Micros) {
        let (name, process) = (JUMP.to_owned(), None);
        self.journal.note_at(since, What::Fault { name, process });
    }

    /// Notes that another primary takes writes, since then, for the data of a primary that was hit.
    pub(crate) fn is_served(&self, since: Micros) {
        self.journal.note_at(since, What::Served);
    }

    // Time and chance.

    pub(crate) fn until_the_end(&self) -> Instant {
        Instant::now() + self.span
    }

    /// A random duration from this range of ms.
    pub(crate) fn some_ms(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(range))
    }

    pub(crate) fn some_worker(&mut self) -> usize {
        self.some(WORKERS)
    }

    /// A random number below this one.
    pub(crate) fn some(&mut self, count: usize) -> usize {
        self.random.random_range(0..count)
    }
}

pub(crate) const WORKERS: usize = 3;

async fn stop_all(processes: impl Iterator<Item = LoggedProcess>) -> Vec<String> {
    let ends = join_all(processes.map(LoggedProcess::stop)).await;
    ends.into_iter().filter_map(Result::err).collect()
}
