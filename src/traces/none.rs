//! Tracing without the feature `traces`: headers travel as the caller gave them, and there is no
//! current span.

use crate::headers::Headers;

/// Leaves the headers as they are.
pub(crate) fn carry(_: &mut Headers) {}

/// Always `None`.
#[cfg(feature = "worker")]
pub(crate) fn current() -> Option<(String, String)> {
    None
}
