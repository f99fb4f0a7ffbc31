//! Keyfall: reminders that are Redis keys.
#![deny(missing_docs)]

#[cfg(all(feature = "embedded", unix))]
pub mod embedded;
mod error;
mod key;

pub use error::{Error, ErrorKind, Result};
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
