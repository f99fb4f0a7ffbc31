//! Networks between a server, Redis or PostgreSQL, and its clients, which fail when they are told to.
//!
//! [`FreezingProxy`] stops at the place in a conversation that a test names. [`FaultyProxy`] reads
//! what passes, and ill-treats calls of scripts at random.

mod faulty;
mod freezing;

pub use faulty::{FaultyProxy, Ill, Weather};
pub use freezing::FreezingProxy;
