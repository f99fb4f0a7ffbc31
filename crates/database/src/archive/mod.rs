//! The archive: every job that has ended, for months or for ever.
//!
//! | module | contents |
//! |---|---|
//! | [`how`] | how a job has ended |
//! | [`row`] | a job that has ended, as it is stored |
#![expect(dead_code, reason = "the writer uses it")]

mod how;
mod row;

pub use how::How;
#[expect(unused_imports, reason = "the writer uses it")]
pub(crate) use row::Row;
