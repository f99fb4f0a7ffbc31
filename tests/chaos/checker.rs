//! Judges every job by the journals of the processes and by the data that is left.

use keyfall_testing::journals::Micros;

use crate::adopted;
use crate::common;
use crate::evidence::Evidence;
use crate::history::{History, Journals};
use crate::journal::Ask;
use crate::kept::Kept;
use crate::leases::Leases;
use crate::plain::{LIFE, PLAIN};
use crate::report::{Adopted, Row};
use crate::story::{Call, Run, Story, Wrong};
use crate::strain::Strain;

/// How many keys are printed with all their events.
const TOLD: usize = 5;

/// The start of the names of workers that settle by themselves, and write down the answers of
/// Redis.
pub(crate) const WORKER: &str = "worker-";

/// Judges a trial by its journals and by the data that is left.
pub(crate) fn check(
    scenario: &str,
    journals: &Journals,
    kept: &Kept,
    leases: &Leases,
    strain: &Strain,
) -> Row {
    let history = History::read(journals, strain.allowance().as_micros() as Micros);
    let sight = history.sight(journals, kept, leases);
    let mut row = Row::new(scenario);
    row.faults = history.faults;
    row.stopped = history.stops.len();
    row.died.clone_from(&history.died);
    row.violations.extend(history.wrong.iter().cloned());
    row.violations.extend(kept.wrong.iter().cloned());
    row.violations.extend(kept.doubles(history.went_back()));
    row.violations.extend(history.unseen(leases));
    // A fail-over may forget a move.
    if history.rollbacks.is_empty() && history.parts.is_empty() {
        let twice = leases.in_two_ledgers();
        row.leases += twice.len();
        row.violations.extend(twice);
    }
    for (key, story) in &history.stories {
        let evidence = Evidence {
            claims: common::claims(key, leases),
            kept: &kept.versions,
            rollbacks: history.rollbacks(key),
            stops: &history.stops,
            clocks_set: &history.clocks_set,
        };
        let calls = story.calls.iter();
        row.jobs += calls.filter(|call| is_acknowledged_schedule(call)).count();
        row.unknown += story.calls.iter().filter(|call| call.is_unknown()).count();
        row.executions += story.overlaps().count();
        row.stale += story.stale(&evidence);
        let repeats = story.calls.iter();
        row.repeats += repeats
            .map(|call| call.repeats_elsewhere(&history.served))
            .sum::<usize>();
        let refused = |run: &&Run| matches!(run.settled, Some((_, false)));
        row.refused += story.runs.iter().filter(refused).count();
        let faults = if key.starts_with(PLAIN) {
            let mut faults = story.faults_of_any(&evidence);
            let mut count = Adopted::default();
            faults.extend(adopted::judge(key, story, &sight, &mut count));
            row.adopted.add(&count);
            if history.was_in_bad_weather(story) {
                row.adopted_in_bad_weather.add(&count);
            }
            faults
        } else {
            let mut faults = story.faults(&evidence);
            faults.extend(story.hidden());
            faults
        };
        for wrong in faults {
            row.tell(key, story, wrong);
        }
    }
    history.measure(leases, &mut row);
    row.deaf = sight.ears.deaf();
    row.served = history.served.iter().map(|(from, to)| to - from).max();
    row
}

fn is_acknowledged_schedule(call: &Call) -> bool {
    matches!(call.ask, Ask::Schedule { .. }) && call.is_acknowledged()
}

impl Row {
    fn tell(&mut self, key: &str, story: &Story, wrong: Wrong) {
        let told = match wrong {
            Wrong::Forgotten => {
                self.forgotten += 1;
                return;
            }
            Wrong::Lost(told) => {
                self.lost += 1;
                told
            }
            Wrong::AfterCancel(told) => {
                self.after_cancel += 1;
                told
            }
            Wrong::Leases(told) => {
                self.leases += 1;
                told
            }
            Wrong::Other(told) => told,
        };
        let whole = if self.violations.len() < TOLD {
            format!("\n{story:#?}")
        } else {
            String::new()
        };
        self.violations.push(format!("{key}: {told}{whole}"));
    }
}

impl History {
    /// Events that the readers of logs must have seen and did not: they may look for a form that
    /// the logs no longer have.
    fn unseen(&self, leases: &Leases) -> Vec<String> {
        let mut wrong = Vec::new();
        let runs = || self.stories.values().flat_map(|story| &story.runs);
        let mut of_workers = runs().filter(|run| run.last && run.process.starts_with(WORKER));
        if of_workers.next().is_some() && runs().all(|run| run.settled.is_none()) {
            wrong.push("no worker's log tells of a run that was settled".into());
        }
        let interrupted = self.stories.values().map(Story::interrupted).sum::<usize>();
        let mut claims = leases.claims.values().flatten();
        let has_lapsed = claims.any(|claim| claim.lapsed.is_some());
        // The log of a server that became the primary begins later.
        let is_whole = self.served.is_empty() && self.rollbacks.is_empty();
        if interrupted > 0 && !has_lapsed && is_whole && !leases.claims.is_empty() {
            wrong.push(format!(
                "the log of Redis shows no lease that lapsed, and {interrupted} runs were \
                 interrupted and then run again"
            ));
        }
        wrong
    }

    /// Whether a plain key was there during the faults, to within seconds.
    fn was_in_bad_weather(&self, story: &Story) -> bool {
        let (Some(first), Some(last)) = (story.calls.first(), story.calls.last()) else {
            return false;
        };
        let (Some(began), Some(over)) = (self.weather.first(), self.weather.last()) else {
            return false;
        };
        first.sent < *over && last.sent + LIFE.end * 1000 > *began
    }
}

impl Story {
    /// The number of runs that ended with their process, and were followed by another run of the
    /// same version.
    fn interrupted(&self) -> usize {
        let is_followed = |run: &&Run| {
            let follows = |other: &Run| other.version == run.version && other.began > run.gone;
            // What a consumer has taken from a list or a stream is delivered again by that, and its
            // lease need not lapse.
            let has_lease = run.process.starts_with(WORKER);
            has_lease && run.ended == run.gone && self.runs.iter().any(follows)
        };
        self.runs.iter().filter(is_followed).count()
    }
}
