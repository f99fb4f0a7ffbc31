//! One look at everything.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::checks::{
    ADOPTED_KEYS, ADOPTERS_ALIKE, BOOKS, BREAKERS_CLOSED, CHECKS, DEAD_LETTERS_FULL,
    DEAD_LETTERS_NEW, EXPIRY_CROWD, FOREIGN_VALUES, KIND_SHARDS, NOTIFY_FLAGS, OVERDUE_JOBS,
    SERVERS_THERE, SETTINGS, SHARD_SIZE, UNROUTED_JOBS, WORKERS_ALIKE, WORKERS_ALIVE, WORKERS_HEAR,
};
use super::clock::{self, ServerClock};
use super::finding::{Finding, Severity};
use super::ledgers::{self, unseen};
use super::{
    adoption, crowd, disk, events, functions, instances, memory, mend, replication, rights, server,
    slots,
};
use crate::client::{Client, ClientBuilder, Instance};
use crate::error::{Error, Result};
use crate::key::Kind;
use crate::store::{Observed, ServerReport, Store, WantedEvents, is_of_absence};
use crate::time::UnixUs;

/// How long the server is given to answer one question.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How often the clock is asked: the quickest answer counts.
const TICKS: usize = 5;

/// A call to [`Client::diagnose`] or [`ClientBuilder::diagnose`];
/// looks when it is awaited.
#[must_use = "nothing is looked at until it is awaited"]
pub struct Diagnose {
    client: Result<Client>,
    fix: bool,
    only: Option<Vec<String>>,
}

/// What was found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Where the server is; without credentials.
    pub server: String,
    /// One for each of [`CHECKS`], in their order. Fewer, if the server is still loading its data,
    /// or after [`only`](Diagnose::only).
    pub findings: Vec<Finding>,
}

impl Client {
    /// Looks for what can hurt: settings of Redis, rights, clocks, jobs that nobody runs.
    /// [`doctor`](crate::doctor) says more.
    ///
    /// # Errors
    /// When it is awaited: if Redis does not answer in time, or does not let this user in. What it
    /// refuses to show is a finding, and no error.
    pub fn diagnose(&self) -> Diagnose {
        Diagnose::new(Ok(self.clone()))
    }
}

impl ClientBuilder {
    /// Looks at the server without connecting to it for good: also at one that
    /// [`connect`](Self::connect) refuses. As [`Client::diagnose`].
    pub fn diagnose(self) -> Diagnose {
        Diagnose::new(self.unchecked())
    }
}

impl Diagnose {
    fn new(client: Result<Client>) -> Self {
        Diagnose {
            client,
            fix: false,
            only: None,
        }
    }

    /// Puts right what harms nobody else: merges the missing notification flags into those that are
    /// set, and raises the output buffer of subscribers. Both last until Redis restarts; each
    /// [finding](Finding::fixed) says what was done, and how to make it last.
    pub fn fix(mut self) -> Self {
        self.fix = true;
        self
    }

    /// Tells of the checks with these ids and no others, and [`fix`](Self::fix) puts right no
    /// others.
    pub fn only(mut self, ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.only = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    async fn run(self) -> Result<Diagnosis> {
        let Diagnose { client, fix, only } = self;
        let client = client?;
        let is_wanted = |finding: &Finding| {
            let mut ids = only.iter().flatten();
            only.is_none() || ids.any(|id| id == finding.check.id)
        };
        let store = client.store();
        let mut seen = ServerFacts::look(store).await?;
        seen.meet(&client).await?;
        let mut findings = seen.judge();
        if fix {
            let broken = findings.iter().filter(|it| is_wanted(it));
            let done = mend::mend(store, &seen.vitals, seen.wanted(), broken).await;
            if !done.is_empty() {
                seen = ServerFacts::look(store).await?;
                seen.meet(&client).await?;
                findings = seen.judge();
            }
            for (id, what) in done {
                let finding = findings.iter_mut().find(|it| it.check.id == id);
                finding.expect("one for each check").fixed = Some(what);
            }
        }
        if !seen.is_loading() {
            of_jobs(&client, &seen, &mut findings).await?;
        }
        seen.prove(store, &mut findings).await?;
        findings.retain(is_wanted);
        findings.sort_by_key(|finding| CHECKS.iter().position(|it| it.id == finding.check.id));
        Ok(Diagnosis {
            server: store.address(),
            findings,
        })
    }
}

impl IntoFuture for Diagnose {
    type Output = Result<Diagnosis>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Diagnosis {
    /// How bad the worst finding is.
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(|finding| finding.severity);
        severities.max().unwrap_or(Severity::Ok)
    }
}

/// What the server tells of itself and its settings, for a worker that has just connected: two
/// round trips. How far away it is, a worker that is just starting cannot tell, and jobs and rights
/// it watches as it goes.
pub(crate) async fn of_server(store: &Arc<Store>) -> Result<Vec<Finding>> {
    let mut seen = ServerFacts::look(store).await?;
    seen.clocks = clocks(store, 1).await?;
    let is_round_trip = |finding: &Finding| finding.check.id == super::checks::ROUND_TRIP.id;
    let mut findings = seen.judge();
    findings.retain(|finding| !is_round_trip(finding));
    Ok(findings)
}

/// Where a server is that does not answer, and why not.
type Absent = (String, Error);

/// What the server tells of itself.
struct ServerFacts {
    vitals: ServerReport,
    /// What the other primaries of a cluster tell, or the other servers, by their addresses.
    others: Vec<(String, ServerReport)>,
    /// Those of several servers that are away, and nodes that a cluster takes for primaries; and why.
    away: Vec<Absent>,
    clocks: Observed<Vec<ServerClock>>,
    live: Observed<Vec<Instance>>,
}

impl ServerFacts {
    async fn look(store: &Arc<Store>) -> Result<Self> {
        let (mut all, mut away) = (Vec::new(), Vec::new());
        for member in store.members() {
            match vitals_of(&member).await {
                Ok((there, absent)) => {
                    all.extend(there);
                    away.extend(absent);
                }
                Err(error) if store.is_several() && is_of_absence(&error) => {
                    away.push((member.address(), error));
                }
                Err(error) => return Err(error),
            }
        }
        if all.is_empty() {
            return Err(away.swap_remove(0).1);
        }
        let (_, vitals) = all.remove(0);
        Ok(ServerFacts {
            vitals,
            others: all,
            away,
            clocks: Ok(Vec::new()),
            live: Ok(Vec::new()),
        })
    }

    /// Who lives decides what is expected of the server.
    async fn meet(&mut self, client: &Client) -> Result<()> {
        if !self.is_loading() {
            self.live = match client.instances().await {
                Ok(live) => Ok(live.instances),
                Err(error) => unseen(error)?,
            };
        }
        Ok(())
    }

    /// What Redis has to announce to those who live.
    fn wanted(&self) -> WantedEvents {
        let live = self.live.as_ref().map_or(&[][..], Vec::as_slice);
        match live.iter().any(|one| !one.adopts.is_empty()) {
            true => WantedEvents::Changes,
            false => WantedEvents::Expiry,
        }
    }

    /// What the flags of a server are that does not show them, where live workers adopt keys.
    async fn prove(&self, store: &Arc<Store>, found: &mut [Finding]) -> Result<()> {
        let live = self.live.as_ref().map_or(&[][..], Vec::as_slice);
        let adopted = adoption::keys(live);
        let is_unseen = |it: &&mut Finding| it.check == &NOTIFY_FLAGS && !it.is_seen;
        let Some(finding) = found.iter_mut().find(is_unseen) else {
            return Ok(());
        };
        if adopted.is_empty() {
            return Ok(());
        }
        // Of several servers the worst.
        let mut worst = Finding::fine(&NOTIFY_FLAGS, "proved by a key that was heard to expire");
        for member in store.members() {
            let until = Instant::now() + PATIENCE;
            let one = match member.prove(&adopted, until).await {
                Ok(proof) => match proof.unheard() {
                    None => continue,
                    Some(unheard) => events::unannounced(format!(
                        "of a key that expired went unheard: {unheard}"
                    )),
                },
                // What is away is said as such.
                Err(error) if store.is_several() && is_of_absence(&error) => continue,
                Err(error) => Finding::warning(
                    &NOTIFY_FLAGS,
                    format!(
                        "not seen, {} adopted, and not proved: {error}",
                        adopted.join(" ")
                    ),
                    "ask as a user with the rules of keyfall-adopter in acl.conf",
                ),
            };
            if one.severity > worst.severity {
                let found = format!("{}: {}", member.address(), one.found);
                worst = Finding { found, ..one };
            }
        }
        worst.fixed = finding.fixed.take();
        *finding = worst;
        Ok(())
    }

    fn is_loading(&self) -> bool {
        let info = self.vitals.info.as_ref();
        info.is_ok_and(|info| info.text("loading") == "1")
    }

    fn judge(&self) -> Vec<Finding> {
        let mut found = judge(&self.vitals, self.wanted());
        // Of each check the worst.
        for (address, vitals) in &self.others {
            for mut finding in judge(vitals, self.wanted()) {
                let same = found.iter_mut().find(|it| it.check.id == finding.check.id);
                if let Some(same) = same.filter(|it| it.severity < finding.severity) {
                    finding.found = format!("{address}: {}", finding.found);
                    *same = finding;
                }
            }
        }
        clock::look(&self.clocks, &mut found);
        found.push(self.are_there());
        found
    }

    fn are_there(&self) -> Finding {
        if self.away.is_empty() {
            return Finding::fine(&SERVERS_THERE, "all that are asked answer");
        }
        let told = self
            .away
            .iter()
            .map(|(address, error)| format!("{address}: {error}"));
        let told = told.collect::<Vec<_>>().join("; ");
        Finding::error(&SERVERS_THERE, told, "start them, or mend the way to them")
    }
}

/// What one server tells of itself, or each primary of a cluster, and which of these are away. One of
/// them at least answers: a node that is dead may still be taken for a primary by one that has not
/// heard who took over, as of a slot that was on its way.
async fn vitals_of(store: &Store) -> Result<(Vec<(String, ServerReport)>, Vec<Absent>)> {
    let until = Instant::now() + PATIENCE;
    let servers = store.servers(until).await?;
    let asked = servers
        .iter()
        .map(|server| store.vitals(server, &SETTINGS, until));
    let (mut there, mut away) = (Vec::new(), Vec::new());
    for (server, told) in servers.iter().zip(join_all(asked).await) {
        let address = store.address_of(server);
        match told {
            Ok(vitals) => there.push((address, vitals)),
            Err(error) if is_of_absence(&error) => away.push((address, error)),
            Err(error) => return Err(error),
        }
    }
    match there.is_empty() {
        true => Err(away.swap_remove(0).1),
        false => Ok((there, away)),
    }
}

fn judge(vitals: &ServerReport, wanted: WantedEvents) -> Vec<Finding> {
    let mut found = Vec::new();
    events::look(vitals, wanted, &mut found);
    match &vitals.info {
        Ok(info) => {
            server::look(info, vitals, &mut found);
            memory::look(info, &mut found);
            disk::look(info, vitals, &mut found);
            replication::look(info, vitals, &mut found);
        }
        Err(why) => {
            // All that INFO tells of, and what is judged with its help.
            let known: Vec<&str> = found.iter().map(|finding| finding.check.id).collect();
            let up_to = CHECKS.iter().position(|it| it.id == "clock-offset");
            let unseen = CHECKS.iter().take(up_to.unwrap_or(0));
            let unseen = unseen.filter(|check| !known.contains(&check.id));
            found.extend(unseen.map(|check| Finding::unseen(check, why)));
        }
    }
    if vitals.hides_settings() {
        found.iter_mut().for_each(Finding::without_config);
    }
    found
}

/// What is stored, who runs it, and who may.
async fn of_jobs(client: &Client, seen: &ServerFacts, found: &mut Vec<Finding>) -> Result<()> {
    let store = client.store();
    let clocks = clocks(store, TICKS).await?;
    clock::look(&clocks, found);
    // Good enough to tell hours and days.
    let now = match &clocks {
        Ok(clocks) => clocks.first().and_then(|clock| clock.ticks.first()),
        Err(_) => None,
    };
    let now = now.map(|tick| tick.server);
    let now = now.unwrap_or_else(|| {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        UnixUs(0).plus(now)
    });
    let live = &seen.live;
    let torn = slots::look(store, found).await?;
    let ledgers = ledgers::ledgers(client, now, &torn).await?;
    let kinds = ledgers.as_ref().map_or(&[][..], |all| &all.looked);
    let kinds: Vec<Kind> = kinds.iter().map(|one| one.kind.clone()).collect();
    match &ledgers {
        Ok(ledgers) => {
            let unrouted = match client.unrouted_of(kinds.clone(), client.deadline()).await {
                Ok(unrouted) => Ok(unrouted.kinds),
                Err(error) => unseen(error)?,
            };
            let live = live.as_ref().map_or(&[][..], |live| live);
            ledgers::look(ledgers, &unrouted, live, now, found);
            found.push(ledgers::sizes(ledgers, store.is_cluster()));
        }
        Err(why) => {
            for check in [
                &KIND_SHARDS,
                &SHARD_SIZE,
                &BOOKS,
                &OVERDUE_JOBS,
                &UNROUTED_JOBS,
                &DEAD_LETTERS_NEW,
                &DEAD_LETTERS_FULL,
                &FOREIGN_VALUES,
            ] {
                found.push(Finding::unseen(check, why));
            }
        }
    }
    match live {
        Ok(live) => {
            instances::look(live, ledgers.as_ref().ok(), found);
            let others = seen.others.iter();
            let others = others.map(|(address, vitals)| (address, &vitals.info));
            adoption::look(live, &seen.vitals.info, others, found);
        }
        Err(why) => {
            for check in [
                &WORKERS_ALIVE,
                &WORKERS_HEAR,
                &WORKERS_ALIKE,
                &BREAKERS_CLOSED,
                &ADOPTED_KEYS,
                &ADOPTERS_ALIKE,
            ] {
                found.push(Finding::unseen(check, why));
            }
        }
    }
    match &seen.vitals.info {
        Ok(info) => crowd::look(info, store.database(), triggers(&ledgers), found),
        Err(why) => found.push(Finding::unseen(&EXPIRY_CROWD, why)),
    }
    let adopted = live
        .as_ref()
        .map_or(Vec::new(), |live| adoption::keys(live));
    rights::look(store, &kinds, &adopted, client, found).await?;
    functions::look(client, found).await
}

/// The clock of each primary that is there, asked so often.
async fn clocks(store: &Arc<Store>, times: usize) -> Result<Observed<Vec<ServerClock>>> {
    let mut clocks = Vec::new();
    for member in store.members() {
        match clocks_of(&member, times).await {
            // What is away is said as such.
            Err(error) if store.is_several() && is_of_absence(&error) => {}
            Ok(Ok(told)) => clocks.extend(told),
            other => return other,
        }
    }
    Ok(Ok(clocks))
}

async fn clocks_of(store: &Store, times: usize) -> Result<Observed<Vec<ServerClock>>> {
    let (mut clocks, mut away) = (Vec::new(), None);
    for server in store.servers(Instant::now() + PATIENCE).await? {
        let mut ticks = Vec::new();
        for _ in 0..times {
            match store.tick(&server, Instant::now() + PATIENCE).await {
                Ok(tick) => ticks.push(tick),
                Err(error) if is_of_absence(&error) => {
                    away = Some(error);
                    break;
                }
                Err(error) => return unseen(error),
            }
        }
        if !ticks.is_empty() {
            let address = store.address_of(&server);
            clocks.push(ServerClock { address, ticks });
        }
    }
    match away.filter(|_| clocks.is_empty()) {
        Some(error) => Err(error),
        None => Ok(Ok(clocks)),
    }
}

/// How many triggers there should be: one for each job that is not due yet.
fn triggers(ledgers: &Observed<ledgers::Ledgers>) -> u64 {
    let looked = ledgers.as_ref().map_or(&[][..], |all| &all.looked);
    let stats = looked.iter().filter_map(|one| one.stats.as_ref().ok());
    stats.map(|one| one.pending - one.overdue).sum()
}
