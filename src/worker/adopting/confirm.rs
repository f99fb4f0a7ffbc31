//! Looks once more at the keys of jobs that are about to run.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::adopter::{AFTER_FAULT, AT_ONCE, Adopter, PATIENCE};
use crate::handler::MissingKey;
use crate::key::JobKey;
use crate::settings::{BEAT, SILENCE};
use crate::store::{Why, Word};
use crate::time::UnixMs;
use crate::worker::roster::Served;

/// Within what time an instance that heard that a key expired has had that kept: also if it first
/// has to learn that the one that should have done so is gone.
pub(super) const KEPT_WITHIN: Duration = SILENCE
    .saturating_add(BEAT)
    .saturating_add(Duration::from_millis(450));

/// A job that is leased and about to run.
pub(crate) struct Leased {
    pub(crate) key: JobKey,
    pub(crate) due: UnixMs,
    /// Nobody has begun this attempt before.
    pub(crate) is_first: bool,
}

impl Adopter {
    /// Whether these jobs are to run. Their keys may have been changed a moment ago, or unheard.
    pub(crate) async fn confirm(&self, served: &Served, jobs: &[Leased]) -> Vec<bool> {
        let why = |job: &Leased| (job.key.clone(), self.why_begun(job));
        let items: Vec<_> = jobs.iter().map(why).collect();
        if let Some(wait) = self.wait_for_others(served, jobs, &items) {
            sleep(wait).await;
        }
        let mut confirmed = Vec::with_capacity(jobs.len());
        for items in items.chunks(AT_ONCE) {
            let until = Instant::now() + PATIENCE;
            let answers = served.ledger.adopt(items, self.payload_limit, until).await;
            served.ledger.note("adopt", &answers);
            // Where they cannot be looked at, they are run by whoever can.
            let answers = answers.unwrap_or_default();
            let answer = |place: usize| Some(answers.get(place)?.answer);
            let answers: Vec<_> = (0..items.len()).map(answer).collect();
            if answers
                .iter()
                .any(|answer| matches!(answer, None | Some(Word::Unread)))
            {
                // They go back, and come again at once.
                sleep(AFTER_FAULT).await;
            }
            let is_to_run = |answer| matches!(answer, Some(Word::Same | Word::Absent));
            confirmed.extend(answers.into_iter().map(is_to_run));
        }
        confirmed
    }

    fn why_begun(&self, job: &Leased) -> Why {
        // Redis' clock is known by what was just claimed.
        let heard_since = self.hears_since().zip(self.ago(job.due));
        let was_heard = heard_since.is_some_and(|(since, ago)| ago < since.elapsed());
        match self.missing(&job.key) {
            // Of one that has begun before, the key was looked at then.
            Some(MissingKey::Cancel) if job.is_first && !was_heard => Why::Lost,
            _ => Why::Begun,
        }
    }

    /// For how long others may still be about to keep what they heard and this one did not.
    fn wait_for_others(
        &self,
        served: &Served,
        jobs: &[Leased],
        items: &[(JobKey, Why)],
    ) -> Option<Duration> {
        let lost = jobs
            .iter()
            .zip(items)
            .filter(|(_, (_, why))| *why == Why::Lost);
        // One that has just begun does not know yet who else there is.
        let is_new = self.instances.number() == 0;
        let shared =
            lost.filter(|(job, _)| is_new || !self.instances.rank(served, job.key.id()).is_only());
        let latest = shared.filter_map(|(job, _)| self.ago(job.due)).min()?;
        KEPT_WITHIN.checked_sub(latest)
    }

    fn ago(&self, due: UnixMs) -> Option<Duration> {
        Some(self.store.clock().now()?.since(due))
    }
}
