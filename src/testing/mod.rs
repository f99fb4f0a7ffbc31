//! Tools to test handlers and routers, without Redis and without waiting.
//!
//! | to test | use |
//! |---|---|
//! | one run of a handler | [`Job::sample`](crate::Job::sample) and [`Router::call`](crate::Router::call) |
//! | a job over all its retries | a [`Rehearsal`] |
//! | a handler that asks for the time | a [`ManualClock`], with or without a rehearsal |
//!
//! ```
//! use keyfall::testing::{JobState, Rehearsal};
//! use keyfall::{Handler, Job, Outcome, RetryPolicy, Router};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> keyfall::Result<()> {
//! const SECOND: Duration = Duration::from_secs(1);
//!
//! async fn notify(job: Job) -> Result<(), String> {
//!     if job.attempt() < 3 { Err("the shop does not answer".into()) } else { Ok(()) }
//! }
//!
//! let ladder = RetryPolicy::ladder([15 * SECOND, 180 * SECOND])?;
//! let app = Router::new().route("app1:trans:notice:{order}", notify.retry(ladder));
//! let mut rehearsal = Rehearsal::new(app);
//! let key = "app1:trans:notice:42";
//! rehearsal.schedule(key, "order 42").after(900 * SECOND);
//!
//! // Nothing is early.
//! assert!(rehearsal.advance(899 * SECOND).await.is_empty());
//!
//! let runs = rehearsal.advance(SECOND).await;
//! assert_eq!(runs.len(), 1);
//! assert_eq!(runs[0].outcome, Outcome::retry("the shop does not answer"));
//!
//! let job = rehearsal.job(key).unwrap();
//! assert_eq!(job.state(), JobState::Retrying);
//! assert_eq!(job.due(), rehearsal.now() + 15 * SECOND);
//!
//! // The two retries, each at its time.
//! let runs = rehearsal.advance(200 * SECOND).await;
//! let attempts: Vec<u32> = runs.iter().map(|run| run.attempt).collect();
//! assert_eq!(attempts, [2, 3]);
//! assert_eq!(rehearsal.job(key).unwrap().state(), JobState::Done);
//! # Ok(())
//! # }
//! ```

mod clock;
mod job;
mod rehearsal;
#[cfg(test)]
mod tests;

pub use clock::ManualClock;
pub use job::{JobState, JobView, Schedule};
pub use rehearsal::{Rehearsal, Run};
