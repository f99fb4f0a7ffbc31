//! Reminders that are Redis keys.
//!
//! A service names a reminder as it names any Redis key, `app:module:biz:id`, and says when it
//! is due. The handler that the name belongs to then runs: within milliseconds, and at least
//! once.
//!
//! ```no_run
//! use keyfall::{Client, Job, Router, Worker};
//! use std::time::Duration;
//!
//! async fn notify(job: Job) {
//!     println!("{} is due, {:?} late", job.key(), job.lag());
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> keyfall::Result<()> {
//! let client = Client::connect("redis://127.0.0.1:6379").await?;
//! client.schedule("app1:trans:notice:42", "order 42").after(Duration::from_secs(900)).await?;
//!
//! let app = Router::new().route("app1:trans:notice:{order}", notify);
//! Worker::new(client, app).run().await
//! # }
//! ```
//!
//! # Types to know
//!
//! | type | what it is |
//! |---|---|
//! | [`Client`] | schedules, changes, cancels, looks up, requeues |
//! | [`JobKey`] | the name of a job, parsed once |
//! | [`Router`] | which handler runs which names |
//! | [`Job`] | what a handler is called with; extractors such as [`Json`] take it apart |
//! | [`Outcome`] | how a run ends: done, retry, again, snooze, bury |
//! | [`Worker`] | runs the jobs of a router |
//! | [`testing::Rehearsal`] | runs them in a test, without Redis, by a clock that the test moves |
//!
//! # What is promised
//!
//! A job that `schedule` acknowledged runs at least once, or is cancelled, or ends as a dead
//! letter with its reason, for as long as Redis keeps its data. A job whose cancel was answered
//! [`Cancelled`](Cancelled::Cancelled) does not start. One worker at a time runs a job; should an
//! old run outlive its lease all the same, it can no longer change what becomes of the job, and
//! its [fencing value](Job::fence) is lower than that of the next. Calls may be repeated, but for
//! [three](ErrorKind::OutcomeUnknown).
//! `docs/design.md` in the repository says why and how, and `docs/states.md` what each call does
//! in each state.
//!
//! # Features
//!
//! | feature | brings | default |
//! |---|---|---|
//! | `worker` | [`Router`], handlers, [`Worker`] | yes |
//! | `tls` | `rediss://` URLs, and the certificates of [`ClientBuilder`] | |
//! | `embedded` | [`embedded`]: a private Redis for demos and tests | |
//! | `metrics` | [`metrics`]: what is counted and measured | |
//! | `traces` | the trace of whoever schedules a job goes on in its handler: `docs/tracing.md` | |
//! | `callbacks` | [`target::http`]: jobs that go to an HTTP server | |
//!
//! A service that only schedules depends on this crate with `default-features = false`. The `keyfall`
//! command is a package of its own, `keyfall-cli`.
//!
//! The folder `examples/` has programs to start from, among them a producer, retry ladders, order
//! timeouts, and a worker inside a web service.
//!
//! # Where things are
//!
//! A module uses only modules of the levels before its own. A test, `levels`, reads this table and
//! holds the code to it.
//!
//! | level | module | what it does |
//! |---|---|---|
//! | 0 | `clock` | tells handlers the time, which a test can move |
//! | 0 | `error` | the one error of the crate, and its kinds |
//! | 0 | `flaw` | names what can be wrong with a stored job |
//! | 0 | `moment` | measures time by a clock that goes on while the machine sleeps |
//! | 0 | `outcome` | says how a run ends, and why it failed |
//! | 0 | `settings` | holds the settings of clients and workers, with their limits |
//! | 0 | `source` | says how a job that is due was found |
//! | 0 | `time` | converts the time stamps that Redis and the records use |
//! | 1 | `durable` | says how far a write is to get: to replicas, to disks |
//! | 1 | `embedded` | starts a private Redis for demos and tests |
//! | 1 | `key` | parses the names of jobs and kinds |
//! | 1 | `retry` | computes when a job that failed runs again |
//! | 2 | `counters` | counts and measures for the metrics |
//! | 2 | `ending` | decides what follows a run: done, later, or a dead letter |
//! | 2 | `headers` | holds the headers of a job |
//! | 2 | `lease` | proves the right to run a job |
//! | 2 | `line_limit` | limits how many lines the log gets of one kind |
//! | 2 | `prefix` | selects kinds by the first segments of their names |
//! | 2 | `routing` | finds the route that a job key belongs to |
//! | 2 | `shards` | computes the shard that has a job, and the server that has a shard |
//! | 3 | `instance` | reads what a worker publishes of itself |
//! | 3 | `names` | names all keys and channels in Redis |
//! | 3 | `record` | reads and writes the stored record of a job |
//! | 3 | `traces` | carries the trace of the caller in the headers of a job |
//! | 4 | `store` | speaks to Redis, as no other module does, through the scripts in `lua/` |
//! | 5 | `ended` | makes the settlement that the outcome of a run asks for |
//! | 6 | `client` | schedules, changes, looks up and settles jobs |
//! | 7 | `doctor` | looks for what can hurt, and mends some of it |
//! | 7 | `handler` | makes the arguments of a handler from a job, and calls it |
//! | 7 | `metrics` | describes the metrics, and sets gauges from what Redis holds |
//! | 8 | `router` | collects routes and their handlers |
//! | 8 | `target` | has handlers that hand jobs to others |
//! | 9 | `hooks` | tells the owner of a worker of dead letters and late starts |
//! | 9 | `testing` | runs the jobs of a router without Redis |
//! | 10 | `worker` | finds due jobs, claims them, runs them and settles them |
//! | 11 | `internals` | opens a few functions to the benchmarks and fuzz targets of the crate |
#![deny(missing_docs)]

mod client;
#[cfg(feature = "worker")]
mod clock;
mod counters;
#[cfg(feature = "worker")]
pub mod doctor;
mod durable;
#[cfg(feature = "worker")]
mod ended;
#[cfg(feature = "worker")]
mod ending;
mod error;
mod flaw;
#[cfg(feature = "worker")]
mod handler;
mod headers;
#[cfg(feature = "worker")]
mod hooks;
#[cfg(feature = "worker")]
mod instance;
mod key;
#[cfg(feature = "worker")]
mod lease;
#[cfg(test)]
mod levels;
#[cfg(feature = "worker")]
mod line_limit;
mod moment;
mod names;
#[cfg(feature = "worker")]
mod outcome;
mod prefix;
mod record;
mod retry;
#[cfg(feature = "worker")]
mod router;
#[cfg(feature = "worker")]
mod routing;
mod settings;
mod shards;
#[cfg(feature = "worker")]
mod source;
mod store;
mod time;
mod traces;
#[cfg(feature = "worker")]
mod worker;

#[cfg(all(feature = "embedded", unix))]
pub mod embedded;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "worker")]
pub mod target;
#[cfg(feature = "worker")]
pub mod testing;

pub use client::{
    Audit, AuditAll, AuditAllReport, AuditReport, Bulk, BulkReport, Cancel, CancelDurably,
    Cancelled, Client, ClientBuilder, Counts, Cursor, Damage, DamagedJob, DeleteDeadLetter, Flawed,
    Functions, IfAbsent, IfPresent, JobState, JobView, KeptJob, Kinds, LibraryState, ListJobs,
    NewJob, Ordered, Page, Pause, Paused, Placed, Postpone, Requeue, Requeued, Reschedule,
    Rescheduled, Restored, Resume, Schedule, ScheduleIfAbsent, ScheduleIfPresent, Scheduled,
    Selection, Stats, Unseen, Updated,
};
#[cfg(feature = "worker")]
pub use client::{
    Dropped, ExtendLease, Extended, Happening, Instance, Instances, KeepHistory, KeyDiffers,
    MendSlots, MendedSlots, Reshard, Resharded, Resharding, SettleDurably, SettleLease, Settled,
    Story, StraySlot, StrayState, Tail, Tidings, TornLedger, Unrouted, UnroutedKinds, Wait, What,
};
#[cfg(feature = "worker")]
pub use clock::Clock;
pub use durable::{Durable, Reached};
pub use error::{Error, ErrorKind, Result};
pub use flaw::Flaw;
#[cfg(feature = "worker")]
pub use handler::{
    CancelSignal, Endpoint, FromJob, FromRef, Handler, Job, JobService, Json, MissingKey, Payload,
    Rejection, Route, SampleJob, Segments, State, debug_handler,
};
pub use headers::{Headers, MAX_HEADERS, MAX_HEADERS_BYTES};
#[cfg(feature = "worker")]
pub use hooks::{DeadJob, IntoTold, LateJob};
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
#[cfg(feature = "worker")]
pub use lease::Lease;
#[cfg(feature = "worker")]
pub use outcome::{Failure, IntoOutcome, MAX_FAILURE_BYTES, Outcome};
pub use record::Step;
pub use retry::RetryPolicy;
#[cfg(feature = "worker")]
pub use router::{IntoRouter, Router};
pub use shards::{MAX_SHARDS, server_of, shard_of};
#[cfg(feature = "worker")]
pub use source::Source;
#[cfg(feature = "worker")]
pub use worker::{Notice, Readiness, Rerouter, Worker};

/// The examples of the README are compiled with the documentation tests.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// And those of the guide to handlers.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/handlers.md")]
struct Handlers;

/// And those of the guide for operators.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/operations.md")]
struct Operations;

/// And those of the page on plain keys.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/adoption.md")]
struct Adoption;

/// And those of the page on durable calls.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/durability.md")]
struct Durability;

/// And those of the guide to heartbeats.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/dead-man.md")]
struct DeadMan;

/// And those of the guide to plain keys.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/plain-keys.md")]
struct PlainKeys;

/// And those of the page for operators.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/security.md")]
struct Security;

/// And those of the page on hooks.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/hooks.md")]
struct Hooks;

/// And those of the guide to callbacks.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/webhooks.md")]
struct Webhooks;

/// And those of the guide to lists and streams.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/lists-and-streams.md")]
struct ListsAndStreams;
