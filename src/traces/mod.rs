//! Trace context in the headers of a job: the trace of the code that schedules a job continues in
//! its handler. `docs/tracing.md` shows how to set it up.
//!
//! | part | task |
//! |---|---|
//! | [`parent`] | writes the headers `traceparent` and `tracestate`, as the W3C specifies them |
//! | [`reading`] | reads these headers |
//! | [`none`] | stands in for both without the feature `traces`, and does nothing |
//!
//! The worker makes the span of each run: `worker/running/span.rs`.

#[cfg(not(feature = "traces"))]
mod none;
#[cfg(feature = "traces")]
mod parent;
#[cfg(all(feature = "traces", any(feature = "worker", test)))]
pub(crate) mod reading;

#[cfg(not(feature = "traces"))]
pub(crate) use none::carry;
#[cfg(all(not(feature = "traces"), feature = "worker"))]
pub(crate) use none::current;
#[cfg(feature = "traces")]
pub(crate) use parent::carry;
#[cfg(all(feature = "traces", feature = "worker"))]
pub(crate) use parent::current;

/// The header with the trace and the span that a job comes from.
#[cfg(any(feature = "traces", feature = "callbacks"))]
pub(crate) const PARENT: &str = "traceparent";

/// The header with data of the caller's tracing system, passed on without a look inside.
#[cfg(any(feature = "traces", feature = "callbacks"))]
pub(crate) const STATE: &str = "tracestate";
