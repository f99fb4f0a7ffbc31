//! Puts the journals together: the faults of all processes, and the events of each key.

use std::collections::HashMap;

use keyfall_testing::journals::Micros;

use crate::adopted::{JUMP, Sight};
use crate::journal::{Answer, CLOCK, Noted, Part, STOPPED, What};
use crate::kept::Kept;
use crate::leases::Leases;
use crate::spared::Blows;
use crate::story::{Call, Rollback, Run, Story};
use crate::witness::Ears;

/// The journals of a trial, each with the name of its process.
pub(crate) type Journals = [(String, Vec<Noted>)];

/// The whole history of a trial.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) stories: HashMap<String, Story>,
    pub(crate) faults: usize,
    /// The times at which each process was stopped.
    pub(crate) stops: Vec<(String, Micros)>,
    /// The processes that ended by themselves, each with its exit status.
    pub(crate) died: Vec<String>,
    /// The times at which a clock of Redis was set.
    pub(crate) clocks_set: Vec<Micros>,
    pub(crate) weather: Vec<Micros>,
    pub(crate) rollbacks: Vec<Rollback>,
    /// Rollbacks of a part of all jobs.
    pub(crate) parts: Vec<(Part, Rollback)>,
    /// Losses of which the copy has made good a part.
    rebuilds: Vec<Rebuild>,
    /// Faults of a part of all jobs.
    pub(crate) blows: Blows,
    /// For each primary that was replaced: the time of its fault, and the time from which the new
    /// one served.
    pub(crate) served: Vec<(Micros, Micros)>,
    /// The last time at which something was done to all.
    struck: Micros,
    /// The lateness that the machine causes by itself.
    pub(crate) allowance: Micros,
    /// States to which Redis went back and must not have.
    pub(crate) wrong: Vec<String>,
}

impl History {
    pub(crate) fn read(journals: &Journals, allowance: Micros) -> Self {
        let mut history = History {
            allowance,
            ..History::default()
        };
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

    /// The facts by which adopted keys are judged.
    pub(crate) fn sight<'a>(
        &'a self,
        journals: &Journals,
        kept: &'a Kept,
        leases: &'a Leases,
    ) -> Sight<'a> {
        let lines = journals.iter().flat_map(|(_, lines)| lines);
        let of_all = |line: &&Noted| {
            matches!(
                line.what,
                What::Begun | What::AtWork | What::Fault { .. } | What::Looked { .. }
            )
        };
        let mut lines: Vec<&Noted> = lines.filter(of_all).collect();
        lines.sort_by_key(|line| line.at);
        let all = lines.iter().map(|line| (line.at, &line.what));
        let mut sight = Sight {
            kept,
            stored: &leases.stored,
            rollbacks: &self.rollbacks,
            ears: Ears::new(all, self.allowance),
            begun: 0,
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

    fn take_in_fault(&mut self, line: &Noted, gone: &mut HashMap<String, Micros>) {
        match &line.what {
            What::Fault { name, process } => {
                self.faults += 1;
                if [JUMP, CLOCK].contains(&name.as_str()) {
                    self.clocks_set.push(line.at);
                }
                match process {
                    Some(process) if name == STOPPED => {
                        self.stops.push((process.clone(), line.at));
                    }
                    Some(_) => {}
                    None => self.struck = line.at,
                }
            }
            What::Weather { .. } => self.weather.push(line.at),
            What::Gone { process } => drop(gone.insert(process.clone(), line.at)),
            What::Died { process, status } => {
                self.faults += 1;
                self.died
                    .push(format!("{process} ended by itself: {status}"));
                gone.insert(process.clone(), line.at);
            }
            What::RolledBack {
                kept,
                since,
                of,
                undone,
            } => {
                let rollback = self.take_in_rollback(*kept, *since, *undone, line.at);
                match of {
                    None => self.rollbacks.push(rollback),
                    Some(part) => self.parts.push((part.clone(), rollback)),
                }
            }
            What::Rebuilt { snapshot, copied } => {
                // Fencing values are ahead of the clock from now on: they date no claim.
                self.clocks_set.push(line.at);
                self.rebuilds.push(Rebuild {
                    snapshot: *snapshot,
                    copied: *copied,
                    at: line.at,
                });
            }
            What::Suffered { part, since } => self.blows.add(part, *since, line.at),
            What::Served => self.served.push((self.struck, line.at)),
            // Lines of producers and workers.
            _ => {}
        }
    }

    /// Redis may have forgotten the writes behind its mark, and no more than its fault explains.
    fn take_in_rollback(
        &mut self,
        kept: Option<Micros>,
        since: Micros,
        undone: Option<(Micros, Micros)>,
        at: Micros,
    ) -> Rollback {
        match kept {
            None => self.wrong.push("Redis came back without its mark".into()),
            Some(kept) if kept < since => self.wrong.push(format!(
                "Redis went back to {kept}, and answers before {since} had to be there"
            )),
            Some(_) => {}
        }
        let kept = kept.unwrap_or(since).max(since);
        Rollback {
            kept,
            at,
            undone,
            is_rebuilt: false,
        }
    }

    fn take_in(&mut self, process: &str, lines: &[Noted], end: Micros) {
        // The position of each call, and the runs of this process.
        let mut calls: HashMap<u64, (String, usize)> = HashMap::new();
        let mut runs: HashMap<(String, u64), Vec<usize>> = HashMap::new();
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
                        replies: Vec::new(),
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
                What::Replied { call, reply, kept } => {
                    let (key, place) = &calls[call];
                    let story = self.stories.get_mut(key).expect("it was sent");
                    let replies = &mut story.calls[*place].replies;
                    if *kept || !replies.is_empty() {
                        replies.push((at, reply.clone()));
                    }
                }
                What::Began {
                    key,
                    version,
                    attempt,
                    fence,
                    late,
                } => {
                    let story = self.stories.entry(key.clone()).or_default();
                    let of_it = runs.entry((key.clone(), *fence)).or_default();
                    of_it.push(story.runs.len());
                    story.runs.push(Run {
                        process: process.to_owned(),
                        version: *version,
                        attempt: *attempt,
                        fence: *fence,
                        late: *late,
                        began: at,
                        ended: end,
                        gone: end,
                        last: false,
                        settled: None,
                        unheard: false,
                    });
                }
                What::Ended { key, fence, last } => {
                    if let Some(run) = self.run(&runs, key, *fence, |_| true) {
                        (run.ended, run.last) = (at, *last);
                    }
                }
                What::Settled { key, fence, taken } => {
                    let is_open = |run: &Run| run.settled.is_none();
                    // A job that was buried or given back without a run has no run.
                    if let Some(run) = self.run(&runs, key, *fence, is_open) {
                        run.settled = Some((at, *taken));
                    }
                }
                What::Unheard { key, fence } => {
                    if let Some(run) = self.run(&runs, key, *fence, |_| true) {
                        run.unheard = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// The run of a process with this fencing value; of several, the last one.
    fn run(
        &mut self,
        runs: &HashMap<(String, u64), Vec<usize>>,
        key: &str,
        fence: u64,
        is_it: impl Fn(&Run) -> bool,
    ) -> Option<&mut Run> {
        let story = self.stories.get_mut(key)?;
        let places = runs.get(&(key.to_owned(), fence))?;
        let mut places = places.iter().rev();
        let place = places.find(|place| is_it(&story.runs[**place]))?;
        story.runs.get_mut(*place)
    }

    /// Whether Redis, a part of it or a clock of it may have gone back, or its jobs were rebuilt.
    pub(crate) fn went_back(&self) -> bool {
        let is_whole = self.rollbacks.is_empty() && self.parts.is_empty();
        !is_whole || !self.rebuilds.is_empty() || !self.clocks_set.is_empty()
    }

    /// The rollbacks of a job's data.
    pub(crate) fn rollbacks(&self, key: &str) -> Vec<Rollback> {
        let parts = self.parts.iter().filter(|(part, _)| part.has(key));
        let of_parts = parts.map(|(_, rollback)| *rollback);
        let rebuilds = self
            .rebuilds
            .iter()
            .map(|it| it.rollback(&self.stories[key]));
        let of_all = self.rollbacks.iter().copied();
        of_all.chain(of_parts).chain(rebuilds).collect()
    }
}

/// A loss, and what was brought back from the copy.
struct Rebuild {
    snapshot: Option<(Micros, Micros)>,
    copied: Micros,
    at: Micros,
}

impl Rebuild {
    /// What a job can have lost. Jobs that the snapshot has stay as they are there: of those the copy
    /// makes nothing good.
    fn rollback(&self, story: &Story) -> Rollback {
        let is_newer = |saved| story.calls.iter().all(|call| call.sent > saved);
        let kept = match self.snapshot {
            Some((began, saved)) if !is_newer(saved) => began,
            _ => self.copied,
        };
        Rollback {
            kept,
            at: self.at,
            undone: None,
            is_rebuilt: true,
        }
    }
}
