//! Traces: the trace of a request, and the collector that gets the spans.
//!
//! | part | task |
//! |---|---|
//! | [`place`] | the span of a request, and of its caller |
//! | [`sending`] | sends spans to a collector, over OTLP |

mod place;
mod sending;

pub(super) use place::Place;
pub use sending::Traces;
