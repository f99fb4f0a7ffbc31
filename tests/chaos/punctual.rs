//! How late jobs were, and how soon they were run again: by what the code under test says, and by
//! the clock of the harness.

use std::collections::HashSet;

use keyfall_testing::journals::{Micros, at_unix_ms};

use crate::history::History;
use crate::journal::{Answer, Ask, Version};
use crate::leases::Leases;
use crate::report::{Phase, Row};
use crate::spared::Spared;
use crate::story::{Call, Run, Story};
use crate::worker::LEASE;

/// For how long after the end of a fault jobs may still be late because of it.
pub(crate) const RECOVERY: Micros = 2_000_000;

/// For how long before a fault a job may have been due that is late because of it.
const EVE: Micros = 200_000;

/// From when on a first start counts as late, beside what the machine is to blame for, where it is
/// asked when they are on time again.
const LATE: Micros = 1_000_000;

impl History {
    /// How late first starts were, how long calls took where others suffered, and how soon what was
    /// interrupted ran again.
    pub(crate) fn measure(&self, leases: &Leases, row: &mut Row) {
        row.spared = (!self.blows.is_empty()).then(Spared::default);
        for (key, story) in &self.stories {
            for run in story.first_runs() {
                self.measure_start(key, story, run, row);
            }
            if let Some(spared) = &mut row.spared {
                let calls = story.calls.iter();
                calls
                    .filter(|call| self.blows.spare(key, call.sent, self.allowance))
                    .for_each(|call| spared.called(key, call));
            }
            for run in &story.runs {
                let claims = leases.claims.get(key).into_iter().flatten();
                let mut lapsed = claims
                    .filter(|claim| claim.fence == run.fence)
                    .filter_map(|claim| claim.lapsed);
                if let Some(deadline) = lapsed.next() {
                    self.redelivered(run, deadline, row);
                }
            }
        }
    }

    fn measure_start(&self, key: &str, story: &Story, run: &Run, row: &mut Row) {
        let due = run.began.saturating_sub(run.late);
        row.late(self.phase(due), run.late);
        let mut late = run.late;
        if let Some(due) = story.due(run) {
            let outside = run.began.saturating_sub(due);
            row.late_outside(self.phase(due), outside);
            late = late.max(outside);
        }
        row.back = row.back.max(self.back(run.began, late));
        if let Some(spared) = &mut row.spared
            && self.blows.spare(key, due, self.allowance)
        {
            spared.started(late);
        }
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

    fn phase(&self, due: Micros) -> Phase {
        match (self.weather.first(), self.weather.last()) {
            (Some(began), _) if due + EVE < *began => Phase::Before,
            (_, Some(over)) if due >= over + RECOVERY => Phase::After,
            _ => Phase::During,
        }
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

impl Story {
    /// The first run of each version that waited for nothing but its time.
    fn first_runs(&self) -> impl Iterator<Item = &Run> {
        let mut seen: HashSet<Version> = HashSet::new();
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by_key(|run| run.began);
        runs.into_iter()
            .filter(move |run| seen.insert(run.version) && run.attempt == 1 && !self.waited(run))
    }

    fn waited(&self, run: &Run) -> bool {
        let mut placed = self.calls.iter();
        placed.any(|call| {
            let is_new = match call.answer {
                Some(Answer::Done) => true,
                // Another job may have been running.
                Some(Answer::Placed) => self.calls.iter().all(|other| other.sent >= call.sent),
                _ => false,
            };
            call.version() == Some(run.version) && !is_new
        })
    }

    /// When a run was due at the latest, by when its job was asked for and acknowledged, if that was
    /// not changed afterwards.
    fn due(&self, run: &Run) -> Option<Micros> {
        let of_it = |call: &&Call| call.version() == Some(run.version);
        let call = self.calls.iter().find(of_it)?;
        let after = match call.ask {
            Ask::Schedule { after, .. } => after,
            Ask::Set { ms, .. } => ms?,
            _ => return None,
        };
        let moves = |other: &Call| {
            let moves = matches!(other.ask, Ask::Move | Ask::Expire { .. } | Ask::Persist);
            moves && other.until > call.sent && other.sent < run.began
        };
        let is_moved = self.calls.iter().any(moves);
        let due = call.until.checked_add(after * 1000)?;
        (!is_moved).then_some(due)
    }
}
