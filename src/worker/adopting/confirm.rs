//! Looks once more at the keys of jobs that are about to run.

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

/// Within what time an instance that heard that a key expired has that noted: also if it first has
/// to learn that the one that should have done so is gone.
pub(super) const NOTED_WITHIN: Duration = SILENCE
    .saturating_add(BEAT)
    .saturating_add(Duration::from_millis(450));

/// The same if its first call for that gets lost: a job is at stake.
const SURELY_WITHIN: Duration = NOTED_WITHIN.saturating_add(PATIENCE);

/// A job that is leased and about to run.
pub(crate) struct Leased {
    pub(crate) key: JobKey,
    pub(crate) due: UnixMs,
}

/// What is to become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyVerdict {
    Run,
    /// It goes back: its key says so, or could not be looked at.
    Back,
    /// Its key is missing, which cancels it if nobody has heard that it expired: look again.
    Open,
}

/// By what jobs are judged. With the last one, none stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConfirmRound {
    /// What was heard so far.
    AtOnce,
    /// All that was announced so far.
    CaughtUp,
    /// What others heard, too.
    Last,
}

impl ConfirmRound {
    pub(crate) fn next(self) -> Self {
        match self {
            ConfirmRound::AtOnce => ConfirmRound::CaughtUp,
            ConfirmRound::CaughtUp | ConfirmRound::Last => ConfirmRound::Last,
        }
    }
}

impl Adopter {
    /// Whether these jobs are to run. Their keys may have been changed a moment ago, or unheard.
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
            // Where they cannot be looked at, they are run by whoever can.
            let answers = answers.unwrap_or_default();
            let answer = |place: usize| Some(answers.get(place)?.answer);
            let answers: Vec<_> = (0..items.len()).map(answer).collect();
            self.note_unanswered(served, items, &answers);
            if answers
                .iter()
                .any(|answer| matches!(answer, None | Some(Word::Unread)))
            {
                // They go back, and come again at once.
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

    /// The jobs are in this ledger, whatever its kind goes by.
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

    /// What was heard is noted all the same: others may have to decide about these jobs.
    fn note_unanswered(
        &self,
        served: &Arc<ServedLedger>,
        items: &[(JobKey, Why)],
        answers: &[Option<Word>],
    ) {
        for ((key, why), answer) in items.iter().zip(answers) {
            if *why == Why::Heard && answer.is_none() {
                self.look_at(served, key.id(), Why::Over, Instant::now());
            }
        }
    }

    fn why(&self, served: &ServedLedger, job: &Leased, round: ConfirmRound) -> Why {
        if self.missing(&job.key) != Some(MissingKey::Cancel) {
            return Why::Begun;
        }
        // At the most: what is not known for certain costs no job.
        let [_, ago] = ago(served, job.due);
        if self.expired.knows(&job.key, ago) {
            return Why::Heard;
        }
        let since = self.hearing.since();
        let has_listened = since.is_some_and(|since| ago < since.elapsed());
        match round {
            // It is not known whether it was heard: of two faults, this one loses no job.
            ConfirmRound::CaughtUp | ConfirmRound::Last
                if has_listened && self.expired.may_have_known(ago) =>
            {
                Why::Heard
            }
            // What this one did not hear was announced to nobody.
            ConfirmRound::CaughtUp if has_listened => Why::Lost,
            ConfirmRound::AtOnce | ConfirmRound::CaughtUp => Why::Asked,
            ConfirmRound::Last => Why::Lost,
        }
    }

    /// For how long others may still be about to note what they heard and this one did not. Who they
    /// are is not asked: whoever is cut off for a moment does not show.
    fn wait_for_others(&self, served: &ServedLedger, jobs: &[Leased]) -> Duration {
        let latest = jobs.iter().map(|job| ago(served, job.due)[0]).min();
        SURELY_WITHIN.saturating_sub(latest.unwrap_or(Duration::MAX))
    }
}

/// How long ago it was due by Redis' clock, at the least and at the most: that is known as well as
/// the answers were quick.
fn ago(served: &ServedLedger, due: UnixMs) -> [Duration; 2] {
    let now = served.ledger.clock().bounds();
    now.map_or([Duration::ZERO, Duration::MAX], |now| {
        now.map(|now| now.since(due))
    })
}
