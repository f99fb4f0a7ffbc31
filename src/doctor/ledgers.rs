//! Checks of the jobs, kind by kind: counts, and samples of the stored data. The cost is bounded,
//! so a finding says how many of the kinds were read.

use std::collections::HashSet;
use std::time::Duration;

use super::adoption;
use super::checks::{
    BOOKS, Check, DEAD_LETTERS_FULL, DEAD_LETTERS_NEW, EMPTY_KINDS, FOREIGN_VALUES, KIND_SHARDS,
    LIMITS, OVERDUE_JOBS, SHARD_SIZE, UNROUTED_JOBS,
};
use super::finding::{Finding, Thing, other_version, things};
use crate::client::{Client, Instance, Stats, Unrouted};
use crate::durations::written;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::phrase::Phrase;
use crate::settings::WorkerSettings;
use crate::shards::{Layout, MAX_SHARDS};
use crate::store::{LedgerSample, Observed, is_of_absence};
use crate::time::{UnixMs, UnixUs};

/// The most kinds that are read.
pub(super) const KINDS: usize = 256;

/// The number of jobs in each kind whose keys are read: the next ones that fall due.
const NAMES: usize = 16;

/// How long the oldest job of a kind may be overdue.
const OVERDUE: Duration = Duration::from_secs(60);

/// How long a job may wait for the limit of its kind.
const STARVED: Duration = Duration::from_secs(3600);

/// How long a dead letter counts as new.
const NEW: Duration = Duration::from_secs(3600);
/// The number of new dead letters in a kind from which on the finding is a warning.
const MANY: u64 = 10;

/// The most jobs that a shard should have. `docs/capacity.md` says how long its records take to
/// move.
const LARGE: u64 = 250_000;

/// How long a kind may be empty before its removal is suggested.
const EMPTY: Duration = Duration::from_secs(30 * 86_400);

/// The most kinds that a finding names.
const NAMED: usize = 3;

/// The facts about one kind.
pub(super) struct Looked {
    pub(super) kind: Kind,
    /// The layout of its shards, as the hash `keyfall:kinds` has it.
    shards: String,
    pub(super) stats: Observed<Stats>,
    /// The samples of all its shards, summed up.
    sample: Observed<LedgerSample>,
    /// The time of its last use; `None` unless the kind is empty and the time is known.
    used: Option<UnixMs>,
}

/// The facts about all kinds that were read.
pub(super) struct Ledgers {
    pub(super) looked: Vec<Looked>,
    /// The number of all kinds, including kinds beyond the limit.
    pub(super) all: usize,
}

/// Reads the ledgers, and changes nothing. The kinds in `torn`, which have an incomplete ledger, do
/// not answer and are left out; another check reports them.
///
/// # Errors
/// If Redis does not answer. A refusal is no error, but an unseen fact.
pub(super) async fn ledgers(
    client: &Client,
    now: UnixUs,
    torn: &HashSet<String>,
) -> Result<Observed<Ledgers>> {
    let kinds = match client.store().shards(client.deadline()).await {
        Ok(kinds) => kinds,
        Err(error) => return unseen(error),
    };
    // A name that is no kind is foreign, and can have no ledger.
    let kinds = kinds.into_iter();
    let kinds = kinds.filter_map(|(name, shards)| Some((Kind::parse(&name).ok()?, shards)));
    let kinds = kinds.filter(|(kind, _)| !torn.contains(kind.as_str()));
    let mut kinds: Vec<(Kind, String)> = kinds.collect();
    kinds.sort();
    let all = kinds.len();
    let since = UnixMs(now.floor_ms().0.saturating_sub(NEW.as_millis() as u64));
    let mut looked = Vec::new();
    for (kind, shards) in kinds.into_iter().take(KINDS) {
        let stats = match client.stats(kind.as_str()).await {
            Ok(stats) => Ok(stats),
            Err(error) => unseen(error)?,
        };
        let layout = client.store().layout_of(kind.as_str());
        let mut sample: Observed<LedgerSample> = Ok(LedgerSample::default());
        for shard in 0..layout.ledgers() {
            let ledger = client.store().ledger(&kind, layout.place(shard));
            let more = match ledger.sample(since, NAMES, client.deadline()).await {
                // Another check reports absent servers.
                Err(error) if ledger.is_one_of_many() && is_of_absence(&error) => continue,
                more => more?,
            };
            sample = sample.and_then(|sample| Ok(sample.and(more?)));
        }
        let used = match &stats {
            Ok(stats) if stats.is_empty() => last_used(client, &kind, layout).await,
            _ => None,
        };
        looked.push(Looked {
            kind,
            shards,
            stats,
            sample,
            used,
        });
    }
    Ok(Ok(Ledgers { looked, all }))
}

/// The time of the last use of a kind, as far as its ledgers remember it. `None` if it cannot be
/// read now: a later run of the doctor will report the kind.
async fn last_used(client: &Client, kind: &Kind, layout: Layout) -> Option<UnixMs> {
    let mut last = None;
    for shard in 0..layout.ledgers() {
        let ledger = client.store().ledger(kind, layout.place(shard));
        last = last.max(ledger.last_called(client.deadline()).await.ok()?);
    }
    last
}

/// Separates errors: the error of a Redis that does not answer ends the run; a refusal or damage is
/// an unseen fact, with the error as its reason.
pub(super) fn unseen<T>(error: Error) -> Result<Observed<T>> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => Err(error),
        _ => Ok(Err(error.to_string())),
    }
}

/// Adds the findings about jobs:
///
/// - unknown layouts of shards, and counts that do not balance: errors;
/// - kinds that have been empty for more than [`EMPTY`]: information;
/// - jobs overdue by more than [`OVERDUE`] although their kind has a route, is not paused, and no
///   limit holds them back, jobs that wait for a limit for more than [`STARVED`], and jobs without a
///   route: warnings;
/// - dead letters, see [`letters`];
/// - foreign values under the keys of jobs: a warning.
///
/// Without any live worker, overdue and unrouted jobs are not reported: another check reports that
/// nobody runs jobs.
pub(super) fn look(
    ledgers: &Ledgers,
    unrouted: &Observed<Vec<Unrouted>>,
    live: &[Instance],
    now: UnixUs,
    found: &mut Vec<Finding>,
) {
    let judge = Judge(ledgers);
    let is_served = !live.is_empty();
    found.push(judge.shards());
    found.push(judge.by_stats(&BOOKS, |kind, stats| {
        (!stats.is_balanced()).then(|| {
            let shown = Phrase::new(
                "found.books",
                "{}: {} jobs and {} dead letters are not accounted for",
                [
                    kind.as_str().into(),
                    stats.difference().to_string().into(),
                    stats.letters_difference().to_string().into(),
                ],
            );
            Finding::error(&BOOKS, shown, format!("keyfall audit {kind}:"))
        })
    }));
    found.push(judge.empty(now));
    let has_route = |kind: &Kind| match unrouted {
        Ok(unrouted) => unrouted.iter().all(|one| one.kind != *kind),
        Err(_) => true,
    };
    found.push(judge.by_stats(&OVERDUE_JOBS, |kind, stats| {
        let is_late = stats.overdue_for > OVERDUE && !stats.paused && stats.held == 0;
        (is_late && is_served && has_route(kind)).then(|| {
            let shown = Phrase::new(
                "found.overdue",
                "{}: {}, the oldest for {} s",
                [
                    kind.as_str().into(),
                    things(stats.overdue, Thing::Job),
                    stats.overdue_for.as_secs().into(),
                ],
            );
            let remedy = match live.iter().any(|it| !it.saturated.is_empty()) {
                true => Phrase::new(
                    "remedy.saturated",
                    "start more workers, or raise the concurrency of their routes; `keyfall \
                     instances` shows which routes are saturated",
                    [],
                ),
                false => Phrase::new(
                    "remedy.overdue",
                    "workers have free slots: if consumers pull these jobs, make sure that they \
                     do; `keyfall why` shows the reason for which a job waits",
                    [],
                ),
            };
            Finding::warning(&OVERDUE_JOBS, shown, remedy)
        })
    }));
    found.push(judge.by_stats(&LIMITS, |kind, stats| {
        (stats.held > 0 && stats.overdue_for > STARVED && !stats.paused).then(|| {
            let shown = Phrase::new(
                "found.held",
                "{}: {} wait, the oldest for {}",
                [
                    kind.as_str().into(),
                    things(stats.held, Thing::Job),
                    written(&Duration::from_secs(stats.overdue_for.as_secs())).into(),
                ],
            );
            let remedy = Phrase::new(
                "remedy.limit",
                "raise the limit, if the receiver can take more: keyfall limit {} --rate …; or \
                 schedule fewer jobs",
                [kind.as_str().into()],
            );
            Finding::warning(&LIMITS, shown, remedy)
        })
    }));
    found.push(Finding::of(
        &UNROUTED_JOBS,
        unrouted.as_ref().map_err(Clone::clone),
        |check, unrouted| match unrouted.first() {
            _ if !is_served => {
                let nobody = "no worker is alive: see the check workers-alive";
                Finding::fine(check, Phrase::new("found.see-alive", nobody, []))
            }
            None => {
                let all = Phrase::new("found.routed", "all jobs have a route", []);
                Finding::fine(check, all)
            }
            Some(first) => {
                let some = unrouted.iter().take(NAMED).map(of_unrouted);
                let shown = Phrase::joined(some.chain(more(unrouted.len())));
                let route = format!("{}:{{id}}", first.kind);
                let remedy = Phrase::new(
                    "remedy.route",
                    "start a worker that has a route for {}",
                    [route.into()],
                );
                Finding::warning(check, shown.expect("at least one"), remedy)
            }
        },
    ));
    letters(&judge, now, found);
    found.push(judge.by_sample(&FOREIGN_VALUES, |looked, sample| {
        let id = sample.foreign.first()?;
        let kind = &looked.kind;
        if adoption::is_adopted(live, kind) {
            return None;
        }
        let key = format!("{kind}:{id}");
        let shown = Phrase::new(
            "found.foreign",
            "{} of the next {} jobs of {}, such as {}",
            [
                sample.foreign.len().into(),
                NAMES.into(),
                kind.as_str().into(),
                (&key).into(),
            ],
        );
        let remedy = Phrase::new(
            "remedy.foreign",
            "DEL {}, and change the program that writes this key to another name",
            [key.into()],
        );
        Some(Finding::warning(&FOREIGN_VALUES, shown, remedy))
    }));
}

/// The finding about shards with more than [`LARGE`] jobs. On a cluster the keys of such a shard
/// block two nodes while they move, which is a warning; its remedy names the next power of two that
/// suffices as the number of shards. Without a cluster no key moves, so the finding is only
/// information.
pub(super) fn sizes(ledgers: &Ledgers, is_cluster: bool) -> Finding {
    Judge(ledgers).by_sample(&SHARD_SIZE, |looked, sample| {
        if sample.jobs <= LARGE {
            return None;
        }
        let kind = &looked.kind;
        let has = Layout::parse(&looked.shards)?.shards;
        let shown = Phrase::new(
            "found.large",
            "{}: {} jobs in one shard of {}",
            [kind.as_str().into(), sample.jobs.into(), has.into()],
        );
        if !is_cluster {
            return Some(Finding::info(&SHARD_SIZE, shown));
        }
        let wanted = u64::from(has).saturating_mul(sample.jobs.div_ceil(LARGE));
        let remedy = match u16::try_from(wanted.next_power_of_two()) {
            Ok(shards) if shards <= MAX_SHARDS => {
                format!("keyfall reshard {kind} --to {shards}").into()
            }
            _ => Phrase::new(
                "remedy.spread",
                "spread the jobs of {} over several kinds: a kind has at most {} shards",
                [kind.as_str().into(), MAX_SHARDS.into()],
            ),
        };
        Some(Finding::warning(&SHARD_SIZE, shown, remedy))
    })
}

/// Adds the findings about dead letters: new ones, as a warning from [`MANY`] on and as information
/// below; and a warning for kinds at nine tenths of the default limits of number or age, beyond
/// which the oldest are deleted.
fn letters(judge: &Judge<'_>, now: UnixUs, found: &mut Vec<Finding>) {
    found.push(judge.by_sample(&DEAD_LETTERS_NEW, |looked, sample| {
        let (kind, died) = (&looked.kind, sample.died);
        let shown = Phrase::new(
            "found.died",
            "{}: {} within the last hour",
            [kind.as_str().into(), things(died, Thing::DeadLetter)],
        );
        let remedy = format!("keyfall dead ls --prefix {kind}:");
        match died {
            0 => None,
            MANY.. => Some(Finding::warning(&DEAD_LETTERS_NEW, shown, remedy)),
            _ => Some(Finding {
                remedy: Some(remedy.into()),
                ..Finding::info(&DEAD_LETTERS_NEW, shown)
            }),
        }
    }));
    let kept = WorkerSettings::default();
    found.push(judge.by_sample(&DEAD_LETTERS_FULL, |looked, sample| {
        let (kind, stats) = (&looked.kind, looked.stats.as_ref().ok()?);
        let age = sample.oldest.map_or(Duration::ZERO, |died| now.since(died));
        if stats.dead < kept.dead_count / 10 * 9 && age < kept.dead_age / 10 * 9 {
            return None;
        }
        let days = age.as_secs() / 86_400;
        let shown = Phrase::new(
            "found.letters",
            "{}: {}, the oldest of {} days",
            [
                kind.as_str().into(),
                things(stats.dead, Thing::DeadLetter),
                days.into(),
            ],
        );
        let remedy = Phrase::new(
            "remedy.letters",
            "requeue or delete dead letters with `keyfall dead requeue --prefix {}:` or `keyfall \
             dead rm --prefix {}:`, or raise `worker.dead_letters` or Worker::dead_letters",
            [kind.as_str().into(), kind.as_str().into()],
        );
        Some(Finding::warning(&DEAD_LETTERS_FULL, shown, remedy))
    }));
}

/// Judges all kinds for one check.
struct Judge<'a>(&'a Ledgers);

impl Judge<'_> {
    /// The finding about kinds with a layout that this version does not know.
    fn shards(&self) -> Finding {
        let is_odd = |one: &&Looked| Layout::parse(&one.shards).is_none();
        let odd = self.0.looked.iter().filter(is_odd);
        self.sum(
            &KIND_SHARDS,
            odd.map(|one| {
                let shown = Phrase::new(
                    "found.shards",
                    "{}: has an unknown number of shards, {}",
                    [one.kind.as_str().into(), format!("{:?}", one.shards).into()],
                );
                Finding::error(&KIND_SHARDS, shown, other_version())
            }),
        )
    }

    /// The finding about kinds that have been empty for long.
    fn empty(&self, now: UnixUs) -> Finding {
        let empty = self.0.looked.iter().filter_map(|one| {
            let for_so_long = now.since(one.used?);
            (for_so_long > EMPTY).then(|| {
                let days = for_so_long.as_secs() / 86_400;
                let shown = Phrase::new(
                    "found.empty",
                    "{}: empty for {} days",
                    [one.kind.as_str().into(), days.into()],
                );
                let remedy = format!("keyfall kinds drop {}", one.kind);
                Finding {
                    remedy: Some(remedy.into()),
                    ..Finding::info(&EMPTY_KINDS, shown)
                }
            })
        });
        self.sum(&EMPTY_KINDS, empty)
    }

    /// One finding from the counts of each kind; `judge` returns `None` for a kind that is fine.
    fn by_stats(
        &self,
        check: &'static Check,
        judge: impl Fn(&Kind, &Stats) -> Option<Finding>,
    ) -> Finding {
        let judged = self.0.looked.iter().filter_map(|one| match &one.stats {
            Ok(stats) => judge(&one.kind, stats),
            Err(why) => Some(Finding::unseen(check, format!("{}: {why}", one.kind))),
        });
        self.sum(check, judged)
    }

    /// One finding from the samples of each kind; `judge` returns `None` for a kind that is fine.
    fn by_sample(
        &self,
        check: &'static Check,
        judge: impl Fn(&Looked, &LedgerSample) -> Option<Finding>,
    ) -> Finding {
        let judged = self.0.looked.iter().filter_map(|one| match &one.sample {
            Ok(sample) => judge(one, sample),
            Err(why) => Some(Finding::unseen(check, format!("{}: {why}", one.kind))),
        });
        self.sum(check, judged)
    }

    /// One finding from the findings about several kinds.
    fn sum(&self, check: &'static Check, judged: impl Iterator<Item = Finding>) -> Finding {
        let none = match (self.0.looked.len(), self.0.all) {
            (looked, all) if looked < all => Phrase::new(
                "found.none-of",
                "none in {} of {} kinds",
                [looked.into(), all.into()],
            ),
            (all, _) => Phrase::new("found.none", "none in {} kinds", [all.into()]),
        };
        summed(check, judged, none)
    }
}

/// One finding from the findings about several kinds: the worst finding, with the texts of the next
/// findings. `Ok`, with the text `none`, if there are none.
pub(super) fn summed(
    check: &'static Check,
    judged: impl Iterator<Item = Finding>,
    none: Phrase,
) -> Finding {
    let mut judged: Vec<Finding> = judged.collect();
    judged.sort_by_key(|one| std::cmp::Reverse(one.severity));
    let count = judged.len();
    let mut judged = judged.into_iter();
    let Some(mut worst) = judged.next() else {
        return Finding::fine(check, none);
    };
    let others = judged.take(NAMED - 1).map(|one| one.found);
    let all = std::iter::once(worst.found)
        .chain(others)
        .chain(more(count));
    worst.found = Phrase::joined(all).expect("at least one");
    worst
}

/// The text about one kind with unrouted jobs.
fn of_unrouted(one: &Unrouted) -> Phrase {
    let jobs = things(one.jobs, Thing::Job);
    Phrase::new("found.at", "{}: {}", [one.kind.as_str().into(), jobs])
}

/// The number of kinds beyond the named ones, as text; `None` if all are named.
fn more(count: usize) -> Option<Phrase> {
    (count > NAMED).then(|| things((count - NAMED) as u64, Thing::MoreKind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    /// One kind, whose largest shard has this many jobs.
    fn with(shards: &str, jobs: u64) -> Ledgers {
        let sample = LedgerSample {
            jobs,
            ..LedgerSample::default()
        };
        let looked = Looked {
            kind: Kind::parse("app1:trans:notice").unwrap(),
            shards: shards.to_owned(),
            stats: Err("not checked".to_owned()),
            sample: Ok(sample),
            used: None,
        };
        Ledgers {
            looked: vec![looked],
            all: 1,
        }
    }

    #[test]
    fn a_large_shard_is_a_warning_only_on_a_cluster() {
        let judged = |shards, jobs, is_cluster| sizes(&with(shards, jobs), is_cluster);
        assert_eq!(judged("1", LARGE, true).severity, Severity::Ok);
        let alone = judged("1", LARGE + 1, false);
        assert_eq!((alone.severity, alone.remedy), (Severity::Info, None));
        for (shards, jobs, remedy) in [
            ("1", LARGE + 1, "keyfall reshard app1:trans:notice --to 2"),
            ("1", 5_000_000, "keyfall reshard app1:trans:notice --to 32"),
            ("3 2", LARGE * 2, "keyfall reshard app1:trans:notice --to 8"),
            (
                "128 1",
                LARGE * 2,
                "keyfall reshard app1:trans:notice --to 256",
            ),
            ("256 1", LARGE * 2, "a kind has at most 256 shards"),
        ] {
            let told = judged(shards, jobs, true);
            assert_eq!(told.severity, Severity::Warning);
            let found = told.remedy.unwrap();
            assert!(found.contains(remedy), "{shards} {jobs}: {found}");
        }
    }
}
