//! What a caller may say of a due time.

use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::MAX_DELAY;
use crate::store::When;
use crate::time::UnixMs;

/// Now: the past means now, and no delay is none.
pub(super) const NOW: When = When::After(Duration::ZERO);

pub(super) fn after(delay: Duration) -> Result<When> {
    if delay > MAX_DELAY {
        return Err(too_far(format!("the delay {delay:?} is")));
    }
    Ok(When::After(delay))
}

pub(super) fn at(due: SystemTime) -> Result<When> {
    // This process's clock is only good enough to catch a unit mistaken for another.
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
