//! Checks of the copy of pending jobs: whether somebody makes it, how far behind it is, and whether
//! Redis still has what was copied.

use std::time::Duration;

use super::checks::{COPIER_ALIVE, COPY_DATA_SET, COPY_LAG};
use super::finding::{Finding, Severity};
use super::ledgers::{KINDS, summed, unseen};
use crate::client::{Client, Shards};
use crate::durations::written;
use crate::error::Result;
use crate::key::Kind;
use crate::phrase::Phrase;
use crate::store::CopierNote;
use crate::time::{UnixMs, UnixUs};

/// How long no copier may have compared the data sets; a copier notes it every ten seconds.
const SILENT: Duration = Duration::from_secs(60);

/// How long the reason of a stopped copy holds, if no copier repeats it: a daemon that refuses to
/// start notes it only once.
const STOPPED: Duration = Duration::from_secs(3600);

/// How long a change may wait.
const LATE: Duration = Duration::from_secs(60);

/// The part of their bound that the changes of a kind may take, in percent.
const FULL: u64 = 90;

/// The copy as Redis knows it.
struct Copy {
    /// How long some kinds have asked for a copy; `None` if none does.
    asked: Option<Duration>,
    /// How long ago a copier has compared the data sets, and why it copies nothing; `None` if none
    /// ever did.
    noted: Option<(Duration, Option<String>)>,
    kinds: Vec<Waits>,
}

/// The changes of one kind.
struct Waits {
    kind: Kind,
    changes: u64,
    /// How many may wait in all shards together.
    bound: u64,
    /// How long the oldest change has waited.
    oldest: Duration,
    /// Whether a shard notes no changes any more, because too many waited.
    is_over: bool,
}

/// Adds the findings about the copy.
///
/// # Errors
/// If Redis does not answer. A refusal is no error, but an unseen fact.
pub(super) async fn look(client: &Client, now: UnixUs, found: &mut Vec<Finding>) -> Result<()> {
    let copy = match read(client, now).await {
        Ok(copy) => copy,
        Err(error) => {
            let why = unseen::<()>(error)?.expect_err("it is a reason");
            for check in [&COPIER_ALIVE, &COPY_LAG, &COPY_DATA_SET] {
                found.push(Finding::unseen(check, &*why));
            }
            return Ok(());
        }
    };
    judge(&copy, found);
    Ok(())
}

async fn read(client: &Client, now: UnixUs) -> Result<Copy> {
    let now = now.floor_ms();
    let since = |then: UnixMs| Duration::from_millis(now.0.saturating_sub(then.0));
    let copies = client.copies().await?;
    let noted = client.store().copier_note(client.deadline()).await?;
    let first = copies.iter().map(|it| it.since).min();
    let asked = first.map(|it| now.to_system().duration_since(it).unwrap_or_default());
    let mut kinds = Vec::new();
    for kind in client.copied_kinds().await?.into_iter().take(KINDS) {
        let changes = client.changes(&kind, Shards::Present, 1).await?;
        let terms = changes.shards.iter().filter_map(|it| it.terms);
        let oldest = changes.jobs.iter().map(|it| UnixUs(it.version).floor_ms());
        kinds.push(Waits {
            changes: changes.shards.iter().map(|it| it.waiting).sum(),
            // Shards that are not copied any more add none.
            bound: terms.map(|it| it.get_waiting()).sum(),
            oldest: oldest.min().map(since).unwrap_or_default(),
            is_over: changes
                .shards
                .iter()
                .any(|it| it.terms.is_some() && !it.is_noting && it.version > 0),
            kind,
        });
    }
    let noted = noted.map(|CopierNote { at, stopped }| (since(at), stopped));
    Ok(Copy {
        asked,
        noted,
        kinds,
    })
}

fn judge(copy: &Copy, found: &mut Vec<Finding>) {
    let none = match copy.kinds.len() {
        0 => Phrase::new("found.no-copy", "no kind is copied", []),
        all => Phrase::new("found.none", "none in {} kinds", [all.into()]),
    };
    found.push(of_copier(copy));
    let waiting = copy.kinds.iter().filter_map(of_waiting);
    found.push(summed(&COPY_LAG, waiting, none));
    found.push(of_data_set(copy));
}

fn of_copier(copy: &Copy) -> Finding {
    let Some(asked) = copy.asked else {
        let none = "no kind asks for a copy";
        return Finding::fine(&COPIER_ALIVE, Phrase::new("found.no-copies", none, []));
    };
    let shown = match &copy.noted {
        Some((age, _)) if *age <= SILENT => {
            let shown = "a copier is at work";
            return Finding::fine(&COPIER_ALIVE, Phrase::new("found.copier", shown, []));
        }
        // It may not know of them yet.
        _ if asked <= SILENT => {
            let shown = "kinds have just begun to ask for a copy";
            return Finding::fine(&COPIER_ALIVE, Phrase::new("found.copier-new", shown, []));
        }
        Some((age, _)) => Phrase::new(
            "found.copier-gone",
            "nobody has copied for {}",
            [seconds(*age).into()],
        ),
        None => Phrase::new("found.no-copier", "nobody has ever copied", []),
    };
    Finding::new(&COPIER_ALIVE, Severity::Warning, shown, Some(run_copier()))
}

fn of_waiting(one: &Waits) -> Option<Finding> {
    let kind = one.kind.as_str();
    let shown = if one.is_over {
        Phrase::new(
            "found.copy-over",
            "{}: more changes waited than may, none are noted, and all jobs are to be copied again",
            [kind.into()],
        )
    } else if one.changes > 0 && one.changes / FULL >= one.bound / 100 {
        Phrase::new(
            "found.copy-full",
            "{}: {} changes wait, of {} that may",
            [kind.into(), one.changes.into(), one.bound.into()],
        )
    } else if one.oldest > LATE {
        Phrase::new(
            "found.copy-late",
            "{}: {} changes wait, the oldest for {}",
            [kind.into(), one.changes.into(), seconds(one.oldest).into()],
        )
    } else {
        return None;
    };
    Some(Finding::warning(&COPY_LAG, shown, run_copier()))
}

fn run_copier() -> Phrase {
    let remedy = "run `keyfall serve` with `database.url`, and look into its log; or end the choice \
                  by `keyfall copy off`";
    Phrase::new("remedy.copier", remedy, [])
}

fn of_data_set(copy: &Copy) -> Finding {
    let noted = copy.noted.as_ref().filter(|(age, _)| *age <= STOPPED);
    let Some(why) = noted.and_then(|(_, stopped)| stopped.as_deref()) else {
        let fine = "no copier says otherwise";
        return Finding::fine(&COPY_DATA_SET, Phrase::new("found.copy-fine", fine, []));
    };
    Finding::error(
        &COPY_DATA_SET,
        Phrase::new(
            "found.copy-stopped",
            "the copy is stopped: {}",
            [why.into()],
        ),
        Phrase::new(
            "remedy.rebuild",
            "see with `keyfall rebuild` what is missing, and bring it back with `keyfall rebuild \
             --yes`",
            [],
        ),
    )
}

fn seconds(age: Duration) -> String {
    written(&Duration::from_secs(age.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Option<(u64, Option<&str>)> = None;

    /// What is found of the copier, the lag and the data set. Times are in seconds.
    fn of(
        asked: Option<u64>,
        noted: Option<(u64, Option<&str>)>,
        waits: (u64, u64, bool),
    ) -> [(Severity, String); 3] {
        let (changes, oldest, is_over) = waits;
        let copy = Copy {
            asked: asked.map(Duration::from_secs),
            noted: noted.map(|(age, why)| (Duration::from_secs(age), why.map(str::to_owned))),
            kinds: vec![Waits {
                kind: Kind::parse("app1:mail:send").unwrap(),
                changes,
                bound: 1_000,
                oldest: Duration::from_secs(oldest),
                is_over,
            }],
        };
        let mut found = Vec::new();
        judge(&copy, &mut found);
        let told = found.iter().map(|it| (it.severity, it.found.to_string()));
        told.collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn kinds_that_nobody_copies_are_a_warning() {
        for (asked, noted) in [
            (None, NONE),
            (None, Some((9_999, None))),
            (Some(60), NONE),
            (Some(9_999), Some((60, None))),
        ] {
            let [copier, ..] = of(asked, noted, (0, 0, false));
            assert_eq!(copier.0, Severity::Ok, "{copier:?}");
        }
        let [never, ..] = of(Some(61), NONE, (0, 0, false));
        assert_eq!(never, (Severity::Warning, "nobody has ever copied".into()));
        let [gone, ..] = of(Some(61), Some((120, None)), (0, 0, false));
        assert_eq!(gone, (Severity::Warning, "nobody has copied for 2m".into()));
    }

    #[test]
    fn changes_that_wait_long_or_fill_their_bound_are_a_warning() {
        let lag = |waits| {
            let [_, lag, _] = of(Some(9_999), Some((1, None)), waits);
            lag
        };
        assert_eq!(lag((899, 60, false)).0, Severity::Ok);
        for (waits, text) in [
            ((899, 61, false), "899 changes wait, the oldest for 1m1s"),
            ((900, 1, false), "900 changes wait, of 1000 that may"),
            ((0, 0, true), "all jobs are to be copied again"),
        ] {
            let (severity, found) = lag(waits);
            assert_eq!(severity, Severity::Warning, "{found}");
            assert!(found.contains(text), "{found}");
        }
    }

    #[test]
    fn a_copy_that_is_stopped_is_an_error_for_an_hour_after_the_last_look() {
        let data_set = |age| {
            let noted = Some((age, Some("the Redis at a:1 was emptied")));
            // A Redis that was emptied has lost the terms, too.
            let [_, _, data_set] = of(None, noted, (0, 0, false));
            data_set
        };
        let (severity, found) = data_set(3_600);
        assert_eq!(severity, Severity::Error);
        assert!(found.ends_with("a:1 was emptied"), "{found}");
        assert_eq!(data_set(3_601).0, Severity::Ok);
    }
}
