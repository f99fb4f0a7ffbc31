//! Attempts that failed, as the log tells of them: each in a line, and of many some.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::reply::Answer;
use super::work::{Settlement, Verb};
use crate::key::Kind;
use crate::record::Header;
use crate::time::Utc;

/// When the next attempt is due, or why there is none; nothing if the answer says that the attempt
/// did not count.
fn next(answer: Answer) -> Option<String> {
    match answer {
        Answer::Later(due) => Some(Utc(due).to_string()),
        Answer::Superseded => Some("none: it was scheduled anew meanwhile".to_owned()),
        Answer::Cancelled => Some("none: it was cancelled meanwhile".to_owned()),
        _ => None,
    }
}

/// So many are told of one ledger in [`WINDOW`]; those beyond are counted. A service that is down
/// fails all its jobs, and the first ones say why.
const MOST: u64 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// What was told of one ledger lately.
#[derive(Debug)]
pub(super) struct Failures(Arc<Mutex<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    failed: u64,
}

impl Failures {
    pub(super) fn new() -> Self {
        Failures(Arc::new(Mutex::new(Window {
            began: Instant::now(),
            failed: 0,
        })))
    }

    /// Tells of an attempt whose settlement was answered so, if it has failed and was not the last:
    /// whoever buries a job tells of that.
    pub(super) fn tell(&self, kind: &Kind, settlement: &Settlement, answer: Answer) {
        let Verb::Later { header, step, .. } = &settlement.verb else {
            return;
        };
        let Some(next) = next(answer) else { return };
        if *step != "failed" || !self.is_told(kind) {
            return;
        }
        let (attempt, error) = Header::told_by(header).unwrap_or_default();
        tracing::warn!(key = %settlement.key, attempt, error, next, "an attempt failed");
    }

    /// Counts one more. Whether it is told; those that are not are told of in number, when the time is
    /// over.
    fn is_told(&self, kind: &Kind) -> bool {
        let mut window = lock(&self.0);
        let age = window.began.elapsed();
        // Beyond the second, who was to tell of the rest has gone with its runtime.
        if age >= WINDOW && window.failed <= MOST || age >= 2 * WINDOW {
            window.begin();
        }
        window.failed += 1;
        if window.failed == MOST + 1 {
            let (end, kind) = (window.began + WINDOW, kind.clone());
            let failures = self.0.clone();
            tokio::spawn(async move {
                sleep_until(end).await;
                let mut window = lock(&failures);
                let left_out = window.failed.saturating_sub(MOST);
                window.begin();
                drop(window);
                tracing::warn!(%kind, left_out, "more attempts failed than are told one by one");
            });
        }
        window.failed <= MOST
    }
}

impl Window {
    fn begin(&mut self) {
        self.began = Instant::now();
        self.failed = 0;
    }
}

fn lock(window: &Mutex<Window>) -> MutexGuard<'_, Window> {
    window.lock().expect("no panic while held")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_failed_is_told_of_if_its_job_was_cancelled_meanwhile() {
        let told = next(Answer::Cancelled).expect("it is told");
        assert!(told.contains("cancelled"), "{told}");
        assert_eq!(next(Answer::Foreign), None);
    }
}
