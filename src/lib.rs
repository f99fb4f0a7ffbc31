//! Reminders that are Redis keys.
//!
//! A service schedules a reminder under the name of a Redis key, `app:module:biz:id`, with a due
//! time. When it is due, the handler of its route runs, within milliseconds and at least once.
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
//! | type | purpose |
//! |---|---|
//! | [`Client`] | schedules, changes, cancels, looks up and requeues jobs |
//! | [`JobKey`] | the name of a job, parsed once |
//! | [`Router`] | assigns handlers to patterns of names |
//! | [`Job`] | the argument of a handler; extractors such as [`Json`] read parts of it |
//! | [`Outcome`] | the end of a run: done, retry, again, snooze, bury |
//! | [`Worker`] | runs the jobs of a router |
//! | [`testing::Rehearsal`] | runs the jobs of a router in a test, without Redis, by a clock that the test moves |
//! | [`Error`] | the error of all calls, with an [`ErrorKind`] that says what to do |
//!
//! # Promises
//!
//! As long as Redis keeps its data:
//!
//! - A job that `schedule` acknowledged runs at least once, or is cancelled, or ends as a dead
//!   letter with a reason.
//! - A job does not start after its cancel was answered [`Cancelled`](Cancelled::Cancelled).
//! - One worker at a time runs a job. A run that outlives its lease can no longer end the job, and
//!   its [fencing value](Job::fence) is lower than the value of the next run.
//! - A call may be repeated, except [three](ErrorKind::OutcomeUnknown).
//!
//! `docs/design.md` in the repository gives the reasons, and `docs/states.md` the effect of each
//! call in each state.
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `worker` | [`Router`], handlers, [`Worker`] | yes |
//! | `tls` | `rediss://` URLs, and the certificates of [`ClientBuilder`] | |
//! | `embedded` | [`embedded`]: a private Redis for demos and tests | |
//! | `metrics` | [`metrics`]: counters, gauges and histograms | |
//! | `traces` | the trace of the caller of `schedule` continues in the handler: `docs/tracing.md` | |
//! | `callbacks` | [`target::http`]: jobs that go to an HTTP server | |
//!
//! A service that only schedules needs no feature: it depends on this crate with
//! `default-features = false`. The `keyfall` command is a package of its own, `keyfall-cli`.
//!
//! The folder `examples/` has programs to start from, among them a producer, retry ladders,
//! order timeouts, and a worker inside a web service.
//!
//! # Modules
//!
//! A module uses only modules of lower levels. A test, `levels`, reads this table and verifies it.
//!
//! | level | module | task |
//! |---|---|---|
//! | 0 | `clock` | gives handlers the time; a test can move it |
//! | 0 | `error` | the one error of the crate, and its kinds |
//! | 0 | `flaw` | names the possible damage of a stored job |
//! | 0 | `moment` | measures time by a clock that runs on while the machine sleeps |
//! | 0 | `outcome` | the end of a run, and the reason of a failure |
//! | 0 | `phrase` | sentences that programs can say in other languages |
//! | 0 | `settings` | the settings of clients and workers, with their limits |
//! | 0 | `source` | how a due job was found |
//! | 0 | `time` | converts the time stamps of Redis and of the records |
//! | 1 | `durable` | how far a write must get: to replicas, to disks |
//! | 1 | `durations` | reads and writes durations as people write them |
//! | 1 | `embedded` | starts a private Redis for demos and tests |
//! | 1 | `key` | parses the names of jobs and kinds |
//! | 2 | `activity` | sums the starts and ends of runs by minute |
//! | 2 | `counters` | counts and measures for the metrics |
//! | 2 | `headers` | holds the headers of a job |
//! | 2 | `lateness` | limits how late a job may start |
//! | 2 | `lease` | proves the right to run a job |
//! | 2 | `line_limit` | limits the log lines of one kind |
//! | 2 | `prefix` | selects kinds by the first segments of their names |
//! | 2 | `retry` | computes when a job that failed runs again |
//! | 2 | `routing` | finds the route that a job key belongs to |
//! | 2 | `shards` | computes the shard of a job, and the server of a shard |
//! | 3 | `keeping` | the terms by which jobs leave records for an archive, and changes for a copy |
//! | 3 | `ending` | decides the settlement of a run: done, later, or a dead letter |
//! | 3 | `instance` | reads the description that a worker publishes |
//! | 3 | `names` | names all keys and channels in Redis |
//! | 3 | `recurrence` | computes the times of recurring jobs and of series, outside of quiet hours |
//! | 3 | `limit` | limits the starts and the running jobs of kinds, over all workers |
//! | 3 | `traces` | carries the trace of the caller in the headers of a job |
//! | 4 | `record` | reads and writes the stored record of a job |
//! | 5 | `store` | speaks to Redis, alone of all modules, through the scripts in `lua/` |
//! | 6 | `ended` | makes the settlement for the outcome of a run |
//! | 7 | `client` | schedules, changes, looks up and settles jobs |
//! | 8 | `doctor` | finds settings and jobs that can cause trouble, and repairs some settings |
//! | 8 | `handler` | makes the arguments of a handler from a job, and calls it |
//! | 8 | `metrics` | describes the metrics, and sets gauges from the contents of Redis |
//! | 9 | `router` | collects routes and their handlers |
//! | 9 | `target` | handlers that pass jobs on: to HTTP servers, lists, streams, consumers |
//! | 10 | `hooks` | reports dead letters and late starts to the owner of a worker |
//! | 10 | `testing` | runs the jobs of a router without Redis |
//! | 11 | `worker` | finds due jobs, claims them, runs them and settles them |
//! | 12 | `internals` | opens a few functions to the benchmarks and fuzz targets of this repository |
#![deny(missing_docs)]

#[cfg(feature = "worker")]
mod activity;
mod client;
#[cfg(feature = "worker")]
mod clock;
mod counters;
#[cfg(feature = "worker")]
pub mod doctor;
mod durable;
mod durations;
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
mod keeping;
mod key;
mod lateness;
#[cfg(feature = "worker")]
mod lease;
#[cfg(test)]
mod levels;
mod limit;
#[cfg(feature = "worker")]
mod line_limit;
mod moment;
mod names;
#[cfg(feature = "worker")]
mod outcome;
mod phrase;
mod prefix;
mod record;
mod recurrence;
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

#[cfg(feature = "worker")]
pub use activity::Activity;
#[cfg(feature = "worker")]
pub use client::{
    Action, ActivityChart, ActivitySpan, Declared, Dropped, ExtendLease, Extended, Happening,
    Instance, Instances, KeepHistory, KeyDiffers, KindLayout, Layouts, LogAction, MendSlots,
    MendedSlots, PacerShare, RedisServer, Reshard, Resharded, Resharding, SettleDurably,
    SettleLease, Settled, ShardPlace, ShardPlaces, Story, StraySlot, StrayState, Tail, Tidings,
    Topology, TornLedger, Unrouted, UnroutedKinds, Wait, What,
};
pub use client::{
    Audit, AuditAll, AuditAllReport, AuditReport, Bulk, BulkReport, Cancel, CancelDurably,
    Cancelled, ChangedJob, Changes, Client, ClientBuilder, CopiedJob, CopiedShard, CopyMark,
    CopyStep, CountUpcoming, Counts, Cursor, Damage, DamagedJob, DeadGroup, DeadGroups,
    DeleteDeadLetter, DueWithin, EndedJob, EndedJobs, Flawed, Functions, GroupDead, IfAbsent,
    IfPresent, JobEnd, JobState, JobTerms, JobView, KeptJob, KindLimit, Kinds, LaneId, LateServer,
    LibraryState, Limits, ListJobs, MAX_BATCH_NUMBER, MAX_NUMBERED_CALLS, Member, MemberChange,
    MemberState, MemberView, MoveTo, NewJob, NumberedAnswer, NumberedCall, Ordered, Page, Pause,
    Paused, Placed, Postpone, Requeue, Requeued, Reschedule, Rescheduled, Restored, Resume,
    RuleChange, Schedule, ScheduleIfAbsent, ScheduleIfPresent, Scheduled, Selection, Series,
    SeriesChange, SeriesView, SetLimit, SetTerms, Shards, Stats, TermsOf, Unseen, Upcoming,
    Updated, fold_reason,
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
pub use keeping::{ArchiveTerms, CopyTerms};
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
pub use lateness::{Late, MaxLateness};
#[cfg(feature = "worker")]
pub use lease::Lease;
pub use limit::{GroupBy, Limit, LimitScope};
#[cfg(feature = "worker")]
pub use outcome::{Failure, IntoOutcome, MAX_FAILURE_BYTES, Outcome};
pub use phrase::Phrase;
pub use record::Step;
pub use recurrence::{
    Anchor, Busy, Gap, Instead, MAX_MEMBERS, MemberFate, Missed, Occurrence, Offset, Overlapping,
    Past, QuietHours, Rule,
};
pub use retry::RetryPolicy;
#[cfg(feature = "worker")]
pub use router::{IntoRouter, Router};
pub use shards::{MAX_SHARDS, server_of, shard_of};
#[cfg(feature = "worker")]
pub use source::Source;
#[cfg(feature = "worker")]
pub use worker::{Notice, Readiness, Rerouter, Worker};

/// Compiles the examples of the README with the documentation tests.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the examples of the guide to handlers.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/handlers.md")]
struct Handlers;

/// Compiles the examples of the guide for operators.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/operations.md")]
struct Operations;

/// Compiles the examples of the page on adoption.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/adoption.md")]
struct Adoption;

/// Compiles the examples of the page on recurring jobs.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/recurring.md")]
struct RecurringJobs;

/// Compiles the examples of the page on limits.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/limits.md")]
struct LimitsOfKinds;

/// Compiles the examples of the page on series.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/series.md")]
struct SeriesOfJobs;

/// Compiles the examples of the page on durable calls.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/durability.md")]
struct Durability;

/// Compiles the examples of the guide to heartbeats.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/dead-man.md")]
struct DeadMan;

/// Compiles the examples of the guide to plain keys.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/plain-keys.md")]
struct PlainKeys;

/// Compiles the examples of the page on security.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/security.md")]
struct Security;

/// Compiles the examples of the page on hooks.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/hooks.md")]
struct Hooks;

/// Compiles the examples of the guide to callbacks.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/webhooks.md")]
struct Webhooks;

/// Compiles the examples of the guide to lists and streams.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../docs/guides/lists-and-streams.md")]
struct ListsAndStreams;
