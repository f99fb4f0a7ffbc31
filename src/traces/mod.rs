//! The trace of whoever schedules a job goes on in its handler: `docs/tracing.md`.
//!
//! | part | what it does |
//! |---|---|
//! | [`parent`] | `traceparent` and `tracestate`, as the W3C wrote them down |
//! | [`reading`] | reads them again |
//! | [`none`] | all of that without the feature `traces`: nothing |
//!
//! The span of a run is the worker's: `worker/running/span.rs`.

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

/// The header that says to which span of which trace a job belongs.
#[cfg(any(feature = "traces", feature = "callbacks"))]
pub(crate) const PARENT: &str = "traceparent";

/// And what the tracing system of the caller says beside it.
#[cfg(any(feature = "traces", feature = "callbacks"))]
pub(crate) const STATE: &str = "tracestate";
