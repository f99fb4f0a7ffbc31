//! What the suites of Keyfall share: `tests/it` proves what each part does, `tests/chaos`
//! ill-treats all of it.
//!
//! | module | what it has |
//! |---|---|
//! | [`server`], [`ports`] | private servers, the way to them, and ports for them |
//! | [`cluster`], [`sentinel`] | nodes of clusters, and sentinels |
//! | [`proxies`], [`resp`] | networks that freeze at a word, or are faulty; what Redis reads |
//! | [`process`] | processes that talk to a test, or that write to a log |
//! | [`journals`] | what was answered and what ran, in memory or in a file for each process |
//! | [`files`] | the files of the repository, and a folder for those of a test |
//! | [`patience`] | waiting, for as long as a busy machine may take |
//! | [`sabotage`] | what can be done to each key, and what an audit says of it and leaves |
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
pub mod process;
pub mod proxies;
pub mod resp;
pub mod sabotage;
pub mod sentinel;
pub mod server;
