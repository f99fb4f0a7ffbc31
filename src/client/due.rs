//! Due times from callers: checks and conversion. At most 10 years ahead; the past means now.

use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::MAX_DELAY;
use crate::store::When;
use crate::time::UnixMs;

/// The default due time: a delay of zero.
pub(super) const NOW: When = When::After(Duration::ZERO);

/// A delay from the moment at which Redis receives the call.
///
/// # Errors
/// [`ErrorKind::InvalidTime`] if the delay is above 10 years.
pub(super) fn after(delay: Duration) -> Result<When> {
    if delay > MAX_DELAY {
        return Err(too_far(format!("the delay {delay:?} is")));
    }
    Ok(When::After(delay))
}

/// A time by the clock of Redis.
///
/// # Errors
/// [`ErrorKind::InvalidTime`] before 1970, or more than 10 years ahead by this machine's clock.
pub(super) fn at(due: SystemTime) -> Result<When> {
    // The clock of this machine may be wrong; it is good enough to catch a mistaken unit.
    let now = SystemTime::now();
    if due.duration_since(now).is_ok_and(|ahead| ahead > MAX_DELAY) {
        return Err(too_far("the due time is".into()));
    }
    UnixMs::from_system(due).map(When::At).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidTime,
            "the due time lies before 1970: give a time since the Unix epoch",
        )
    })
}

fn too_far(what: String) -> Error {
    Error::new(
        ErrorKind::InvalidTime,
        format!("{what} more than 10 years ahead, which is the limit: is the unit right?"),
    )
}
