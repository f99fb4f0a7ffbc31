//! Checks of adoption: eviction of plain keys that routes adopt, and workers that disagree about a
//! missing key.

use std::collections::BTreeSet;

use super::checks::{ADOPTED_KEYS, ADOPTERS_ALIKE};
use super::finding::{Finding, named};
use crate::client::Instance;
use crate::key::Kind;
use crate::phrase::Phrase;
use crate::routing::Pattern;
use crate::store::{Evicted, Info, Observed};

/// The most routes that a finding names.
const NAMED: usize = 5;

/// Adds the findings, from the live workers and the reports of all servers. `others` has the
/// address and the report of each further server.
pub(super) fn look<'a>(
    live: &[Instance],
    server: &Observed<Info>,
    others: impl Iterator<Item = (&'a String, &'a Observed<Info>)>,
    found: &mut Vec<Finding>,
) {
    let judge = |info: &Observed<Info>| match info {
        Ok(info) => evicted(live, info),
        Err(why) => Finding::unseen(&ADOPTED_KEYS, why),
    };
    let mut worst = judge(server);
    for (address, info) in others {
        let one = judge(info);
        if one.severity > worst.severity {
            worst = one.at(address);
        }
    }
    found.push(worst);
    found.push(alike(live));
}

/// Whether a live worker adopts keys of this kind. Then a foreign value under such a key is no
/// mistake.
pub(super) fn is_adopted(live: &[Instance], kind: &Kind) -> bool {
    let patterns = live.iter().flat_map(|one| &one.adopts);
    let mut patterns = patterns.filter_map(|text| Pattern::parse(text).ok());
    patterns.any(|pattern| pattern.matches_kind(kind.as_str()))
}

/// The glob patterns of all keys that live workers adopt, sorted, without repeats.
pub(super) fn keys(live: &[Instance]) -> Vec<String> {
    let patterns = live.iter().flat_map(|one| &one.adopts);
    let globs = patterns.filter_map(|text| Some(Pattern::parse(text).ok()?.to_glob()));
    Vec::from_iter(globs.collect::<BTreeSet<_>>())
}

/// The finding about eviction: a warning if Redis can evict plain keys that workers adopt. An
/// evicted key is a missing one: its job is lost if no worker had read the key before, and
/// cancelled on routes where a missing key means `cancel`.
fn evicted(live: &[Instance], info: &Info) -> Finding {
    let adopted: BTreeSet<&String> = live.iter().flat_map(|one| &one.adopts).collect();
    if adopted.is_empty() {
        let nobody = Phrase::new("found.no-adopter", "no live worker adopts keys", []);
        return Finding::fine(&ADOPTED_KEYS, nobody);
    }
    let policy = info.text("maxmemory_policy");
    let shown = Phrase::new(
        "found.adopted",
        "adopted: {}; maxmemory-policy {}",
        [listed(&adopted), policy.into()],
    );
    match (info.evicted(), info.is_limited()) {
        (Evicted::Nothing, _) => Finding::fine(&ADOPTED_KEYS, shown),
        (_, false) => {
            let shown = Phrase::new("found.unlimited", "{}, without maxmemory", [shown]);
            Finding::fine(&ADOPTED_KEYS, shown)
        }
        (_, true) => Finding::warning(
            &ADOPTED_KEYS,
            shown,
            "CONFIG SET maxmemory-policy noeviction",
        ),
    }
}

/// The finding about routes that some workers treat with `run` and others with `cancel`.
fn alike(live: &[Instance]) -> Finding {
    let cancels: BTreeSet<&String> = live.iter().flat_map(|one| &one.cancels_missing).collect();
    let runs = live.iter().flat_map(|one| {
        let runs = one.adopts.iter();
        runs.filter(|route| !one.cancels_missing.contains(route))
    });
    let runs: BTreeSet<&String> = runs.collect();
    let both: BTreeSet<&String> = cancels.intersection(&runs).copied().collect();
    if both.is_empty() {
        let alike = Phrase::new("found.alike", "all workers agree on each route", []);
        return Finding::fine(&ADOPTERS_ALIKE, alike);
    }
    Finding::warning(
        &ADOPTERS_ALIKE,
        Phrase::new("found.both", "`run` and `cancel` of: {}", [listed(&both)]),
        Phrase::new(
            "remedy.same-adoption",
            "give the route the same `adoption`, in the library `Handler::adopt`, in every worker",
            [],
        ),
    )
}

/// The first routes of a list, and the number of the rest.
fn listed(routes: &BTreeSet<&String>) -> Phrase {
    let first: Vec<&str> = routes.iter().take(NAMED).map(|it| it.as_str()).collect();
    named(&first.join(" "), routes.len().saturating_sub(NAMED))
}
