//! Keyfall: reminders that are Redis keys.
#![deny(missing_docs)]

mod client;
mod error;
mod headers;
mod key;
mod names;
mod record;
#[cfg(feature = "worker")]
mod routing;
mod settings;
mod store;
mod time;

#[cfg(all(feature = "embedded", unix))]
pub mod embedded;

pub use client::{
    Cancelled, Client, ClientBuilder, IfAbsent, JobState, JobView, Placed, Reschedule, Rescheduled,
    Schedule, ScheduleIfAbsent, Scheduled, Stats,
};
pub use error::{Error, ErrorKind, Result};
pub use headers::Headers;
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
pub use record::Step;
