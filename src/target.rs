//! Where a job can go that is not a function: to whoever pulls it.
//!
//! A target is the handler of a route, like any other.

pub use crate::handler::{Pull, Pulled};
