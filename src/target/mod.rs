//! Where a job can go that is not a function: to an HTTP server, or to whoever pulls it.
//!
//! A target is the handler of a route, like any other.

#[cfg(feature = "callbacks")]
mod http;

pub use crate::handler::{Pull, Pulled};
#[cfg(feature = "callbacks")]
pub use http::{Calls, Http, http, http_of_jobs};
