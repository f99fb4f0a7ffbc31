//! Names and descriptions of all metrics, and counters that start at 0.
//!
//! A test compares these lists with `docs/metrics.md` and with the code that counts.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};

/// Name and meaning of each counter. Most have a label `kind`; `docs/metrics.md` lists all labels.
const COUNTERS: [(&str, &str); 16] = [
    (
        "keyfall_scheduled_total",
        "Jobs that a schedule call created, replaced, or queued behind a run.",
    ),
    ("keyfall_cancelled_total", "Cancel calls that found a job."),
    (
        "keyfall_adopted_total",
        "Jobs that plain keys created, changed or cancelled, by change.",
    ),
    (
        "keyfall_claimed_total",
        "Jobs claimed, by the part of the worker that found them.",
    ),
    (
        "keyfall_settled_total",
        "Runs that ended, by the outcome of their job.",
    ),
    (
        "keyfall_retries_total",
        "Runs that were not the first attempt of their job.",
    ),
    (
        "keyfall_dead_total",
        "Runs after which the job was a dead letter.",
    ),
    (
        "keyfall_claims_lost_total",
        "Jobs that this worker asked for, but another worker had them, or they were gone.",
    ),
    (
        "keyfall_events_heard_total",
        "Expired keys that are jobs served here.",
    ),
    (
        "keyfall_events_foreign_total",
        "Expired keys that are not jobs served here.",
    ),
    (
        "keyfall_events_dropped_total",
        "Due jobs that were found but not noted, because there were too many; they are claimed \
         from the ledger, oldest first.",
    ),
    (
        "keyfall_touches_total",
        "Triggers that the pacer touched so that Redis expires them.",
    ),
    (
        "keyfall_reconnects_total",
        "Connections opened to replace a lost one.",
    ),
    (
        "keyfall_samples_failed_total",
        "Times that the gauges could not be updated, because Redis did not answer.",
    ),
    (
        "keyfall_leases_lapsed_total",
        "Leases that lapsed and were taken over.",
    ),
    (
        "keyfall_dead_letters_trimmed_total",
        "Dead letters that were deleted by the limits of number and age.",
    ),
];

/// Name and meaning of each gauge.
const GAUGES: [(&str, &str); 12] = [
    ("keyfall_pending", "Waiting jobs, including due jobs."),
    ("keyfall_overdue", "Jobs that are due and not claimed."),
    (
        "keyfall_leased",
        "Jobs that run, or whose lease has lapsed.",
    ),
    ("keyfall_dead_letters", "Dead letters."),
    (
        "keyfall_oldest_overdue_seconds",
        "The time for which the oldest overdue job has been due; 0 if no job is overdue.",
    ),
    (
        "keyfall_unbalanced",
        "Jobs and dead letters that are not accounted for; must be 0.",
    ),
    (
        "keyfall_held",
        "Overdue jobs that wait for the limit of their kind.",
    ),
    ("keyfall_paused", "1 if the kind is paused, otherwise 0."),
    (
        "keyfall_unrouted",
        "Jobs without a route in any live instance.",
    ),
    ("keyfall_instances", "Live workers."),
    (
        "keyfall_breakers_open",
        "Hosts of callbacks that this process does not call because they are down.",
    ),
    (
        "keyfall_unannounced",
        "1 if Redis does not announce changes of plain keys that routes adopt, or if this can be \
         neither read nor proved; must be 0.",
    ),
];

/// Name and meaning of each histogram; all are in seconds.
const HISTOGRAMS: [(&str, &str); 3] = [
    (
        "keyfall_lag_seconds",
        "Time from the due time of a job to the start of its run, by the clock of Redis.",
    ),
    ("keyfall_handler_seconds", "Run time of handlers."),
    (
        "keyfall_script_seconds",
        "Round-trip time of calls to Redis.",
    ),
];

/// Describes each metric to the recorder, and sets the counters of the process to 0: a counter that
/// first appears with 1 does not look as if it had grown.
///
/// Call it once, after the recorder is installed.
pub fn describe() {
    show_those_of_the_process();
    for (name, text) in COUNTERS {
        describe_counter!(name, Unit::Count, text);
    }
    for (name, text) in GAUGES {
        describe_gauge!(name, text);
    }
    for (name, text) in HISTOGRAMS {
        describe_histogram!(name, Unit::Seconds, text);
    }
}

/// Adds 0 to each counter of the process, so that a recorder that forgets idle metrics shows them
/// all the same.
pub(super) fn show_those_of_the_process() {
    for name in [
        "keyfall_events_heard_total",
        "keyfall_events_foreign_total",
        "keyfall_samples_failed_total",
    ] {
        counter!(name).increment(0);
    }
    for connection in ["commands", "events", "changes"] {
        counter!("keyfall_reconnects_total", "connection" => connection).increment(0);
    }
}

/// Adds 0 to each counter of an existing kind that alerts are based on, so that a recorder that
/// forgets idle metrics shows them: a counter that comes back with 1 does not look as if it had
/// grown.
#[cfg(feature = "worker")]
pub(super) fn show_those_of_a_kind(kind: &crate::key::Kind) {
    for outcome in crate::counters::OUTCOMES {
        let name = "keyfall_settled_total";
        counter!(name, "kind" => kind.to_string(), "outcome" => outcome).increment(0);
    }
    for name in ["keyfall_dead_total", "keyfall_events_dropped_total"] {
        counter!(name, "kind" => kind.to_string()).increment(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_the_described_metrics_and_the_code_counts_them() {
        let page = include_str!("../../docs/metrics.md");
        let code = [
            include_str!("../counters/meter.rs"),
            include_str!("gauges.rs"),
        ]
        .concat();
        let all = COUNTERS.iter().chain(&GAUGES).chain(&HISTOGRAMS);
        for (name, _) in all.clone() {
            assert!(page.contains(&format!("`{name}`")), "{name} has no line");
            assert!(code.contains(&format!("\"{name}\"")), "nobody sets {name}");
        }
        let told = code.matches("\"keyfall_").count();
        assert_eq!(told, all.count(), "one is not described");
    }
}
