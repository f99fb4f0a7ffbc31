//! The result of a trial, as a row of a table.

use std::fmt;

use keyfall_testing::journals::Micros;

use crate::spared::Spared;
use crate::strain::Strain;

/// When a job was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Before,
    During,
    After,
}

/// The fates of values that plain commands set with a time. The counts from `gone_unheard` to
/// `forgotten` are excuses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Adopted {
    /// All values with a known end.
    pub(crate) set: usize,
    pub(crate) run: usize,
    /// The values that were deleted, replaced, or left without a time.
    pub(crate) cancelled: usize,
    /// The values whose time is far ahead, and that are there.
    pub(crate) pending: usize,
    /// The values that were set or brought forward, and expired, while nobody listened.
    pub(crate) gone_unheard: usize,
    /// The values that were deleted while nobody listened, and whose job ran, or is still to run.
    pub(crate) deleted_unheard: usize,
    /// Their keys were missing, nobody had listened when they fell due, and a missing key cancels.
    pub(crate) missing: usize,
    /// The program got no answer to its last command.
    pub(crate) unanswered: usize,
    /// Redis had gone back to a time before a command on them.
    pub(crate) forgotten: usize,
    /// The commands close to the time of their key that found the key, and the others: they are no
    /// values.
    pub(crate) found_in_time: usize,
    pub(crate) found_too_late: usize,
}

impl Adopted {
    pub(crate) fn add(&mut self, other: &Adopted) {
        self.set += other.set;
        self.run += other.run;
        self.cancelled += other.cancelled;
        self.pending += other.pending;
        self.gone_unheard += other.gone_unheard;
        self.deleted_unheard += other.deleted_unheard;
        self.missing += other.missing;
        self.unanswered += other.unanswered;
        self.forgotten += other.forgotten;
        self.found_in_time += other.found_in_time;
        self.found_too_late += other.found_too_late;
    }

    /// The percentage of judged keys: keys for which only one fate was acceptable. `None` if there
    /// were no keys.
    pub(crate) fn judged(&self) -> Option<usize> {
        let judged = self.run + self.cancelled + self.pending;
        let unheard = self.gone_unheard + self.deleted_unheard + self.missing;
        let excused = unheard + self.unanswered + self.forgotten;
        (judged * 100).checked_div(judged + excused)
    }
}

impl Row {
    /// How its fail-overs went, as a row of a table of its own, if there were any.
    pub(crate) fn fail_overs(&self) -> Option<String> {
        Some(format!(
            "| {:25} | {:>18} | {:>17} | {:9} |",
            self.scenario,
            written(Some(self.served?)),
            written(self.back),
            self.forgotten,
        ))
    }

    /// The fates of adopted keys, as a row of a table of its own.
    pub(crate) fn adopted(&self) -> String {
        let it = &self.adopted;
        let judged = [it, &self.adopted_in_bad_weather].map(|it| match it.judged() {
            Some(percent) => format!("{percent} %"),
            None => String::new(),
        });
        format!(
            "| {:25} | {:6} | {:6} | {:9} | {:7} | {:12} | {:15} | {:7} | {:10} | {:9} | {:>8} | {:>6} | {:>14} |",
            self.scenario,
            it.set,
            it.run,
            it.cancelled,
            it.pending,
            it.gone_unheard,
            it.deleted_unheard,
            it.missing,
            it.unanswered,
            it.forgotten,
            written(Some(self.deaf)),
            judged[0],
            judged[1],
        )
    }
}

/// The head of that table.
pub(crate) const HEAD_OF_ADOPTED: &str = "\
| adopted keys              |    set |    run | cancelled | pending | gone unheard | deleted unheard | missing | unanswered | forgotten | unheard  | judged | in bad weather |
|---------------------------|-------:|-------:|----------:|--------:|-------------:|----------------:|--------:|-----------:|----------:|---------:|-------:|---------------:|";

/// The head of the table of fail-overs.
pub(crate) const HEAD_OF_FAIL_OVERS: &str = "\
| fail-overs                | served again after | late starts until | forgotten |
|---------------------------|-------------------:|------------------:|----------:|";

/// The result of a trial.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    /// Acknowledged schedules.
    pub(crate) jobs: usize,
    pub(crate) faults: usize,
    /// Calls whose outcome the caller never learned.
    pub(crate) unknown: usize,
    pub(crate) lost: usize,
    pub(crate) after_cancel: usize,
    /// Leases that were valid while another of the same job was.
    pub(crate) leases: usize,
    /// Runs that had not ended when another of the same job began.
    pub(crate) executions: usize,
    /// The overlapping runs that began when their lease was over.
    pub(crate) stale: usize,
    /// How often a process was stopped.
    pub(crate) stopped: usize,
    /// The processes that ended by themselves, each with its exit status.
    pub(crate) died: Vec<String>,
    /// Late settlements that Redis refused.
    pub(crate) refused: usize,
    /// Lost or run after cancel because Redis went back to before the call.
    pub(crate) forgotten: usize,
    /// Repeats of a call under its id, each at another primary than the one that had carried it out.
    pub(crate) repeats: usize,
    lateness: [Vec<Micros>; 3],
    /// The same, by the clock of the harness and by the acknowledgement of the jobs.
    outside: [Vec<Micros>; 3],
    redeliveries: [Vec<Micros>; 3],
    pub(crate) adopted: Adopted,
    /// The same of keys that lived during the faults.
    pub(crate) adopted_in_bad_weather: Adopted,
    /// The longest time from a fault of a primary until another one served.
    pub(crate) served: Option<Micros>,
    /// The longest time for which first starts were late after that.
    pub(crate) back: Option<Micros>,
    /// The fate of the jobs that no fault hit, while a part of all jobs suffered.
    pub(crate) spared: Option<Spared>,
    /// How long nobody listened to key events, or could act on them.
    pub(crate) deaf: Micros,
    /// The delays that the machine caused.
    pub(crate) strain: Strain,
    /// How many bounds were judged and kept.
    pub(crate) bounds: usize,
    /// The bounds that were not judged: the bound, the reason, and the scenario.
    pub(crate) unjudged: Vec<(&'static str, &'static str, String)>,
    /// Why the scenario was not played, if it was not.
    skipped: Option<&'static str>,
    /// All violations.
    pub(crate) violations: Vec<String>,
}

impl Row {
    pub(crate) fn new(scenario: &str) -> Self {
        Row {
            scenario: scenario.to_owned(),
            ..Row::default()
        }
    }

    /// The row of a scenario that cannot be played here, for this reason: nothing of it is judged.
    pub(crate) fn skipped(scenario: &str, why: &'static str) -> Self {
        Row {
            skipped: Some(why),
            unjudged: vec![("all of it", why, scenario.to_owned())],
            ..Row::new(scenario)
        }
    }

    /// Notes that a job that was due in this phase started so late.
    pub(crate) fn late(&mut self, phase: Phase, late: Micros) {
        self.lateness[phase as usize].push(late);
    }

    /// The same, by the clock of the harness.
    pub(crate) fn late_outside(&mut self, phase: Phase, late: Micros) {
        self.outside[phase as usize].push(late);
    }

    /// Drops the measured lateness: nothing tells when the jobs were due.
    pub(crate) fn forget_lateness(&mut self) {
        self.lateness = Default::default();
        (self.served, self.back) = (None, None);
    }

    /// Drops the lateness by the clock of the harness, which does not tell when the jobs were due.
    pub(crate) fn forget_outside(&mut self) {
        self.outside = Default::default();
    }

    /// Drops the redeliveries: no clock measures them.
    pub(crate) fn forget_redeliveries(&mut self) {
        self.redeliveries = Default::default();
    }

    /// Notes that a job ran again, in this phase, so long after its run had been interrupted.
    pub(crate) fn redelivered(&mut self, phase: Phase, after: Micros) {
        self.redeliveries[phase as usize].push(after);
    }

    /// By the clock that shows the greater lateness.
    fn p99(&self, phase: Phase) -> Option<Micros> {
        let both = [&self.lateness, &self.outside];
        let both = both.map(|all| percentile(&all[phase as usize], 99));
        both.into_iter().max().flatten()
    }

    /// The lateness of the jobs that were due after the faults, by the code under test.
    pub(crate) fn late_after(&self, percent: usize) -> Option<Micros> {
        percentile(&self.lateness[Phase::After as usize], percent)
    }

    /// The same, by the clock of the harness.
    pub(crate) fn late_after_outside(&self, percent: usize) -> Option<Micros> {
        percentile(&self.outside[Phase::After as usize], percent)
    }

    /// The number of first starts that were due after the faults, by either clock.
    pub(crate) fn starts_after(&self) -> usize {
        let [after, outside] =
            [&self.lateness, &self.outside].map(|all| all[Phase::After as usize].len());
        after.max(outside)
    }

    /// The longest that an interrupted job had to wait for its next run.
    pub(crate) fn redelivery(&self, phases: &[Phase]) -> Option<Micros> {
        let phases = phases
            .iter()
            .map(|phase| &self.redeliveries[*phase as usize]);
        phases.flatten().max().copied()
    }

    fn add(&mut self, other: &Row) {
        self.jobs += other.jobs;
        self.faults += other.faults;
        self.unknown += other.unknown;
        self.lost += other.lost;
        self.after_cancel += other.after_cancel;
        self.leases += other.leases;
        self.executions += other.executions;
        self.stale += other.stale;
        self.stopped += other.stopped;
        self.refused += other.refused;
        self.forgotten += other.forgotten;
        for (all, phase) in self.lateness.iter_mut().zip(&other.lateness) {
            all.extend(phase);
        }
        for (all, phase) in self.outside.iter_mut().zip(&other.outside) {
            all.extend(phase);
        }
        for (all, phase) in self.redeliveries.iter_mut().zip(&other.redeliveries) {
            all.extend(phase);
        }
        self.adopted.add(&other.adopted);
        let bad = &other.adopted_in_bad_weather;
        self.adopted_in_bad_weather.add(bad);
        self.served = self.served.max(other.served);
        self.back = self.back.max(other.back);
        if let Some(spared) = &other.spared {
            self.spared.get_or_insert_default().add(spared);
        }
        self.deaf += other.deaf;
        self.strain.add(&other.strain);
        self.bounds += other.bounds;
        self.unjudged.extend(other.unjudged.iter().cloned());
        self.violations.extend(other.violations.iter().cloned());
    }

    /// The sum of all rows.
    pub(crate) fn sum(rows: &[Row]) -> Self {
        let mut sum = Row::new("all");
        rows.iter().for_each(|row| sum.add(row));
        sum
    }
}

pub(crate) fn percentile(values: &[Micros], percent: usize) -> Option<Micros> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * percent).div_ceil(100).checked_sub(1)?;
    sorted.get(place).copied()
}

/// The head of the table, in Markdown.
pub(crate) const HEAD: &str = "\
| scenario                  |   jobs | faults | unknown | lost | after cancel | leases | executions | refused | forgotten |   before |   during |    after | redelivery |
|---------------------------|-------:|-------:|--------:|-----:|-------------:|-------:|-----------:|--------:|----------:|---------:|---------:|---------:|-----------:|";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = self.skipped {
            return write!(
                f,
                "| {:25} | not played, and not judged: {why} |",
                self.scenario
            );
        }
        write!(
            f,
            "| {:25} | {:6} | {:6} | {:7} | {:4} | {:12} | {:6} | {:10} | {:7} | {:9} | {:>8} | {:>8} | {:>8} | {:>10} |",
            self.scenario,
            self.jobs,
            self.faults,
            self.unknown,
            self.lost,
            self.after_cancel,
            self.leases,
            self.executions,
            self.refused,
            self.forgotten,
            written(self.p99(Phase::Before)),
            written(self.p99(Phase::During)),
            written(self.p99(Phase::After)),
            written(self.redelivery(&[Phase::During, Phase::After])),
        )
    }
}

pub(crate) fn written(time: Option<Micros>) -> String {
    match time {
        Some(us) if us < 10_000 => format!("{:.1} ms", us as f64 / 1e3),
        Some(us) if us < 1_000_000 => format!("{} ms", us / 1000),
        Some(us) => format!("{:.1} s", us as f64 / 1e6),
        None => String::new(),
    }
}
