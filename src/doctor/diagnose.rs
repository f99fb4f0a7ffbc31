//! One run of the doctor: asks Redis, its workers and its ledgers, and lets each part judge.
//!
//! A worker that starts runs the part [`of_server`] alone.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::checks::{
    ADOPTED_KEYS, ADOPTERS_ALIKE, BOOKS, BREAKERS_CLOSED, CHECKS, DEAD_LETTERS_FULL,
    DEAD_LETTERS_NEW, EXPIRY_CROWD, FOREIGN_VALUES, KIND_SHARDS, NOTIFY_FLAGS, OVERDUE_JOBS,
    RULES_COMPUTED, SERVERS_THERE, SETTINGS, SHARD_SIZE, UNROUTED_JOBS, WORKERS_ALIKE,
    WORKERS_ALIVE, WORKERS_HEAR, ZONES_ALIKE,
};
use super::clock::{self, ServerClock};
use super::finding::{Finding, Severity};
use super::ledgers::{self, unseen};
use super::{
    adoption, archive, copy, crowd, disk, events, functions, instances, memory, mend, replication,
    rights, rules, server, slots,
};
use crate::client::{Client, ClientBuilder, Instance};
use crate::error::{Error, Result};
use crate::key::Kind;
use crate::phrase::Phrase;
use crate::store::{Observed, Server, ServerReport, Store, WantedEvents, is_of_absence};
use crate::time::UnixUs;

/// How long Redis may take to answer one question.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How often the clock is asked. The quickest answer counts, since it is the most exact one.
const TICKS: usize = 5;

/// A call to [`Client::diagnose`] or [`ClientBuilder::diagnose`], which starts when it is awaited.
///
/// ```no_run
/// # async fn example() -> keyfall::Result<()> {
/// let client = keyfall::Client::connect("redis://127.0.0.1:6379").await?;
/// let diagnosis = client.diagnose().only(["notify-flags", "pubsub-buffer"]).fix().await?;
/// for finding in &diagnosis.findings {
///     println!("{finding}");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is looked at until it is awaited"]
pub struct Diagnose {
    /// The client, or the error of making it, which the call returns.
    client: Result<Client>,
    fix: bool,
    /// The ids of the wanted checks; `None` for all.
    only: Option<Vec<String>>,
}

/// The findings of one run of the doctor.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The address of Redis, without credentials.
    pub server: String,
    /// One finding for each of [`CHECKS`], in their order. Fewer after [`only`](Diagnose::only), or
    /// if the server is still loading its data.
    pub findings: Vec<Finding>,
}

impl Client {
    /// Runs the doctor: finds settings of Redis, missing rights, clocks and jobs that can cause
    /// trouble. The module [`doctor`](crate::doctor) says more.
    ///
    /// # Errors
    /// When it is awaited: if Redis does not answer in time, or refuses the connection. Facts that
    /// Redis refuses to show are findings, not errors.
    pub fn diagnose(&self) -> Diagnose {
        Diagnose::new(Ok(self.clone()))
    }
}

impl ClientBuilder {
    /// Runs the doctor as [`Client::diagnose`] does, also on a server that
    /// [`connect`](Self::connect) refuses, such as a replica or one with an unknown schema. No
    /// client is left connected.
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

    /// Repairs two settings, without harm to other users of the server: it adds the missing
    /// notification flags to the flags that are set, and raises the output buffer of subscribers.
    /// Both last until Redis restarts; each [finding](Finding::fixed) says how to make them last.
    /// Off by default.
    pub fn fix(mut self) -> Self {
        self.fix = true;
        self
    }

    /// Limits findings and [repairs](Self::fix) to the checks with these ids. Unknown ids are
    /// ignored; [`CHECKS`] lists all. Defaults to all checks.
    pub fn only(mut self, ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.only = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Looks, repairs if asked to, looks again after a repair, and sorts the findings.
    async fn run(self) -> Result<Diagnosis> {
        let Diagnose { client, fix, only } = self;
        let client = client?;
        let is_wanted = |finding: &Finding| {
            let mut ids = only.iter().flatten();
            only.is_none() || ids.any(|id| id == finding.check.id)
        };
        let store = client.store();
        let mut seen = ServerFacts::look(store.servers()).await?;
        seen.meet(&client).await?;
        let mut findings = seen.judge();
        if fix {
            let broken = findings.iter().filter(|it| is_wanted(it));
            let done = mend::mend(store, &seen.vitals, seen.wanted(), broken).await;
            if !done.is_empty() {
                seen = ServerFacts::look(store.servers()).await?;
                seen.meet(&client).await?;
                findings = seen.judge();
            }
            for (id, what) in done {
                let finding = findings.iter_mut().find(|it| it.check.id == id);
                let finding = finding.expect("one for each check");
                finding.is_fixed = what.is_ok();
                finding.fixed = Some(what.unwrap_or_else(|error| {
                    Phrase::new("fixed.refused", "refused: {}", [error.to_string().into()])
                }));
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
    /// The severity of the worst finding; [`Severity::Ok`] without any.
    ///
    /// ```no_run
    /// use keyfall::doctor::Severity;
    ///
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// if client.diagnose().await?.worst() >= Severity::Warning {
    ///     eprintln!("Redis needs attention: see `keyfall doctor`");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(|finding| finding.severity);
        severities.max().unwrap_or(Severity::Ok)
    }
}

/// The findings about the server and its settings, for a worker that has just connected, in two
/// round trips. The length of a round trip is left out, because a starting worker cannot measure
/// it; jobs and rights are left out, because a running worker watches them anyway.
pub(crate) async fn of_server(server: &Arc<Server>) -> Result<Vec<Finding>> {
    let servers = std::slice::from_ref(server);
    let mut seen = ServerFacts::look(servers).await?;
    seen.clocks = clocks(servers, 1).await?;
    let is_round_trip = |finding: &Finding| finding.check.id == super::checks::ROUND_TRIP.id;
    let mut findings = seen.judge();
    findings.retain(|finding| !is_round_trip(finding));
    Ok(findings)
}

/// A server that does not answer: its address, and the error.
type Absent = (String, Error);

/// The reports of all servers and all live workers, which most checks judge.
struct ServerFacts {
    /// The report of the first server that answers.
    vitals: ServerReport,
    /// The reports of the other primaries of a cluster, or of the other servers, with their
    /// addresses.
    others: Vec<(String, ServerReport)>,
    /// Servers, or nodes that a cluster takes for primaries, that do not answer.
    away: Vec<Absent>,
    /// Empty until they are asked for.
    clocks: Observed<Vec<ServerClock>>,
    /// The live workers; empty while the server loads its data.
    live: Observed<Vec<Instance>>,
}

impl ServerFacts {
    /// Asks all servers for their reports.
    ///
    /// # Errors
    /// If no server answers, or one fails for another reason than absence.
    async fn look(servers: &[Arc<Server>]) -> Result<Self> {
        let (mut all, mut away) = (Vec::new(), Vec::new());
        for server in servers {
            match vitals_of(server).await {
                Ok((there, absent)) => {
                    all.extend(there);
                    away.extend(absent);
                }
                Err(error) if servers.len() > 1 && is_of_absence(&error) => {
                    away.push((server.address(), error));
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

    /// Asks for the live workers. Their routes decide which events the server must announce.
    async fn meet(&mut self, client: &Client) -> Result<()> {
        if !self.is_loading() {
            self.live = match client.instances().await {
                Ok(live) => Ok(live.instances),
                Err(error) => unseen(error)?,
            };
        }
        Ok(())
    }

    /// The events that Redis must announce for the live workers: changes of keys if one of them
    /// adopts plain keys, and otherwise only their expiry.
    fn wanted(&self) -> WantedEvents {
        let live = self.live.as_ref().map_or(&[][..], Vec::as_slice);
        match live.iter().any(|one| !one.adopts.is_empty()) {
            true => WantedEvents::Changes,
            false => WantedEvents::Expiry,
        }
    }

    /// Tests the notification flags by a key that expires, where the server does not show them and
    /// live workers adopt keys. Replaces the finding that they were not seen.
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
        // Of several servers, the worst one is reported.
        let mut worst = Finding::fine(
            &NOTIFY_FLAGS,
            Phrase::new(
                "found.proved",
                "the server does not show the flags, but a test key proved them: its events arrived",
                [],
            ),
        );
        for server in store.servers() {
            let until = Instant::now() + PATIENCE;
            let one = match server.prove(&adopted, until).await {
                Ok(proof) => match proof.unheard() {
                    None => continue,
                    Some(unheard) => events::unannounced(Phrase::new(
                        "found.unheard",
                        "a test key expired, and these events did not arrive: {}",
                        [unheard.to_string().into()],
                    )),
                },
                // Another check reports absent servers.
                Err(error) if store.is_several() && is_of_absence(&error) => continue,
                Err(error) => Finding::warning(
                    &NOTIFY_FLAGS,
                    Phrase::new(
                        "found.unproved",
                        "the server does not show the flags, workers adopt {}, and a test key \
                         could not prove the flags: {}",
                        [adopted.join(" ").into(), error.to_string().into()],
                    ),
                    Phrase::new(
                        "remedy.adopter",
                        "run the doctor as a user with the rules of keyfall-adopter in acl.conf",
                        [],
                    ),
                ),
            };
            if one.severity > worst.severity {
                worst = one.at(&server.address());
            }
        }
        worst.fixed = finding.fixed.take();
        worst.is_fixed = finding.is_fixed;
        *finding = worst;
        Ok(())
    }

    /// Whether the first server is still loading its data.
    fn is_loading(&self) -> bool {
        let info = self.vitals.info.as_ref();
        info.is_ok_and(|info| info.text("loading") == "1")
    }

    /// The findings about the servers. Of several servers, each check reports the worst one.
    fn judge(&self) -> Vec<Finding> {
        let mut found = judge(&self.vitals, self.wanted());
        // For each check, the worst server.
        for (address, vitals) in &self.others {
            for finding in judge(vitals, self.wanted()) {
                let same = found.iter_mut().find(|it| it.check.id == finding.check.id);
                if let Some(same) = same.filter(|it| it.severity < finding.severity) {
                    *same = finding.at(address);
                }
            }
        }
        clock::look(&self.clocks, &mut found);
        found.push(self.are_there());
        found
    }

    /// The finding about servers that do not answer.
    fn are_there(&self) -> Finding {
        if self.away.is_empty() {
            let all = Phrase::new("found.servers", "all servers answer", []);
            return Finding::fine(&SERVERS_THERE, all);
        }
        let told = self
            .away
            .iter()
            .map(|(address, error)| format!("{address}: {error}"));
        let told = told.collect::<Vec<_>>().join("; ");
        Finding::error(
            &SERVERS_THERE,
            told,
            Phrase::new(
                "remedy.servers",
                "start these servers, or repair the network to them",
                [],
            ),
        )
    }
}

/// The report of one server, or of each primary of a cluster, and the primaries that do not answer.
///
/// A dead node is no error while another one answers: a node that has not heard of the failover,
/// for example for a slot on its way, may still take it for a primary.
///
/// # Errors
/// If none answers, or one fails for another reason than absence.
async fn vitals_of(server: &Server) -> Result<(Vec<(String, ServerReport)>, Vec<Absent>)> {
    let until = Instant::now() + PATIENCE;
    let nodes = server.data_nodes(until).await?;
    let asked = nodes
        .iter()
        .map(|node| server.vitals(node, &SETTINGS, until));
    let (mut there, mut away) = (Vec::new(), Vec::new());
    for (node, told) in nodes.iter().zip(join_all(asked).await) {
        let address = server.address_of(node);
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

/// The findings from the report of one server. Checks that need `INFO` are unseen without it.
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
            // All checks that read INFO, alone or with other facts.
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

/// Adds the findings about clocks, ledgers, workers, adoption, rights and functions.
async fn of_jobs(client: &Client, seen: &ServerFacts, found: &mut Vec<Finding>) -> Result<()> {
    let store = client.store();
    let clocks = clocks(store.servers(), TICKS).await?;
    clock::look(&clocks, found);
    // Exact enough for ages in hours and days.
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
            found.push(rules::look(client, !torn.is_empty()).await);
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
                &RULES_COMPUTED,
            ] {
                found.push(Finding::unseen(check, why));
            }
        }
    }
    archive::look(client, now, found).await?;
    copy::look(client, now, found).await?;
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
                &ZONES_ALIKE,
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

/// Asks the clock of each primary that answers, `times` times.
async fn clocks(servers: &[Arc<Server>], times: usize) -> Result<Observed<Vec<ServerClock>>> {
    let mut clocks = Vec::new();
    for server in servers {
        match clocks_of(server, times).await {
            // Another check reports absent servers.
            Err(error) if servers.len() > 1 && is_of_absence(&error) => {}
            Ok(Ok(told)) => clocks.extend(told),
            other => return other,
        }
    }
    Ok(Ok(clocks))
}

/// The clocks of one server, or of the primaries of one cluster.
///
/// # Errors
/// If none of them answers.
async fn clocks_of(server: &Server, times: usize) -> Result<Observed<Vec<ServerClock>>> {
    let (mut clocks, mut away) = (Vec::new(), None);
    for node in server.data_nodes(Instant::now() + PATIENCE).await? {
        let mut ticks = Vec::new();
        for _ in 0..times {
            match server.tick(&node, Instant::now() + PATIENCE).await {
                Ok(tick) => ticks.push(tick),
                Err(error) if is_of_absence(&error) => {
                    away = Some(error);
                    break;
                }
                Err(error) => return unseen(error),
            }
        }
        if !ticks.is_empty() {
            let address = server.address_of(&node);
            clocks.push(ServerClock { address, ticks });
        }
    }
    match away.filter(|_| clocks.is_empty()) {
        Some(error) => Err(error),
        None => Ok(Ok(clocks)),
    }
}

/// The expected number of triggers: one for each job that is not due yet, in the kinds that were
/// read.
fn triggers(ledgers: &Observed<ledgers::Ledgers>) -> u64 {
    let looked = ledgers.as_ref().map_or(&[][..], |all| &all.looked);
    let stats = looked.iter().filter_map(|one| one.stats.as_ref().ok());
    stats.map(|one| one.pending - one.overdue).sum()
}
