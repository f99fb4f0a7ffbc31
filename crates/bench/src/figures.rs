//! The figures of all runs: their names, their medians, and their JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::cost::Cost;
use super::histogram::Histogram;

/// All figures, in the order of the table.
pub(super) const FIGURES: [Figure; 65] = [
    Figure::of("schedule_jobs_per_s", "schedule, one by one", "jobs/s", 0),
    Figure::of("schedule_to_bare", "... to bare writes", "", 2),
    Figure::of("schedule_bulk_jobs_per_s", "schedule, in bulk", "jobs/s", 0),
    Figure::of("schedule_bulk_to_bare", "... to bare writes", "", 2),
    Figure::of("bare_jobs_per_s", "bare writes", "jobs/s", 0),
    Figure::of(
        "bytes_per_pending_job",
        "memory of a pending job",
        "bytes",
        0,
    ),
    Figure::of("lateness_ms.p50", "lateness p50", "ms", 2),
    Figure::of("lateness_ms.p90", "lateness p90", "ms", 2),
    Figure::of("lateness_ms.p99", "lateness p99", "ms", 2),
    Figure::of("lateness_ms.p999", "lateness p99.9", "ms", 2),
    Figure::of("lateness_ms.max", "lateness max", "ms", 2),
    Figure::of("early", "early", "jobs", 0),
    Figure::of("commands_per_job", "Redis commands", "a job", 2),
    Figure::of("redis_cpu_us_per_job", "Redis CPU", "µs a job", 1),
    Figure::of("burst_jobs_per_s", "burst", "jobs/s", 0),
    Figure::of("burst_to_bare", "... to bare writes", "", 2),
    Figure::of(
        "burst_redis_cpu_us_per_job",
        "Redis CPU in a burst",
        "µs a job",
        1,
    ),
    Figure::of("idle_commands_per_s", "commands while idle", "a second", 2),
    Figure::of("claims_per_job", "claims", "a job", 2),
    Figure::of(
        "heartbeats.plain.per_s",
        "EXPIRE, nobody listens",
        "beats/s",
        0,
    ),
    Figure::of(
        "heartbeats.plain.redis_cpu_us",
        "... Redis CPU",
        "µs a beat",
        2,
    ),
    Figure::of("heartbeats.per_s", "heartbeats", "beats/s", 0),
    Figure::of("heartbeats.redis_cpu_us", "... Redis CPU", "µs a beat", 2),
    Figure::of("heartbeats.cpu_ratio", "... to nobody listening", "", 2),
    Figure::of(
        "heartbeats.worker_cpu_us",
        "... CPU of the worker",
        "µs a beat",
        2,
    ),
    Figure::of("heartbeats.commands", "... Redis commands", "a beat", 2),
    Figure::of("heartbeats.bytes", "... to and from Redis", "bytes", 0),
    Figure::of("heartbeats.reschedule.per_s", "reschedule", "jobs/s", 0),
    Figure::of(
        "heartbeats.reschedule.redis_cpu_us",
        "... Redis CPU",
        "µs a job",
        2,
    ),
    Figure::of(
        "heartbeats.plain.paced_redis_cpu_us",
        "EXPIRE at this rate",
        "µs a beat",
        2,
    ),
    Figure::of(
        "heartbeats.paced.redis_cpu_us",
        "heartbeats at this rate",
        "µs a beat",
        2,
    ),
    Figure::of(
        "heartbeats.paced.worker_cpu_us",
        "... CPU of the worker",
        "µs a beat",
        2,
    ),
    Figure::of(
        "heartbeats.paced.commands",
        "... Redis commands",
        "a beat",
        2,
    ),
    Figure::of(
        "heartbeats.paced.bytes",
        "... to and from Redis",
        "bytes",
        0,
    ),
    Figure::of("heartbeats.silent_ms.p50", "silence, p50", "ms late", 2),
    Figure::of("heartbeats.silent_ms.p90", "silence, p90", "ms late", 2),
    Figure::of("heartbeats.silent_ms.p99", "silence, p99", "ms late", 2),
    Figure::of("heartbeats.silent_ms.p999", "silence, p99.9", "ms late", 2),
    Figure::of("heartbeats.silent_ms.max", "silence, max", "ms late", 2),
    Figure::of("heartbeats.false_alarms", "false alarms", "jobs", 0),
    Figure::of(
        "http_schedule_jobs_per_s",
        "schedule over HTTP",
        "jobs/s",
        0,
    ),
    Figure::of(
        "in_process_schedule_jobs_per_s",
        "... in process",
        "jobs/s",
        0,
    ),
    Figure::of("http_schedule_ratio", "... HTTP to in process", "", 2),
    Figure::of("http_batch_jobs_per_s", "batches over HTTP", "jobs/s", 0),
    Figure::of("in_process_batch_jobs_per_s", "... in process", "jobs/s", 0),
    Figure::of("http_batch_ratio", "... HTTP to in process", "", 2),
    Figure::of(
        "http_pull_jobs_per_s",
        "pull, finish over HTTP",
        "jobs/s",
        0,
    ),
    Figure::of("in_process_pull_jobs_per_s", "... in process", "jobs/s", 0),
    Figure::of("http_pull_ratio", "... HTTP to in process", "", 2),
    Figure::of("function_jobs_per_s", "to a function", "jobs/s", 0),
    Figure::of("callback_jobs_per_s", "to an HTTP callback", "jobs/s", 0),
    Figure::of("callback_ratio", "... to that of a function", "", 2),
    Figure::of("list_jobs_per_s", "into a list", "jobs/s", 0),
    Figure::of("list_ratio", "... to that of a function", "", 2),
    Figure::of("stream_jobs_per_s", "into a stream", "jobs/s", 0),
    Figure::of("stream_ratio", "... to that of a function", "", 2),
    Figure::of("pop_jobs_per_s", "pop, finish, 1000 wait", "jobs/s", 0),
    Figure::of("pop_in_process_jobs_per_s", "... in process", "jobs/s", 0),
    Figure::of("pop_ratio", "... HTTP to in process", "", 2),
    Figure::of("plain.lateness_ms.p50", "plain listener p50", "ms", 2),
    Figure::of("plain.lateness_ms.p90", "plain listener p90", "ms", 2),
    Figure::of("plain.lateness_ms.p99", "plain listener p99", "ms", 2),
    Figure::of("plain.lateness_ms.p999", "plain listener p99.9", "ms", 2),
    Figure::of("plain.lateness_ms.max", "plain listener max", "ms", 2),
    Figure::of("plain.lost", "lost", "jobs", 0),
];

/// The name and the form of one figure.
pub(super) struct Figure {
    /// Its name in the JSON; dots separate nested objects.
    pub(super) name: &'static str,
    /// Its name in the table.
    pub(super) label: &'static str,
    pub(super) unit: &'static str,
    /// Decimals in the table.
    pub(super) digits: usize,
}

/// All measured values, one for each run.
#[derive(Default)]
pub(super) struct Figures {
    /// By the name of the figure, in ascending order.
    values: BTreeMap<&'static str, Vec<f64>>,
    /// The cost of a job, by phase and then by part.
    pub(super) costs: BTreeMap<&'static str, BTreeMap<&'static str, Vec<f64>>>,
    /// The lateness in all runs together.
    pub(super) lateness: Histogram,
    /// The lateness of the plain form in all runs together.
    pub(super) plain_lateness: Histogram,
}

impl Figure {
    const fn of(
        name: &'static str,
        label: &'static str,
        unit: &'static str,
        digits: usize,
    ) -> Self {
        Figure {
            name,
            label,
            unit,
            digits,
        }
    }
}

impl Figures {
    /// Notes the value of a figure in one run.
    pub(super) fn note(&mut self, name: &'static str, value: f64) {
        let values = self.values.entry(name).or_default();
        values.push(value);
        values.sort_by(f64::total_cmp);
    }

    /// Notes the cost of a job of a phase in one run.
    pub(super) fn note_cost(&mut self, phase: &'static str, cost: Cost) {
        let costs = self.costs.entry(phase).or_default();
        for (part, value) in cost.parts() {
            let values = costs.entry(part).or_default();
            values.push(value);
            values.sort_by(f64::total_cmp);
        }
    }

    /// Notes the percentiles 50, 90, 99, 99.9 and 100 under these names, in milliseconds. Sorts
    /// `lags`.
    pub(super) fn note_lateness(&mut self, names: [&'static str; 5], lags: &mut [Duration]) {
        lags.sort_unstable();
        for (name, share) in names.into_iter().zip([0.5, 0.9, 0.99, 0.999, 1.0]) {
            if let Some(lag) = percentile(lags, share) {
                self.note(name, lag.as_secs_f64() * 1e3);
            }
        }
    }

    /// The values of a figure in all runs, in ascending order; empty if it was not measured.
    pub(super) fn of(&self, name: &str) -> &[f64] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// The medians as one JSON object, with a field `settings`. Figures that were not measured are
    /// `null`.
    pub(super) fn to_json(&self, settings: Value) -> Value {
        let mut object = json!({ "settings": settings });
        for Figure { name, .. } in FIGURES {
            let mut place = &mut object;
            for part in name.split('.') {
                place = &mut place[part];
            }
            *place = median(self.of(name)).map_or(Value::Null, number);
        }
        for (phase, parts) in &self.costs {
            for (part, values) in parts {
                object["cost"][phase][part] = median(values).map_or(Value::Null, number);
            }
        }
        object
    }
}

/// The percentile by nearest rank: the least value that at least this share of all values does not
/// exceed. `None` without values.
fn percentile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The median of values in ascending order; `None` without values.
pub(super) fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted {
        [] => None,
        _ if sorted.len() % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// A value with three decimals; further ones are noise.
fn number(value: f64) -> Value {
    let rounded = (value * 1e3).round() / 1e3;
    if rounded.fract() == 0.0 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_the_median_of_each_figure_and_null_for_what_was_not_measured() {
        let mut figures = Figures::default();
        for value in [3.0, 1.0, 2.000_04] {
            figures.note("claims_per_job", value);
        }
        for value in [4.0, 1.0] {
            figures.note("plain.lateness_ms.p50", value);
        }
        for commands in [2.0, 4.0, 3.0] {
            let cost = Cost {
                commands,
                ..Cost::default()
            };
            figures.note_cost("firing", cost);
        }
        let object = figures.to_json(json!({ "jobs": 7 }));
        assert_eq!(object["cost"]["firing"]["commands"], json!(3));
        assert_eq!(object["claims_per_job"], json!(2));
        assert_eq!(object["plain"]["lateness_ms"]["p50"], json!(2.5));
        assert_eq!(object["lateness_ms"]["max"], Value::Null);
        assert_eq!(object["burst_jobs_per_s"], Value::Null);
        assert_eq!(object["settings"]["jobs"], json!(7));
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let lags: Vec<Duration> = (1..=1000).map(Duration::from_millis).collect();
        let at = |share| percentile(&lags, share).unwrap().as_millis();
        assert_eq!(
            [0.5, 0.9, 0.99, 0.999, 1.0].map(at),
            [500, 900, 990, 999, 1000]
        );
        assert_eq!(percentile(&lags[..1], 0.5), Some(lags[0]));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
