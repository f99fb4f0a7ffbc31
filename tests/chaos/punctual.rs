//! How late jobs were, and how soon they ran again: by the code under test, and by the clock of the
//! harness.

use std::collections::HashSet;

use keyfall_testing::journals::{Micros, at_unix_ms};

use crate::history::History;
use crate::journal::{Answer, Ask, Version};
use crate::leases::Leases;
use crate::report::{Phase, Row};
use crate::spared::Spared;
use crate::story::{Call, Run, Story};
use crate::worker::LEASE;

/// How long after the end of a fault jobs may still be late because of it.
pub(crate) const RECOVERY: Micros = 2_000_000;

/// How long before a fault a job may have been due that is late because of it.
const EVE: Micros = 200_000;

/// The lateness from which on a first start counts as late, beside the machine's share, when the
/// time until punctual starts is measured.
const LATE: Micros = 1_000_000;

impl History {
    /// Measures how late first starts were, how long calls took while others suffered, and how soon
    /// interrupted jobs ran again.
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

    /// How long another primary had served when a late job began; `None` if a fault had hit the
    /// next primary by then.
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

    /// Measures how long it took until this run began, which replaced a run with a lease until
    /// `deadline`: from the last claim or renewal of the replaced run, or from the end of the
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
    /// The first run of each version that waited for its time alone.
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

    /// The latest time at which a run was due, by the schedule call and its acknowledgement, if no
    /// later call changed it.
    fn due(&self, run: &Run) -> Option<Micros> {
        let (call, after) = self.timed(run)?;
        call.until.checked_add(after)
    }

    /// The earliest time at which a run was due, by the same call, if no later call changed it.
    pub(crate) fn soonest(&self, run: &Run) -> Option<Micros> {
        let (call, after) = self.timed(run)?;
        Some(call.sent + after)
    }

    /// The call that gave the job of a run its time, and the delay, if no later call changed it.
    fn timed(&self, run: &Run) -> Option<(&Call, Micros)> {
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
        (!is_moved).then_some((call, after * 1000))
    }
}
