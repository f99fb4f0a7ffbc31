//! Names and descriptions of all metrics, and counters that start at 0.
//!
//! A test compares these lists with `docs/metrics.md` and with the code that counts.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};

/// Name and meaning of each counter. Most have a label `kind`; `docs/metrics.md` lists all labels.
const COUNTERS: [(&str, &str); 16] = [
    (
        "keyfall_scheduled_total",
        "Jobs that a schedule created, replaced, or had follow a run.",
    ),
    ("keyfall_cancelled_total", "Cancels that found a job."),
    (
        "keyfall_adopted_total",
        "Jobs that plain keys made, changed or cancelled, by what was done.",
    ),
    (
        "keyfall_claimed_total",
        "Jobs claimed, by how they were found.",
    ),
    (
        "keyfall_settled_total",
        "Runs that ended, by what became of their job.",
    ),
    (
        "keyfall_retries_total",
        "Runs begun that were not the first attempt of their job.",
    ),
    (
        "keyfall_dead_total",
        "Runs after which the job was a dead letter.",
    ),
    (
        "keyfall_claims_lost_total",
        "Jobs asked for that somebody else had, or nobody any more.",
    ),
    (
        "keyfall_events_heard_total",
        "Expired keys that are jobs served here.",
    ),
    ("keyfall_events_foreign_total", "Expired keys that are not."),
    (
        "keyfall_events_dropped_total",
        "Jobs found due that were not noted, because too many were; they are claimed as the oldest.",
    ),
    (
        "keyfall_touches_total",
        "Triggers touched so that Redis expires them.",
    ),
    (
        "keyfall_reconnects_total",
        "Connections opened in place of one that was lost.",
    ),
    (
        "keyfall_samples_failed_total",
        "Times that the gauges could not be set, because Redis did not answer.",
    ),
    (
        "keyfall_leases_lapsed_total",
        "Leases that lapsed and were taken over.",
    ),
    (
        "keyfall_dead_letters_trimmed_total",
        "Dead letters that fell to the limits of number and age.",
    ),
];

/// Name and meaning of each gauge.
const GAUGES: [(&str, &str); 11] = [
    (
        "keyfall_pending",
        "Jobs that wait, those that are due included.",
    ),
    ("keyfall_overdue", "Jobs that are due and not claimed."),
    (
        "keyfall_leased",
        "Jobs that run, or whose lease has lapsed.",
    ),
    ("keyfall_dead_letters", "Dead letters."),
    (
        "keyfall_oldest_overdue_seconds",
        "For how long the oldest overdue job has been due; 0 if none is.",
    ),
    (
        "keyfall_unbalanced",
        "Jobs and dead letters that are not accounted for; must be 0.",
    ),
    ("keyfall_paused", "1 if the kind is paused, otherwise 0."),
    (
        "keyfall_unrouted",
        "Jobs that no live instance has a route for.",
    ),
    ("keyfall_instances", "Workers that live."),
    (
        "keyfall_breakers_open",
        "Hosts of callbacks that this process leaves alone because they are down.",
    ),
    (
        "keyfall_unannounced",
        "1 if Redis does not announce what is done to plain keys that routes adopt, or that can be neither read nor proved; must be 0.",
    ),
];

/// Name and meaning of each histogram; all are in seconds.
const HISTOGRAMS: [(&str, &str); 3] = [
    (
        "keyfall_lag_seconds",
        "From the due time of a job to the start of its run, by the clock of Redis.",
    ),
    ("keyfall_handler_seconds", "For how long handlers ran."),
    (
        "keyfall_script_seconds",
        "How long Redis and the way to it took for a call.",
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
