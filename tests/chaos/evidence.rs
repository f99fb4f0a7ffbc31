//! Facts beside the story of a key, which may explain its events.

use std::borrow::Cow;
use std::collections::HashMap;

use keyfall_testing::journals::{Micros, at_unix_ms};

use crate::journal::Version;
use crate::kept::KeptAs;
use crate::leases::Claim;
use crate::story::{Rollback, Run};
use crate::worker::LEASE;

/// The least fencing value that Redis gives: it is the time of the claim in µs, or more. Consumers
/// that get no fencing value have smaller ones.
const FIRST_FENCE: u64 = 1_000_000_000_000_000;

/// How exactly the monotonic clock tells times of Redis' clock.
const EXACT: Micros = 5_000;

/// The longest time from a claim to the start of its job.
const ON_ITS_WAY: Micros = 1_000_000;

/// Words for an attempt whose end was not heard.
const UNHEARD: [&str; 3] = ["did not answer", "broke off", "has not acknowledged"];

/// The facts that may explain the story of one key.
pub(crate) struct Evidence<'a> {
    /// The claims of the job.
    pub(crate) claims: Cow<'a, [Claim]>,
    /// The stored data at the end.
    pub(crate) kept: &'a HashMap<Version, KeptAs>,
    /// The rollbacks of the job's data.
    pub(crate) rollbacks: Vec<Rollback>,
    /// The times at which each process was stopped.
    pub(crate) stops: &'a [(String, Micros)],
    /// The times at which a clock of Redis was set.
    pub(crate) clocks_set: &'a [Micros],
}

impl Evidence<'_> {
    /// The fencing value that Redis gave to a run. If its consumer did not get it, the value of the
    /// last claim before the run.
    pub(crate) fn claim(&self, run: &Run) -> Option<u64> {
        if run.fence >= FIRST_FENCE {
            return Some(run.fence);
        }
        let claims = self.claims.iter();
        let before = claims.filter(|claim| at_unix_ms(claim.at) <= run.began + EXACT);
        before.map(|claim| claim.fence).max()
    }

    /// The time of a run's claim.
    pub(crate) fn claimed(&self, run: &Run) -> Option<Micros> {
        let fence = self.claim(run)?;
        Some(at_unix_ms(fence / 1000))
    }

    /// Whether a run can have been claimed before this time. `None` if nothing dates the claim.
    pub(crate) fn was_claimed_before(&self, run: &Run, at: Micros) -> Option<bool> {
        if !self.clocks_set.is_empty() {
            // Then no time of Redis dates the claim; but a job runs soon after its claim.
            return (run.began <= at.saturating_add(ON_ITS_WAY)).then_some(true);
        }
        Some(self.claimed(run)? <= at.saturating_add(EXACT))
    }

    /// Whether a time is certainly before another one by the clock of Redis, too.
    pub(crate) fn is_before(&self, time: Micros, other: Micros) -> bool {
        self.clocks_set.is_empty() && time + EXACT < other
    }

    /// Whether the lease of a run, or of a run between both, had lapsed before the next run was
    /// claimed.
    pub(crate) fn lapsed(&self, run: &Run, next: &Run) -> bool {
        let (Some(first), Some(last)) = (self.claim(run), self.claim(next)) else {
            return false;
        };
        self.lapses()
            .any(|claim| first < claim.fence && claim.fence <= last)
    }

    /// Whether nothing tells which claim belongs to a run: only time tells, and the clock was set.
    pub(crate) fn has_no_time(&self, run: &Run) -> bool {
        !self.clocks_set.is_empty() && run.fence < FIRST_FENCE
    }

    /// The claims that took the place of a lapsed lease.
    pub(crate) fn lapses(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.lapsed.is_some())
    }

    /// Whether the sender of a run's job says that it did not hear of the end.
    pub(crate) fn was_unheard(&self, run: &Run) -> bool {
        let claim = self.claim(run);
        let mut claims = self.claims.iter();
        let claim = claims.find(|it| Some(it.fence) == claim);
        let error = claim.and_then(|claim| claim.error.as_ref());
        error.is_some_and(|error| UNHEARD.iter().any(|words| error.contains(words)))
    }

    /// Whether the process of a run was killed or stopped before this time, without a report of the
    /// end.
    pub(crate) fn was_stopped(&self, run: &Run, before: Micros) -> bool {
        let mut stops = self.stops.iter();
        let stopped = |(process, at): &(String, Micros)| {
            *process == run.process && (run.began..before).contains(at)
        };
        run.gone < before || stops.any(stopped)
    }

    /// Whether a clock was set after a run was claimed and before it began, in so short a time that
    /// the lease was valid by the worker's clock, and may have been over by the clock of Redis.
    pub(crate) fn may_have_been_cut_short(&self, run: &Run, next: &Run) -> bool {
        let cut_short =
            |at: &Micros| *at < next.began && run.began <= *at + LEASE.as_micros() as Micros;
        self.clocks_set.iter().any(cut_short)
    }

    /// Whether Redis lost its data after this time, and its jobs were brought back from the copy.
    pub(crate) fn was_rebuilt_after(&self, at: Micros) -> bool {
        let mut rollbacks = self.rollbacks.iter();
        rollbacks.any(|back| back.is_rebuilt && at <= back.at)
    }

    /// Whether Redis went back to a time before the end of a run was settled, and after the run
    /// began. The next run can result from that.
    pub(crate) fn forgot_the_end(&self, run: &Run, next: &Run) -> bool {
        let until = run.settled.map_or(Micros::MAX, |(at, _)| at);
        let forgot =
            |back: &Rollback| back.kept <= until && back.at >= run.ended && back.kept <= next.began;
        self.rollbacks.iter().any(forgot)
    }

    /// Whether Redis forgot that it had given a run its lease, or may have given a second lease.
    pub(crate) fn forgot_the_lease(&self, run: &Run) -> bool {
        let claimed = self.claimed(run).unwrap_or(run.began);
        let mut rollbacks = self.rollbacks.iter();
        rollbacks.any(|back| back.kept <= run.began && claimed <= back.at)
    }
}
