//! What a trial came to, as a row of a table.

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

/// What became of values that were set with a time by plain commands. The last five excuse what
/// became of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Adopted {
    /// It is known of all these how they ended.
    pub(crate) set: usize,
    pub(crate) run: usize,
    /// Deleted, replaced, or left without a time.
    pub(crate) cancelled: usize,
    /// Far ahead, and there.
    pub(crate) pending: usize,
    /// Set, or brought forward, and gone, while nobody listened.
    pub(crate) gone_unheard: usize,
    /// Deleted while nobody listened, and run, or still to be.
    pub(crate) deleted_unheard: usize,
    /// Their keys were missing, nobody had listened when they fell due, and that is to cancel.
    pub(crate) missing: usize,
    /// The program was not told what it had done last.
    pub(crate) unanswered: usize,
    /// Redis had gone back to before something that was done to them.
    pub(crate) forgotten: usize,
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
    }

    /// Of a hundred, how many were judged: what became of them was one thing, and nothing else
    /// would have passed. Nothing if there were none.
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

    /// What became of adopted keys, as a row of a table of its own.
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

/// What a trial came to.
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
    /// Those of them that began when their lease was over.
    pub(crate) stale: usize,
    /// How often a process was stopped.
    pub(crate) stopped: usize,
    /// Late settlements that Redis refused.
    pub(crate) refused: usize,
    /// Lost or run after cancel because Redis went back to before the call.
    pub(crate) forgotten: usize,
    lateness: [Vec<Micros>; 3],
    /// The same, by the clock of the harness and by when a job was acknowledged.
    outside: [Vec<Micros>; 3],
    redeliveries: [Vec<Micros>; 3],
    pub(crate) adopted: Adopted,
    /// The same of those that lived while there were faults.
    pub(crate) adopted_in_bad_weather: Adopted,
    /// The longest that it took until another primary served, since something was done to one.
    pub(crate) served: Option<Micros>,
    /// For how long first starts were late after that, at the most.
    pub(crate) back: Option<Micros>,
    /// What became of what nothing was done to, where something was done to a part of all jobs.
    pub(crate) spared: Option<Spared>,
    /// For how long nobody listened to what is done to keys, or could act.
    pub(crate) deaf: Micros,
    /// What the machine did to all of it.
    pub(crate) strain: Strain,
    /// How many bounds were judged and kept.
    pub(crate) bounds: usize,
    /// Which were not judged: the bound, why, and in which scenario.
    pub(crate) unjudged: Vec<(&'static str, &'static str, String)>,
    /// All that must not be.
    pub(crate) violations: Vec<String>,
}

impl Row {
    pub(crate) fn new(scenario: &str) -> Self {
        Row {
            scenario: scenario.to_owned(),
            ..Row::default()
        }
    }

    /// A job that was due in this phase started so late.
    pub(crate) fn late(&mut self, phase: Phase, late: Micros) {
        self.lateness[phase as usize].push(late);
    }

    /// The same, by the clock of the harness.
    pub(crate) fn late_outside(&mut self, phase: Phase, late: Micros) {
        self.outside[phase as usize].push(late);
    }

    /// Nobody says when they were due.
    pub(crate) fn forget_lateness(&mut self) {
        self.lateness = Default::default();
    }

    /// The clock of the harness does not tell when they were due.
    pub(crate) fn forget_outside(&mut self) {
        self.outside = Default::default();
    }

    /// There is no clock to tell these by.
    pub(crate) fn forget_redeliveries(&mut self) {
        self.redeliveries = Default::default();
    }

    /// A job was run again, in this phase, so long after its run had been interrupted.
    pub(crate) fn redelivered(&mut self, phase: Phase, after: Micros) {
        self.redeliveries[phase as usize].push(after);
    }

    /// By whichever clock it is later.
    fn p99(&self, phase: Phase) -> Option<Micros> {
        let both = [&self.lateness, &self.outside];
        let both = both.map(|all| percentile(&all[phase as usize], 99));
        both.into_iter().max().flatten()
    }

    /// Of those that were due after the faults, by the code under test.
    pub(crate) fn late_after(&self, percent: usize) -> Option<Micros> {
        percentile(&self.lateness[Phase::After as usize], percent)
    }

    /// The same, by the clock of the harness.
    pub(crate) fn late_after_outside(&self, percent: usize) -> Option<Micros> {
        percentile(&self.outside[Phase::After as usize], percent)
    }

    /// How many first starts were due after the faults, by either clock.
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

    /// All of them together.
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
