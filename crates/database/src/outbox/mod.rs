//! The outbox: rows that callers write in their own transactions, and the relay that passes them on.
//!
//! | module | contents |
//! |---|---|
//! | [`relay`] | wakes, finds kinds with rows, and passes on what they have |
//! | [`batch`] | takes the next rows of a kind, and removes those that were passed on |
//! | [`kept`] | keeps rows that were passed on, until the copy has their effect |
//! | [`row`] | a row as a call |
//! | [`status`] | how many rows wait |
//!
//! Each kind has a lane in Redis and at most one batch on its way, which is noted in
//! `keyfall_outbox_lanes` before it is sent. Whoever finds a noted batch sends it again under its
//! number, and Redis carries out nothing twice. So no lock has to hold while Redis is asked: relays
//! share the kinds by a time until which the others leave one alone, and that is for speed only.

mod batch;
mod kept;
mod relay;
mod row;
mod status;

pub use relay::Relay;
pub use status::OutboxStatus;
