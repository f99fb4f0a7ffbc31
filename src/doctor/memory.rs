//! Checks of memory: the eviction policy, the limit, and how much of it is in use.

use super::checks::{EVICTION_POLICY, MEMORY_HEADROOM, MEMORY_LIMIT};
use super::finding::Finding;
use crate::phrase::Phrase;
use crate::store::{Evicted, Info};

/// From this share of the limit on, in percent, the finding is a warning.
const TIGHT: u64 = 80;
/// From this share of the limit on, in percent, the finding is an error.
const FULL: u64 = 95;

/// Adds the findings of this file. The use of memory is judged only if there is a limit: a warning
/// from [`TIGHT`] on, an error from [`FULL`] on.
pub(super) fn look(info: &Info, found: &mut Vec<Finding>) {
    found.push(policy(info));
    let number = |field| info.text(field).parse().unwrap_or(0_u64);
    let (limit, machine) = (number("maxmemory"), number("total_system_memory"));
    found.push(limit_of(limit, machine));
    if limit == 0 {
        let unlimited = Phrase::new("found.no-limit", "no memory limit is set", []);
        found.push(Finding::fine(&MEMORY_HEADROOM, unlimited));
        return;
    }
    // Redis, too, leaves these bytes out when it compares its use with the limit.
    let used = number("used_memory").saturating_sub(number("mem_not_counted_for_evict"));
    let percent = used.saturating_mul(100) / limit;
    let used = [percent.into(), bytes(limit).into()];
    let shown = Phrase::new("found.memory", "{} % of {} in use", used);
    let twice = limit.saturating_mul(2);
    // A limit above the memory of the machine would get the process killed.
    let remedy = if machine > 0 && twice > machine {
        Phrase::new(
            "remedy.memory",
            "give the machine more memory, and raise maxmemory; `keyfall kinds` shows which kinds \
             have many jobs",
            [],
        )
    } else {
        format!("CONFIG SET maxmemory {twice}").into()
    };
    found.push(match percent {
        FULL.. => Finding::error(&MEMORY_HEADROOM, shown, remedy),
        TIGHT.. => Finding::warning(&MEMORY_HEADROOM, shown, remedy),
        _ => Finding::fine(&MEMORY_HEADROOM, shown),
    });
}

/// The finding about the eviction policy.
///
/// | policy evicts | with `maxmemory` | without |
/// |---|---|---|
/// | nothing | ok | ok |
/// | keys with a TTL: triggers, so jobs are late | warning | information |
/// | any key: jobs are lost | error | warning |
fn policy(info: &Info) -> Finding {
    let policy = info.text("maxmemory_policy");
    let remedy = "CONFIG SET maxmemory-policy noeviction";
    let shown = Phrase::from(format!("maxmemory-policy {policy}"));
    let shown = match info.is_limited() {
        true => shown,
        false => Phrase::new("found.unlimited", "{}, without maxmemory", [shown]),
    };
    match (info.evicted(), info.is_limited()) {
        (Evicted::Nothing, _) => Finding::fine(&EVICTION_POLICY, shown),
        (Evicted::Anything, true) => Finding::error(&EVICTION_POLICY, shown, remedy),
        (Evicted::Anything, false) | (Evicted::Triggers, true) => {
            Finding::warning(&EVICTION_POLICY, shown, remedy)
        }
        (Evicted::Triggers, false) => Finding {
            remedy: Some(remedy.into()),
            ..Finding::info(&EVICTION_POLICY, shown)
        },
    }
}

/// The finding about the limit: information if there is none, a warning if it is above the memory
/// of the machine. Both sizes are in bytes; 0 means no limit, and an unknown machine.
fn limit_of(limit: u64, machine: u64) -> Finding {
    // Half of the memory, so that a fork fits beside it.
    let remedy = match machine {
        0 => "CONFIG SET maxmemory 2gb".to_owned(),
        machine => format!("CONFIG SET maxmemory {}", machine / 2),
    };
    if limit == 0 {
        return Finding {
            remedy: Some(remedy.into()),
            ..Finding::info(
                &MEMORY_LIMIT,
                Phrase::new("found.no-maxmemory", "no maxmemory", []),
            )
        };
    }
    let shown = format!("maxmemory {}", bytes(limit));
    if machine > 0 && limit > machine {
        let shown = Phrase::new(
            "found.machine",
            "{}, and the machine has {}",
            [shown.into(), bytes(machine).into()],
        );
        return Finding::warning(&MEMORY_LIMIT, shown, remedy);
    }
    Finding::fine(&MEMORY_LIMIT, shown)
}

/// A size in KiB, or in MiB from 1 MiB on.
fn bytes(count: u64) -> String {
    match count {
        0..1_048_576 => format!("{} KiB", count >> 10),
        _ => format!("{} MiB", count >> 20),
    }
}
