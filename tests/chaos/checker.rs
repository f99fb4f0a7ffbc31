//! Puts the journals together, and decides what became of every job.

use std::collections::HashMap;
use std::path::Path;

use crate::adopted::{self, Sight};
use crate::journal::{Answer, Ask, Line, Micros, Part, Version, What, at_unix_ms, read_all};
use crate::kept::Kept;
use crate::leases::Leases;
use crate::plain::{LIFE, PLAIN};
use crate::report::{Adopted, Phase, Row};
use crate::spared::{Blows, Spared};
use crate::story::{Call, Rollback, Run, Story, Wrong};
use crate::strain::Strain;
use crate::witness::Ears;
use crate::worker::LEASE;

/// For how long after the end of a fault jobs may still be late because of it.
pub(crate) const RECOVERY: Micros = 2_000_000;

/// For how long before a fault a job may have been due that is late because of it.
const EVE: Micros = 200_000;

/// From when on a first start counts as late, beside what the machine is to blame for, where it is
/// asked when they are on time again.
const LATE: Micros = 1_000_000;

/// How many keys are told with all that happened to them.
const TOLD: usize = 5;

/// All that happened.
#[derive(Default)]
struct History {
    stories: HashMap<String, Story>,
    faults: usize,
    weather: Vec<Micros>,
    rollbacks: Vec<Rollback>,
    /// Those that a part of all jobs went through.
    parts: Vec<(Part, Rollback)>,
    /// What was done to some of them.
    blows: Blows,
    /// When each primary was ill-treated that another one took over from, and when that served.
    served: Vec<(Micros, Micros)>,
    /// When something was done to all, the last time.
    struck: Micros,
    /// How late the machine makes things by itself.
    allowance: Micros,
}

/// Decides on a trial by its journals and by what is left.
pub(crate) fn check(
    scenario: &str,
    journals: &Path,
    kept: &Kept,
    leases: &Leases,
    strain: &Strain,
) -> Row {
    let journals = read_all(journals);
    let mut history = History::read(&journals);
    history.allowance = strain.allowance().as_micros() as Micros;
    let sight = history.sight(&journals, kept, leases);
    let mut row = Row::new(scenario);
    row.faults = history.faults;
    row.spared = (!history.blows.is_empty()).then(Spared::default);
    row.violations.extend(kept.wrong.iter().cloned());
    // What a fail-over forgets may be a move.
    if history.rollbacks.is_empty() && history.parts.is_empty() {
        let twice = leases.in_two_ledgers();
        row.leases += twice.len();
        row.violations.extend(twice);
    }
    for (key, story) in &history.stories {
        let calls = story.calls.iter();
        row.jobs += calls.filter(|call| is_acknowledged_schedule(call)).count();
        row.unknown += story.calls.iter().filter(|call| call.is_unknown()).count();
        row.executions += story.overlaps().count();
        row.stale += story.stale();
        let refused = |run: &&Run| run.settled == Some(false);
        row.refused += story.runs.iter().filter(refused).count();
        let faults = if key.starts_with(PLAIN) {
            let mut faults = story.faults_of_any(&history.rollbacks(key));
            let mut count = Adopted::default();
            faults.extend(adopted::judge(key, story, &sight, &mut count));
            row.adopted.add(&count);
            if history.was_in_bad_weather(story) {
                row.adopted_in_bad_weather.add(&count);
            }
            faults
        } else {
            story.faults(&kept.versions, &history.rollbacks(key))
        };
        for wrong in faults {
            let told = match wrong {
                Wrong::Forgotten => {
                    row.forgotten += 1;
                    continue;
                }
                Wrong::Lost(told) => {
                    row.lost += 1;
                    told
                }
                Wrong::AfterCancel(told) => {
                    row.after_cancel += 1;
                    told
                }
                Wrong::Leases(told) => {
                    row.leases += 1;
                    told
                }
                Wrong::Other(told) => told,
            };
            let whole = if row.violations.len() < TOLD {
                format!("\n{story:#?}")
            } else {
                String::new()
            };
            row.violations.push(format!("{key}: {told}{whole}"));
        }
        history.measure(key, story, &mut row);
        for run in &story.runs {
            if let Some(deadline) = leases.lapsed.get(&(key.clone(), run.fence)) {
                history.redelivered(run, *deadline, &mut row);
            }
        }
    }
    row.deaf = sight.ears.deaf();
    row.served = history.served.iter().map(|(from, to)| to - from).max();
    row
}

fn is_acknowledged_schedule(call: &Call) -> bool {
    matches!(call.ask, Ask::Schedule { .. }) && call.is_acknowledged()
}

impl History {
    fn read(journals: &[(String, Vec<Line>)]) -> Self {
        let mut history = History::default();
        let mut gone = HashMap::new();
        for line in journals.iter().flat_map(|(_, lines)| lines) {
            history.take_in_fault(line, &mut gone);
        }
        for (process, lines) in journals {
            let end = gone.get(process.as_str()).copied().unwrap_or(Micros::MAX);
            history.take_in(process, lines, end);
        }
        history
    }

    /// What adopted keys are judged by.
    fn sight<'a>(
        &'a self,
        journals: &[(String, Vec<Line>)],
        kept: &'a Kept,
        leases: &'a Leases,
    ) -> Sight<'a> {
        let lines = journals.iter().flat_map(|(_, lines)| lines);
        let of_all = |line: &&Line| matches!(line.what, What::Fault { .. } | What::Looked { .. });
        let mut lines: Vec<&Line> = lines.filter(of_all).collect();
        lines.sort_by_key(|line| line.at);
        let all = lines.iter().map(|line| (line.at, &line.what));
        let mut sight = Sight {
            kept,
            stored: &leases.stored,
            rollbacks: &self.rollbacks,
            ears: Ears::new(all, self.allowance),
            hindrances: Vec::new(),
            jumps: Vec::new(),
            evicts: false,
            allowance: self.allowance,
        };
        lines
            .iter()
            .for_each(|line| sight.take_in(&line.what, line.at));
        sight
    }

    fn take_in_fault(&mut self, line: &Line, gone: &mut HashMap<String, Micros>) {
        match &line.what {
            What::Fault { process, .. } => {
                self.faults += 1;
                if process.is_none() {
                    self.struck = line.at;
                }
            }
            What::Weather { .. } => self.weather.push(line.at),
            What::Gone { process } => drop(gone.insert(process.clone(), line.at)),
            What::RolledBack { kept, of } => {
                let rollback = Rollback {
                    kept: *kept,
                    at: line.at,
                };
                match of {
                    None => self.rollbacks.push(rollback),
                    Some(part) => self.parts.push((part.clone(), rollback)),
                }
            }
            What::Suffered { part, since } => self.blows.add(part, *since, line.at),
            What::Served => self.served.push((self.struck, line.at)),
            // Of producers and workers.
            _ => {}
        }
    }

    fn take_in(&mut self, process: &str, lines: &[Line], end: Micros) {
        // Where each call stands, and the runs of this process that may still end.
        let mut calls: HashMap<u64, (String, usize)> = HashMap::new();
        let mut runs: HashMap<String, Vec<usize>> = HashMap::new();
        for line in lines {
            let at = line.at;
            match &line.what {
                What::Sent { call, key, ask } => {
                    let story = self.stories.entry(key.clone()).or_default();
                    calls.insert(*call, (key.clone(), story.calls.len()));
                    story.calls.push(Call {
                        sent: at,
                        until: Micros::MAX,
                        ask: ask.clone(),
                        answer: None,
                    });
                }
                What::Answered { call, answer } => {
                    let (key, place) = &calls[call];
                    let story = self.stories.get_mut(key).expect("it was sent");
                    let call = &mut story.calls[*place];
                    if !matches!(answer, Answer::Unknown(_)) {
                        call.until = at;
                    }
                    call.answer = Some(answer.clone());
                }
                What::Began {
                    key,
                    version,
                    attempt,
                    fence,
                    late,
                } => {
                    let story = self.stories.entry(key.clone()).or_default();
                    runs.entry(key.clone()).or_default().push(story.runs.len());
                    story.runs.push(Run {
                        process: process.to_owned(),
                        version: *version,
                        attempt: *attempt,
                        fence: *fence,
                        late: *late,
                        began: at,
                        ended: end,
                        last: false,
                        settled: None,
                    });
                }
                What::Ended { key, fence, last } => {
                    let is_it = |run: &Run| run.fence == *fence;
                    if let Some(run) = self.last_run(key, &runs, is_it) {
                        (run.ended, run.last) = (at, *last);
                    }
                }
                What::Settled {
                    key,
                    attempt,
                    taken,
                } => {
                    let is_it = |run: &Run| run.attempt == *attempt && run.settled.is_none();
                    // What was buried or given back without a run has none.
                    if let Some(run) = self.first_ended(key, &runs, is_it) {
                        run.settled = Some(*taken);
                    }
                }
                _ => {}
            }
        }
    }

    /// Of several runs, which have the same number where a claim was forgotten, the one that
    /// ended first.
    fn first_ended(
        &mut self,
        key: &str,
        runs: &HashMap<String, Vec<usize>>,
        is_it: impl Fn(&Run) -> bool,
    ) -> Option<&mut Run> {
        let story = self.stories.get_mut(key)?;
        let places = runs.get(key)?.iter();
        let those = places.filter(|place| is_it(&story.runs[**place]));
        let place = those.min_by_key(|place| story.runs[**place].ended)?;
        story.runs.get_mut(*place)
    }

    fn last_run(
        &mut self,
        key: &str,
        runs: &HashMap<String, Vec<usize>>,
        is_it: impl Fn(&Run) -> bool,
    ) -> Option<&mut Run> {
        let story = self.stories.get_mut(key)?;
        let mut places = runs.get(key)?.iter().rev();
        let place = places.find(|place| is_it(&story.runs[**place]))?;
        story.runs.get_mut(*place)
    }

    /// Those that a job went through.
    fn rollbacks(&self, key: &str) -> Vec<Rollback> {
        let parts = self.parts.iter().filter(|(part, _)| part.has(key));
        let of_parts = parts.map(|(_, rollback)| *rollback);
        self.rollbacks.iter().copied().chain(of_parts).collect()
    }

    /// For how long another primary had served when a job began that was late; nothing if the next
    /// one had been ill-treated by then.
    fn back(&self, began: Micros, late: Micros) -> Option<Micros> {
        let mut before = self.served.iter().rev().map(|(_, served)| *served);
        let served = before.find(|served| *served <= began)?;
        let is_next = |(struck, _): &&(Micros, Micros)| (served..began).contains(struck);
        let is_over = self.served.iter().any(|it| is_next(&it));
        (late > LATE + self.allowance && !is_over).then_some(began - served)
    }

    /// How late the first starts were, and how long calls took where others suffered.
    fn measure(&self, key: &str, story: &Story, row: &mut Row) {
        let mut seen: Vec<Version> = Vec::new();
        let mut runs: Vec<&Run> = story.runs.iter().collect();
        runs.sort_by_key(|run| run.began);
        for run in runs {
            let waited = story.calls.iter().any(|call| {
                call.version() == Some(run.version) && call.answer != Some(Answer::Done)
            });
            if !seen.contains(&run.version) {
                seen.push(run.version);
                if run.attempt == 1 && !waited {
                    let due = run.began.saturating_sub(run.late);
                    row.late(self.phase(due), run.late);
                    row.back = row.back.max(self.back(run.began, run.late));
                    if let Some(spared) = row
                        .spared
                        .as_mut()
                        .filter(|_| self.blows.spare(key, due, self.allowance))
                    {
                        spared.started(run.late);
                    }
                }
            }
        }
        let Some(spared) = &mut row.spared else {
            return;
        };
        let calls = story.calls.iter();
        calls
            .filter(|call| self.blows.spare(key, call.sent, self.allowance))
            .for_each(|call| spared.called(key, call));
    }

    fn phase(&self, due: Micros) -> Phase {
        match (self.weather.first(), self.weather.last()) {
            (Some(began), _) if due + EVE < *began => Phase::Before,
            (_, Some(over)) if due >= over + RECOVERY => Phase::After,
            _ => Phase::During,
        }
    }

    /// Whether a plain key was there while there were faults, as far as it was a matter of seconds.
    fn was_in_bad_weather(&self, story: &Story) -> bool {
        let (Some(first), Some(last)) = (story.calls.first(), story.calls.last()) else {
            return false;
        };
        let (Some(began), Some(over)) = (self.weather.first(), self.weather.last()) else {
            return false;
        };
        first.sent < *over && last.sent + LIFE.end * 1000 > *began
    }

    /// How long it took until this run began, which took the place of one that had had its lease
    /// until `deadline`: from the last claim or renewal of that one, or from the end of the
    /// faults, whichever was later.
    fn redelivered(&self, run: &Run, deadline: u64, row: &mut Row) {
        let alive = at_unix_ms(deadline).saturating_sub(LEASE.as_micros() as Micros);
        let over = self.weather.last().copied().unwrap_or(Micros::MAX);
        if run.began < over {
            row.redelivered(Phase::During, run.began.saturating_sub(alive));
        } else {
            row.redelivered(Phase::After, run.began.saturating_sub(alive.max(over)));
        }
    }
}
