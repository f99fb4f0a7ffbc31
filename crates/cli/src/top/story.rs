//! Reads the histories: the lag of starts, and the failures.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keyfall::{Kind, What};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::board::Failure;
use crate::jobs::{Jobs, News};
use keyfall_daemon::shapes::{HappeningOut, TailIn};

/// The most starts and failures that are kept between two looks; more are not needed.
const MOST: usize = 4096;

/// The changes that are followed.
const FOLLOWED: [What; 3] = [What::Claimed, What::Failed, What::Buried];

/// Follows the histories, until it is dropped.
pub(super) struct Story {
    told: Arc<Mutex<Activity>>,
    task: JoinHandle<()>,
}

/// The starts and failures since the last look.
#[derive(Debug, Default)]
pub(super) struct Activity {
    pub(super) starts: Vec<(Kind, Duration)>,
    pub(super) failures: Vec<Failure>,
    /// The reason why no changes arrive now.
    pub(super) closed: Option<String>,
}

impl Story {
    /// # Errors
    /// If no key can have this prefix, or neither Redis nor the daemon answers.
    pub(super) async fn new(jobs: &Jobs, prefix: Option<String>) -> anyhow::Result<Self> {
        let wanted = TailIn {
            prefix: prefix.into_iter().collect(),
            what: FOLLOWED.iter().map(What::to_string).collect(),
            last: Some(100),
            ..TailIn::default()
        };
        let mut following = jobs.follow(wanted).await?;
        let told = Arc::new(Mutex::new(Activity::default()));
        let tell = told.clone();
        let task = tokio::spawn(async move {
            loop {
                let next = following.next().await;
                let is_refused = next.is_err();
                tell.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .add(next);
                if is_refused {
                    sleep(Duration::from_secs(1)).await;
                }
            }
        });
        Ok(Story { told, task })
    }

    pub(super) fn told(&self) -> Activity {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = told.closed.clone();
        std::mem::replace(
            &mut told,
            Activity {
                closed,
                ..Activity::default()
            },
        )
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Activity {
    fn add(&mut self, next: anyhow::Result<News>) {
        match next {
            Ok(News::Happened(one)) => self.happened(*one),
            Ok(News::Closed(why)) => self.closed = Some(why),
            Ok(News::Open) => self.closed = None,
            // `Watch` reports the other faults when it reads the kinds.
            Ok(News::Missed(_) | News::Behind | News::Unseen(_) | News::Away(_)) => {}
            Err(error) => self.closed = Some(format!("{error:#}")),
        }
    }

    fn happened(&mut self, one: HappeningOut) {
        let Ok(what) = What::parse(&one.what) else {
            return;
        };
        if let (What::Claimed, Some(lag)) = (what, one.lag) {
            if self.starts.len() < MOST
                && let Ok(kind) = Kind::parse(&one.kind)
            {
                self.starts.push((kind, lag.0));
            }
        } else if matches!(what, What::Failed | What::Buried) && self.failures.len() < MOST {
            self.failures.push(Failure {
                at: one.at.0,
                key: one.key.unwrap_or_else(|| format!("{}:?", one.kind)),
                attempt: one.attempt,
                is_dead: what == What::Buried,
                error: one.note.unwrap_or_default(),
            });
        }
    }
}
