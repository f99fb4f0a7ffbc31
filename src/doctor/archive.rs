//! Checks of the records that ended jobs leave for an archive: whether somebody copies them, and
//! whether some were dropped.

use std::time::Duration;

use super::checks::{ARCHIVE_READ, ARCHIVE_WHOLE};
use super::finding::{Finding, Severity};
use super::ledgers::{KINDS, summed, unseen};
use crate::client::{Client, Shards};
use crate::durations::written;
use crate::error::Result;
use crate::key::Kind;
use crate::phrase::Phrase;
use crate::time::UnixUs;

/// How long a record may wait.
const LATE: Duration = Duration::from_secs(600);

/// The part of their bound that the records of a kind may take, in percent.
const FULL: u64 = 90;

/// The records of one kind.
struct Waits {
    kind: Kind,
    records: u64,
    bytes: u64,
    /// How many bytes may wait in all shards together.
    bound: u64,
    /// How long the oldest record has waited.
    oldest: Duration,
    dropped: u64,
}

/// Adds the findings about the kinds that leave records, or once did.
///
/// # Errors
/// If Redis does not answer. A refusal is no error, but an unseen fact.
pub(super) async fn look(client: &Client, now: UnixUs, found: &mut Vec<Finding>) -> Result<()> {
    let waits = match read(client, now).await {
        Ok(waits) => waits,
        Err(error) => {
            let why = unseen::<()>(error)?.expect_err("it is a reason");
            for check in [&ARCHIVE_READ, &ARCHIVE_WHOLE] {
                found.push(Finding::unseen(check, &*why));
            }
            return Ok(());
        }
    };
    judge(&waits, found);
    Ok(())
}

async fn read(client: &Client, now: UnixUs) -> Result<Vec<Waits>> {
    let archives = client.archives().await?;
    let mut waits = Vec::new();
    for kind in client.archived_kinds().await?.into_iter().take(KINDS) {
        let ended = client.ended(&kind, Shards::Present, 1).await?;
        let name = format!("{kind}:");
        let covering = archives.iter().filter(|it| name.starts_with(&it.prefix));
        let terms = covering.max_by_key(|it| it.prefix.len());
        let ledgers = client.store().layout_of(kind.as_str()).ledgers();
        let oldest = ended.jobs.iter().map(|job| job.ended_at).min();
        let age = oldest.and_then(|at| now.floor_ms().to_system().duration_since(at).ok());
        waits.push(Waits {
            records: ended.waiting,
            bytes: ended.waiting_bytes,
            // Kinds that leave no more records add none.
            bound: terms.map_or(u64::MAX, |it| {
                it.terms.get_waiting().saturating_mul(u64::from(ledgers))
            }),
            oldest: age.unwrap_or_default(),
            dropped: ended.dropped,
            kind,
        });
    }
    Ok(waits)
}

fn judge(waits: &[Waits], found: &mut Vec<Finding>) {
    let none = match waits.len() {
        0 => Phrase::new("found.no-archive", "no kind leaves records", []),
        all => Phrase::new("found.none", "none in {} kinds", [all.into()]),
    };
    let waiting = waits.iter().filter_map(of_waiting);
    found.push(summed(&ARCHIVE_READ, waiting, none.clone()));
    let dropped = waits.iter().filter_map(of_dropped);
    found.push(summed(&ARCHIVE_WHOLE, dropped, none));
}

fn of_waiting(one: &Waits) -> Option<Finding> {
    let kind = one.kind.as_str();
    let shown = if one.bytes / FULL >= one.bound / 100 {
        Phrase::new(
            "found.archive-full",
            "{}: the records that wait take {} bytes, of {} that they may",
            [kind.into(), one.bytes.into(), one.bound.into()],
        )
    } else if one.oldest > LATE {
        let oldest = Duration::from_secs(one.oldest.as_secs());
        Phrase::new(
            "found.archive-late",
            "{}: {} records wait, the oldest for {}",
            [kind.into(), one.records.into(), written(&oldest).into()],
        )
    } else {
        return None;
    };
    let remedy = Phrase::new(
        "remedy.archiver",
        "run `keyfall serve` with `database.url`, and look into its log; or end the choice by \
         `keyfall archive off`",
        [],
    );
    Some(Finding::warning(&ARCHIVE_READ, shown, remedy))
}

/// Once no record waits any more, the loss is over, and only worth knowing.
fn of_dropped(one: &Waits) -> Option<Finding> {
    if one.dropped == 0 {
        return None;
    }
    let shown = Phrase::new(
        "found.archive-dropped",
        "{}: {} records were dropped since the kind began",
        [one.kind.as_str().into(), one.dropped.into()],
    );
    let remedy = Phrase::new(
        "remedy.archive-dropped",
        "let a daemon store them, or let more wait: keyfall archive set … --waiting …",
        [],
    );
    Some(match one.records {
        0 => Finding::info(&ARCHIVE_WHOLE, shown),
        _ => Finding::new(&ARCHIVE_WHOLE, Severity::Warning, shown, Some(remedy)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(records: u64, bytes: u64, age: u64, dropped: u64) -> [(Severity, String); 2] {
        let waits = Waits {
            kind: Kind::parse("app1:mail:send").unwrap(),
            records,
            bytes,
            bound: 1_000_000,
            oldest: Duration::from_secs(age),
            dropped,
        };
        let mut found = Vec::new();
        judge(&[waits], &mut found);
        let told = found.iter().map(|it| (it.severity, it.found.to_string()));
        told.collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn records_that_nobody_reads_or_that_fill_their_bound_are_a_warning() {
        for (records, bytes, age) in [(0, 0, 0), (10, 899_000, 600)] {
            let [read, whole] = of(records, bytes, age, 0);
            assert_eq!([read.0, whole.0], [Severity::Ok; 2], "{read:?}");
        }
        let [late, _] = of(10, 1_000, 601, 0);
        assert_eq!(late.0, Severity::Warning);
        assert!(
            late.1.contains("10 records wait, the oldest for 10m"),
            "{}",
            late.1
        );
        let [full, _] = of(10, 900_000, 1, 0);
        assert_eq!(full.0, Severity::Warning);
        assert!(full.1.contains("900000 bytes, of 1000000"), "{}", full.1);
    }

    #[test]
    fn dropped_records_are_a_warning_while_others_wait() {
        let [_, going_on] = of(10, 1_000, 1, 3);
        assert_eq!(going_on.0, Severity::Warning);
        let [_, over] = of(0, 0, 0, 3);
        assert_eq!(over.0, Severity::Info);
        assert!(over.1.contains("3 records were dropped"), "{}", over.1);
    }
}
