//! Jobs that go to HTTP servers.
//!
//! | module | content |
//! |---|---|
//! | [`receiver`] | servers whose answers a test chooses |
//! | [`sending`] | requests, and the outcome of each answer |
//! | [`signing`] | signatures, checked by independent code |
//! | [`misbehaving`] | servers that are slow, cut off, silent, endless or badly encrypted |
//! | [`reaching`] | addresses that URLs of jobs and redirects may reach |
//! | [`crowded`] | hosts that are down or slow beside working ones |
//! | [`breakers`] | circuit breakers: attempts of their jobs, reports, and how a breaker closes |
//! | [`serving`] | callbacks of `keyfall serve` |

mod breakers;
mod crowded;
mod misbehaving;
mod reaching;
pub(crate) mod receiver;
mod sending;
mod serving;
mod signing;

use keyfall::{Job, Outcome, Router, target::Http};

/// The outcome of a job at this target, without a Redis.
async fn outcome(target: &Http, job: Job) -> Outcome {
    let router: Router = Router::new().route("cb:it:job:*", target.clone());
    router.call(job).await.expect("it has a route")
}

/// Why a run failed.
#[track_caller]
fn failure(outcome: Outcome) -> String {
    match outcome {
        Outcome::Retry { error, .. } => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Why a job was buried.
#[track_caller]
fn reason(outcome: Outcome) -> String {
    match outcome {
        Outcome::Bury { reason } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

fn job() -> keyfall::SampleJob {
    Job::sample("cb:it:job:1").payload(&"hello")
}
