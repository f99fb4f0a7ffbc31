//! The daemon of [Keyfall](keyfall), which `keyfall serve` runs: jobs for services in any language.
//!
//! [`run`] is all of it. The other public items are what the command line shares with it: the
//! configuration, the tokens, and the JSON of the HTTP API, [`shapes`], whose calls commands can also
//! have answered [in their own process](in_process).
//!
//! | part | what it does |
//! |---|---|
//! | `serve` | starts the parts, and stops them in order |
//! | [`config`] | the settings, from file, environment and flags |
//! | [`tokens`] | the tokens of the callers, and what each allows |
//! | `access` | ties the tokens to the HTTP API |
//! | `alerts` | schedules jobs that tell of dead letters and late starts |
//! | `http` | the HTTP API |
//! | `new_kinds` | limits how many kinds may begin |
//! | `traces` | finds the trace of a request, and sends spans to a collector |
//! | [`classic`] | the interface for clients of classic delay queues |
//! | [`duration`] | durations as people write them |
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the tables of modules are for readers of the source"
)]

mod access;
mod alerts;
pub mod classic;
pub mod config;
pub mod duration;
mod http;
mod new_kinds;
mod serve;
pub mod tokens;
mod traces;

pub use http::{in_process, shapes};
pub use serve::{Options, run};
pub use traces::Traces;
