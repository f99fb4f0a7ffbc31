//! Keyfall: reminders that are Redis keys.
#![deny(missing_docs)]

mod error;
mod key;
mod retry;

pub use error::{Error, ErrorKind, Result};
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
pub use retry::RetryPolicy;
