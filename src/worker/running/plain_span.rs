//! The span of a run, for builds without the feature `traces`: for the log alone. The same
//! functions as in `span.rs`.

use tracing::Span;

use crate::handler::Job;
use crate::key::JobKey;
use crate::record::Header;
use crate::store::Verb;

/// The span of a run, with the key and attempt of its job.
pub(super) fn run(key: &JobKey, attempt: u32, _: Option<&Header>) -> Span {
    tracing::error_span!(target: "keyfall::worker", "run", %key, attempt)
}

/// Does nothing: the log needs no further fields.
pub(super) fn begun(_: &Span, _: &Job) {}

/// Does nothing.
pub(super) fn ended(_: &Span, _: &Verb) {}

/// Does nothing.
pub(super) fn lost(_: &Span) {}
