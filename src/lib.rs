//! Keyfall: reminders that are Redis keys.
#![deny(missing_docs)]

mod error;
mod key;
#[cfg(feature = "worker")]
#[allow(
    dead_code,
    unused_imports,
    reason = "the router, which reads this, comes next"
)]
mod routing;

pub use error::{Error, ErrorKind, Result};
pub use key::{IntoJobKey, JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
