//! The consequence of a run for its job: a pure function of the outcome, the number of the attempt,
//! the policy and a random number.
//!
//! Workers settle by it (`crate::ended`), and rehearsals play it, so that both do the same.

use std::time::Duration;

use crate::outcome::{Failure, Outcome};
use crate::retry::RetryPolicy;
use crate::settings::MAX_DELAY;

/// The consequence of a run for its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The job has ended.
    Done,
    /// The job runs again after this time, and the attempt counts. Without an error, nothing
    /// failed.
    Again {
        after: Duration,
        error: Option<Failure>,
    },
    /// The job runs again after this time, and the attempt does not count.
    Snooze {
        after: Duration,
        reason: Option<Failure>,
    },
    /// The job becomes a dead letter.
    Bury { reason: Failure },
    /// The job has not ended: another program has its lease.
    HandedOver,
}

impl Ending {
    /// The consequence of `outcome`. `attempt` counts from 1; `random`, from 0 up to 1, is for the
    /// jitter of the policy. No delay exceeds ten years.
    pub(crate) fn of(outcome: Outcome, attempt: u32, policy: &RetryPolicy, random: f64) -> Self {
        let next = policy.next(attempt, random);
        let bounded =
            |asked: Option<Duration>, delay: Duration| asked.unwrap_or(delay).min(MAX_DELAY);
        match (outcome, next) {
            (Outcome::Done, _) => Ending::Done,
            (Outcome::Retry { after, error }, Some(delay)) => Ending::Again {
                after: bounded(after, delay),
                error: Some(error),
            },
            (Outcome::Retry { error, .. }, None) => Ending::Bury { reason: error },
            (Outcome::Again { after }, Some(delay)) => Ending::Again {
                after: bounded(after, delay),
                error: None,
            },
            (Outcome::Again { .. }, None) => Ending::Bury {
                reason: Failure::written(format_args!(
                    "the handler asked to run the job again, but attempt {attempt} was its last"
                )),
            },
            (Outcome::Snooze { after }, _) => Ending::Snooze {
                after: after.min(MAX_DELAY),
                reason: None,
            },
            (Outcome::SnoozeBecause { after, reason }, _) => Ending::Snooze {
                after: after.min(MAX_DELAY),
                reason: Some(reason),
            },
            (Outcome::Bury { reason }, _) => Ending::Bury { reason },
            (Outcome::HandedOver, _) => Ending::HandedOver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ending(outcome: Outcome, attempt: u32) -> Ending {
        let policy = RetryPolicy::ladder([SECOND, 5 * SECOND]).unwrap();
        Ending::of(outcome, attempt, &policy, 0.5)
    }

    fn again(after: Duration, error: Option<&str>) -> Ending {
        let error = error.map(Failure::new);
        Ending::Again { after, error }
    }

    fn buried(reason: &str) -> Ending {
        let reason = Failure::new(reason);
        Ending::Bury { reason }
    }

    #[test]
    fn a_failure_climbs_the_ladder_and_is_buried_at_its_end() {
        let no = || Outcome::retry("no");
        assert_eq!(ending(no(), 1), again(SECOND, Some("no")));
        assert_eq!(ending(no(), 2), again(5 * SECOND, Some("no")));
        assert_eq!(ending(no(), 3), buried("no"));
    }

    #[test]
    fn again_climbs_the_ladder_and_records_no_failure() {
        assert_eq!(ending(Outcome::again(), 1), again(SECOND, None));
        let last = "the handler asked to run the job again, but attempt 3 was its last";
        assert_eq!(ending(Outcome::again(), 3), buried(last));
    }

    #[test]
    fn a_snooze_never_ends() {
        let after = 9 * SECOND;
        for reason in [None, Some(Failure::new("busy"))] {
            let outcome = match &reason {
                None => Outcome::snooze(after),
                Some(_) => Outcome::snooze_because(after, "busy"),
            };
            assert_eq!(ending(outcome, 300), Ending::Snooze { after, reason });
        }
    }

    #[test]
    fn a_requested_delay_does_not_outlast_the_policy() {
        let no = || Outcome::retry_after(7 * SECOND, "no");
        assert_eq!(ending(no(), 1), again(7 * SECOND, Some("no")));
        assert_eq!(ending(no(), 3), buried("no"));
        let late = Outcome::again_after(Duration::MAX);
        assert_eq!(ending(late, 1), again(MAX_DELAY, None));
    }

    #[test]
    fn some_outcomes_need_no_policy() {
        assert_eq!(ending(Outcome::Done, 1), Ending::Done);
        assert_eq!(ending(Outcome::bury("no"), 1), buried("no"));
    }
}
