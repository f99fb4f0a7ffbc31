//! Keyfall: reminders that are Redis keys.
#![deny(missing_docs)]

mod client;
mod error;
#[cfg(feature = "worker")]
mod handler;
mod headers;
mod key;
mod names;
mod record;
mod retry;
#[cfg(feature = "worker")]
mod router;
#[cfg(feature = "worker")]
mod routing;
mod settings;
mod store;
mod time;
#[cfg(feature = "worker")]
mod worker;

#[cfg(all(feature = "embedded", unix))]
pub mod embedded;

pub use client::{
    Cancelled, Client, ClientBuilder, IfAbsent, JobState, JobView, Placed, Reschedule, Rescheduled,
    Schedule, ScheduleIfAbsent, Scheduled, Stats,
};
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "worker")]
pub use handler::{
    CancelSignal, Failure, FromJob, FromRef, Handler, IntoOutcome, Job, Json, MAX_FAILURE_BYTES,
    Outcome, Payload, Rejection, Route, SampleJob, Segments, State,
};
pub use headers::Headers;
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
pub use record::Step;
pub use retry::RetryPolicy;
#[cfg(feature = "worker")]
pub use router::Router;
#[cfg(feature = "worker")]
pub use worker::{Source, Worker};
