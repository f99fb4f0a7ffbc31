//! What the suites of Keyfall share: `tests/it` proves what each part does, `tests/chaos`
//! ill-treats all of it.
//!
//! | module | what it has |
//! |---|---|
//! | [`files`] | the files of the repository, and a folder for those of a test |
//! | [`sabotage`] | what can be done to each key, and what an audit says of it and leaves |
//!
//! It uses the public API of the library and nothing else, as the suites do.
#![cfg(unix)]

pub mod files;
pub mod sabotage;
