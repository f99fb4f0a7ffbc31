//! Helpers that the test suites of Keyfall share: `tests/it` proves the behaviour of each part,
//! `tests/chaos` injects faults into the whole.
//!
//! | module | contents |
//! |---|---|
//! | [`server`], [`ports`] | private servers, the way to them, and ports for them |
//! | [`cluster`], [`sentinel`] | nodes of clusters, and sentinels |
//! | [`proxies`], [`resp`] | networks that freeze or are faulty; the parser of commands |
//! | [`postgres`] | a private PostgreSQL |
//! | [`process`] | processes that talk to a test, or that write to a log |
//! | [`journals`] | the answers and the runs, in memory or in a file for each process |
//! | [`files`] | the files of the repository, and a temporary folder for the files of a test |
//! | [`patience`] | waiting, for as long as a busy machine may take |
//! | [`sabotage`] | damage to each key, and the findings of an audit before and after repairs |
//!
//! It uses the public API of the library and nothing else, as the suites do.
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the tables of modules are for readers of the source"
)]
#![cfg(unix)]

pub mod cluster;
pub mod files;
pub mod journals;
pub mod patience;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod proxies;
pub mod resp;
pub mod sabotage;
pub mod sentinel;
pub mod server;
