//! The daemon of [Keyfall](keyfall), which `keyfall serve` runs: jobs for services in any language.
//!
//! [`run`] is the whole daemon. It shares the other public items with the command line: the
//! configuration, the tokens, and [`shapes`], the JSON of the HTTP API, whose calls commands can
//! also carry out [in their own process](in_process).
//!
//! | part | task |
//! |---|---|
//! | `serve` | starts the parts, and stops them in order |
//! | [`config`] | reads the settings from file, environment and flags |
//! | [`tokens`] | the tokens of the callers, and the rights of each |
//! | `access` | connects the tokens to the HTTP API |
//! | `alerts` | schedules jobs that report dead letters and late starts |
//! | `database` | passes on jobs that were scheduled in transactions of a PostgreSQL |
//! | `http` | the HTTP API |
//! | `new_kinds` | limits the number of new kinds |
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
#[cfg(feature = "database")]
mod database;
pub mod duration;
mod http;
mod new_kinds;
mod serve;
pub mod tokens;
mod traces;

pub use http::{Ui, UiTerms, in_process, is_local, shapes};
pub use serve::{Options, connect, run};
pub use traces::Traces;
