//! Traces: where a request belongs, and where what is traced is sent.
//!
//! | part | what it does |
//! |---|---|
//! | [`place`] | the span of a request, and whoever called |
//! | [`sending`] | sends spans to a collector, over OTLP |

mod place;
mod sending;

pub(super) use place::Place;
pub use sending::Traces;
