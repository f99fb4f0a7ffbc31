//! Checks of the live workers: their number, whether they hear events, their versions, and hosts of
//! callbacks that they pause.

use std::collections::{BTreeMap, BTreeSet};

use super::checks::{BREAKERS_CLOSED, WORKERS_ALIKE, WORKERS_ALIVE, WORKERS_HEAR, ZONES_ALIKE};
use super::finding::{Finding, named};
use super::ledgers::Ledgers;
use crate::client::Instance;
use crate::phrase::Phrase;

/// The most workers, or hosts, that a finding names.
const NAMED: usize = 5;

/// Adds the findings: workers that do not hear events and hosts that are down are warnings;
/// different versions of workers are only information, since that is normal during a deployment.
/// `ledgers` tells whether jobs wait while no worker lives.
pub(super) fn look(live: &[Instance], ledgers: Option<&Ledgers>, found: &mut Vec<Finding>) {
    found.push(alive(live, ledgers));
    let deaf: Vec<&Instance> = live.iter().filter(|one| !one.hears_events).collect();
    found.push(if deaf.is_empty() {
        let all = live.len();
        let shown = [all.into(), all.into()];
        Finding::fine(
            &WORKERS_HEAR,
            Phrase::new("found.hear", "{} of {} workers hear events", shown),
        )
    } else {
        let names: Vec<String> = deaf.iter().take(NAMED).map(|one| name(one)).collect();
        let shown = Phrase::new(
            "found.deaf",
            "{} of {} workers hear no events: {}",
            [
                deaf.len().into(),
                live.len().into(),
                names.join(", ").into(),
            ],
        );
        let remedy = Phrase::new(
            "remedy.deaf",
            "find the refused commands in the logs of these workers, and the missing rights by the \
             check rights-run",
            [],
        );
        Finding::warning(&WORKERS_HEAR, shown, remedy)
    });
    found.push(breakers(live));
    let versions: BTreeSet<&str> = live.iter().map(|one| one.version.as_str()).collect();
    let shown = Vec::from_iter(versions.iter().copied()).join(", ");
    found.push(match versions.len() {
        0 => Finding::fine(&WORKERS_ALIKE, nobody()),
        1 => Finding::fine(&WORKERS_ALIKE, shown),
        _ => Finding::info(&WORKERS_ALIKE, shown),
    });
    found.push(zones(live));
}

/// The finding about the time zone databases of the workers that know their version.
fn zones(live: &[Instance]) -> Finding {
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for one in live.iter().filter(|one| !one.zones.is_empty()) {
        versions.entry(&one.zones).or_default().push(name(one));
    }
    let who = |(version, workers): (&&str, &Vec<String>)| {
        let named = workers.iter().take(NAMED).cloned().collect::<Vec<_>>();
        format!("{version} ({})", named.join(", "))
    };
    match versions.len() {
        0 => {
            let none = "no worker knows the version of its database";
            Finding::fine(&ZONES_ALIKE, Phrase::new("found.no-zones", none, []))
        }
        1 => Finding::fine(&ZONES_ALIKE, Vec::from_iter(versions.into_keys()).join("")),
        _ => Finding::warning(
            &ZONES_ALIKE,
            versions.iter().map(who).collect::<Vec<_>>().join("; "),
            Phrase::new(
                "remedy.tzdata",
                "install the same version of the package tzdata on the machines of these workers, \
                 and restart them",
                [],
            ),
        ),
    }
}

/// The finding about hosts of callbacks that are paused because they are down.
fn breakers(live: &[Instance]) -> Finding {
    let open: BTreeSet<&str> = live
        .iter()
        .flat_map(|one| one.open_breakers.iter().map(String::as_str))
        .collect();
    if open.is_empty() {
        let all = Phrase::new("found.no-breakers", "workers call all hosts", []);
        return Finding::fine(&BREAKERS_CLOSED, all);
    }
    let first: Vec<&str> = open.iter().take(NAMED).copied().collect();
    let hosts = named(&first.join(" "), open.len().saturating_sub(NAMED));
    Finding::warning(
        &BREAKERS_CLOSED,
        Phrase::new(
            "found.breakers",
            "hosts that workers do not call: {}",
            [hosts],
        ),
        Phrase::new(
            "remedy.breakers",
            "restart the host; after `keyfall breakers close HOST` workers call it again at once",
            [],
        ),
    )
}

/// The finding about the number of workers. None at all is an error if jobs are overdue, and a
/// warning if jobs wait.
fn alive(live: &[Instance], ledgers: Option<&Ledgers>) -> Finding {
    if !live.is_empty() {
        let more = live.len().saturating_sub(NAMED);
        let rest = (more > 0).then(|| Phrase::new("list.rest", "and {} more", [more.into()]));
        let names = live.iter().take(NAMED).map(name_and_routes);
        let shown = Phrase::joined(names.chain(rest)).expect("at least one");
        return Finding::fine(&WORKERS_ALIVE, shown);
    }
    let looked = ledgers.map_or(&[][..], |ledgers| &ledgers.looked);
    let stats = looked.iter().filter_map(|one| one.stats.as_ref().ok());
    let (waiting, overdue) = stats.fold((0, 0), |(waiting, overdue), one| {
        (waiting + one.pending, overdue + one.overdue)
    });
    let shown = Phrase::new(
        "found.nobody",
        "no worker is alive; waiting jobs: {}, overdue: {}",
        [waiting.into(), overdue.into()],
    );
    let remedy = Phrase::new(
        "remedy.start",
        "start a worker, or `keyfall serve` for consumers that pull",
        [],
    );
    match (waiting, overdue) {
        (0, _) => Finding::info(&WORKERS_ALIVE, shown),
        (_, 0) => Finding::warning(&WORKERS_ALIVE, shown, remedy),
        _ => Finding::error(&WORKERS_ALIVE, shown, remedy),
    }
}

/// A worker as operators know it, `host:process id`.
fn name(one: &Instance) -> String {
    format!("{}:{}", one.host, one.pid)
}

/// A worker with its routes, and whether it has a fallback for all other jobs.
fn name_and_routes(one: &Instance) -> Phrase {
    let names = [name(one).into(), one.routes.join(" ").into()];
    match one.has_fallback {
        true => Phrase::new("found.worker-all", "{} has {} and a fallback", names),
        false => Phrase::new("found.worker", "{} has {}", names),
    }
}

/// That no worker lives.
fn nobody() -> Phrase {
    Phrase::new("found.no-worker", "no worker is alive", [])
}
