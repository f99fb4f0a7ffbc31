//! The confirmation: looks once more at the plain keys of jobs that are about to run, and decides
//! whether they run.
//!
//! An unchanged key lets its job run; a changed key sends the job back. A missing key is harder on
//! a route where it cancels the job: if the key expired, the job runs; if somebody deleted it, the
//! job is cancelled. The confirmation decides this in up to three rounds ([`ConfirmRound`]), each
//! with more knowledge and a longer wait. In doubt the job runs: one run too many is the lesser
//! fault.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::adopter::{AFTER_FAULT, AT_ONCE, Adopter, PATIENCE};
use super::location::is_refused;
use crate::error::Result;
use crate::handler::MissingKey;
use crate::key::JobKey;
use crate::settings::{BEAT, SILENCE};
use crate::store::{Answered, Why, Word};
use crate::time::UnixMs;
use crate::worker::served::ServedLedger;

/// Time in which an instance that heard the expiry of a key has noted it in the ledger; even if it
/// first has to learn that the first in rank is gone.
pub(super) const NOTED_WITHIN: Duration = SILENCE
    .saturating_add(BEAT)
    .saturating_add(Duration::from_millis(450));

/// The same, if the first call of that instance gets lost. For decisions that can cost a job.
const SURELY_WITHIN: Duration = NOTED_WITHIN.saturating_add(PATIENCE);

/// A leased job that is about to run.
pub(crate) struct Leased {
    pub(crate) key: JobKey,
    pub(crate) due: UnixMs,
}

/// The decision on such a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyVerdict {
    /// The job runs.
    Run,
    /// The job goes back: its key has changed, or could not be looked at.
    Back,
    /// The key is missing. That cancels the job if no instance has heard its expiry: look again in
    /// the next round.
    Open,
}

/// The knowledge that decides on jobs. The last round leaves none open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConfirmRound {
    /// Events that this instance has heard so far.
    AtOnce,
    /// All events that were announced to this instance so far.
    CaughtUp,
    /// Also the events that other instances have heard.
    Last,
}

impl ConfirmRound {
    /// The round after this one.
    pub(crate) fn next(self) -> Self {
        match self {
            ConfirmRound::AtOnce => ConfirmRound::CaughtUp,
            ConfirmRound::CaughtUp | ConfirmRound::Last => ConfirmRound::Last,
        }
    }
}

impl Adopter {
    /// Decides whether these jobs run. Their keys may have been changed a moment ago, or without
    /// this instance hearing of it. Returns one verdict for each job, in order. The later rounds
    /// wait before they look.
    pub(crate) async fn confirm(
        &self,
        served: &Arc<ServedLedger>,
        jobs: &[Leased],
        round: ConfirmRound,
    ) -> Vec<KeyVerdict> {
        match round {
            ConfirmRound::AtOnce => {}
            ConfirmRound::CaughtUp if self.hearing.catch_up().await => {}
            ConfirmRound::CaughtUp => return vec![KeyVerdict::Back; jobs.len()],
            ConfirmRound::Last => sleep(self.wait_for_others(served, jobs)).await,
        }
        let why = |job: &Leased| (job.key.clone(), self.why(served, job, round));
        let items: Vec<_> = jobs.iter().map(why).collect();
        let mut verdicts = Vec::with_capacity(jobs.len());
        for items in items.chunks(AT_ONCE) {
            let until = Instant::now() + PATIENCE;
            let answers = self.adopt_leased(served, items, until).await;
            served.ledger.note("adopt", &answers);
            // Jobs whose keys cannot be looked at here go back, for an instance that can.
            let answers = answers.unwrap_or_default();
            let answer = |place: usize| Some(answers.get(place)?.answer);
            let answers: Vec<_> = (0..items.len()).map(answer).collect();
            self.note_unanswered(served, items, &answers);
            if answers
                .iter()
                .any(|answer| matches!(answer, None | Some(Word::Unread)))
            {
                // They go back, and would come again at once.
                sleep(AFTER_FAULT).await;
            }
            verdicts.extend(answers.into_iter().map(|answer| match answer {
                Some(Word::Same | Word::Absent) => KeyVerdict::Run,
                Some(Word::Missing) => KeyVerdict::Open,
                _ => KeyVerdict::Back,
            }));
        }
        verdicts
    }

    /// Looks at the keys of these jobs in this ledger, which has them whatever the layout of its
    /// kind is.
    async fn adopt_leased(
        &self,
        served: &ServedLedger,
        items: &[(JobKey, Why)],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        loop {
            let most = |key: &JobKey| self.most(key);
            let answers = served.ledger.adopt(items, most, until).await?;
            if !is_refused(&answers) {
                return Ok(answers);
            }
            self.store.agree(served.ledger.kind(), until).await?;
        }
    }

    /// Plans to note in the ledger the expiries that this instance has heard and the ledger has not
    /// yet taken: other instances may have to decide about these jobs.
    fn note_unanswered(
        &self,
        served: &Arc<ServedLedger>,
        items: &[(JobKey, Why)],
        answers: &[Option<Word>],
    ) {
        for ((key, why), answer) in items.iter().zip(answers) {
            if *why == Why::Heard && answer.is_none() {
                let now = Instant::now();
                self.look_at(served, key.id(), Why::Over(now), now);
            }
        }
    }

    /// The reason that the ledger gets for the look. It says whether the expiry of the key was
    /// heard.
    fn why(&self, served: &ServedLedger, job: &Leased, round: ConfirmRound) -> Why {
        if self.missing(&job.key) != Some(MissingKey::Cancel) {
            return Why::Begun;
        }
        // The longest possible time, so that uncertainty costs no job.
        let [_, ago] = ago(served, job.due);
        if self.expired.knows(&job.key, ago) {
            return Why::Heard;
        }
        let since = self.hearing.since();
        let has_listened = since.is_some_and(|since| ago < since.elapsed());
        match round {
            // It is unknown whether the expiry was heard: of the two possible faults, this one
            // loses no job.
            ConfirmRound::CaughtUp | ConfirmRound::Last
                if has_listened && self.expired.may_have_known(ago) =>
            {
                Why::Heard
            }
            // This instance was listening, so an expiry that it has not heard was not announced.
            ConfirmRound::CaughtUp if has_listened => Why::Lost,
            ConfirmRound::AtOnce | ConfirmRound::CaughtUp => Why::Asked,
            ConfirmRound::Last => Why::Lost,
        }
    }

    /// How long other instances may still need to note expiries that this one has not heard. It
    /// does not depend on the known instances: an instance that is cut off for a moment does not
    /// show.
    fn wait_for_others(&self, served: &ServedLedger, jobs: &[Leased]) -> Duration {
        rest_of_wait(jobs.iter().map(|job| ago(served, job.due)[0]))
    }
}

/// The rest of [`SURELY_WITHIN`] for jobs that were due so long ago: the last one decides.
fn rest_of_wait(ago: impl Iterator<Item = Duration>) -> Duration {
    SURELY_WITHIN.saturating_sub(ago.min().unwrap_or(Duration::MAX))
}

/// How long ago the job was due by the server's clock: at least, and at most. The quicker the
/// server's answers, the closer the bounds.
fn ago(served: &ServedLedger, due: UnixMs) -> [Duration; 2] {
    let now = served.ledger.clock().bounds();
    now.map_or([Duration::ZERO, Duration::MAX], |now| {
        now.map(|now| now.since(due))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_others_is_long_enough_for_the_latest_job() {
        let second = Duration::from_secs(1);
        let wait = |ago: &[Duration]| rest_of_wait(ago.iter().copied());
        assert_eq!(wait(&[Duration::ZERO]), SURELY_WITHIN);
        assert_eq!(
            wait(&[60 * second, second, 2 * second]),
            SURELY_WITHIN - second
        );
        assert_eq!(wait(&[60 * second]), Duration::ZERO);
        assert_eq!(wait(&[]), Duration::ZERO);
    }
}
