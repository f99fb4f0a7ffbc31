//! What the histories tell: how late jobs start, and which fail.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keyfall::{Client, Happening, Kind, Tidings, What};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::board::Failure;

/// How much is kept between two looks; what is more is not needed.
const MOST: usize = 4096;

/// Follows the histories, until it is dropped.
pub(super) struct Story {
    told: Arc<Mutex<Told>>,
    task: JoinHandle<()>,
}

/// What was told since somebody last asked.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) starts: Vec<(Kind, Duration)>,
    pub(super) failures: Vec<Failure>,
}

impl Story {
    /// # Errors
    /// If no key can begin so.
    pub(super) fn new(client: &Client, prefix: &str) -> keyfall::Result<Self> {
        let tail = client.tail();
        let mut tail = match prefix {
            "" => tail,
            prefix => tail.prefix(prefix)?,
        }
        .last(100);
        let told = Arc::new(Mutex::new(Told::default()));
        let tell = told.clone();
        let task = tokio::spawn(async move {
            loop {
                match tail.next().await {
                    Ok(Tidings::Happened(one)) => {
                        tell.lock().unwrap_or_else(PoisonError::into_inner).add(one);
                    }
                    Ok(_) => {}
                    // Whatever is wrong with Redis is told by those who look at the kinds.
                    Err(_) => sleep(Duration::from_secs(1)).await,
                }
            }
        });
        Ok(Story { told, task })
    }

    pub(super) fn told(&self) -> Told {
        std::mem::take(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    fn add(&mut self, one: Happening) {
        if let (What::Claimed, Some(lag)) = (one.what, one.lag()) {
            if self.starts.len() < MOST {
                self.starts.push((one.kind, lag));
            }
        } else if matches!(one.what, What::Failed | What::Buried) && self.failures.len() < MOST {
            let id = one.id.as_deref().unwrap_or("?");
            self.failures.push(Failure {
                at: one.at,
                key: format!("{}:{id}", one.kind),
                attempt: one.attempt,
                is_dead: one.what == What::Buried,
                error: one.note.unwrap_or_default(),
            });
        }
    }
}
