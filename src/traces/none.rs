//! What is traced without the feature `traces`: nothing. Headers travel as they were given.

use crate::headers::Headers;
#[cfg(feature = "worker")]
use crate::{handler::Job, key::JobKey, record::Header, store::Verb};

pub(crate) fn carry(_: &mut Headers) {}

#[cfg(feature = "worker")]
pub(crate) fn current() -> Option<(String, String)> {
    None
}

/// The span of a run, for the log.
#[cfg(feature = "worker")]
pub(crate) fn run(key: &JobKey, attempt: u32, _: Option<&Header>) -> tracing::Span {
    tracing::error_span!(target: "keyfall::worker", "run", %key, attempt)
}

#[cfg(feature = "worker")]
pub(crate) fn begun(_: &Job) {}

#[cfg(feature = "worker")]
pub(crate) fn ended(_: &Verb) {}

#[cfg(feature = "worker")]
pub(crate) fn lost() {}
