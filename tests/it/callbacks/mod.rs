//! Jobs that go to HTTP servers.
//!
//! | module | what it proves |
//! |---|---|
//! | [`receiver`] | servers that say what a test tells them to |
//! | [`sending`] | what is sent, and what becomes of a job by the answer |
//! | [`signing`] | signatures, as somebody else checks them |
//! | [`misbehaving`] | servers that are slow, cut off, silent, endless or badly encrypted |
//! | [`reaching`] | where a URL of a job or a redirect may lead, and where not |
//! | [`crowded`] | hosts that are down or slow beside others, which go on |
//! | [`breakers`] | what the jobs of a host lose that is down, who names it, and how it is called again |
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

/// What becomes of a job at this target, without a Redis.
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
