//! The archive: every job that has ended, for months or for ever.
//!
//! | module | contents |
//! |---|---|
//! | [`archiver`] | stores the records that wait in Redis, and removes them there |
//! | [`how`] | how a job has ended |
//! | [`row`] | a job that has ended, as it is stored |
//! | [`writer`] | stores rows, each once |
//! | [`retention`] | drops the partitions whose time is over |

mod archiver;
mod how;
mod retention;
mod row;
mod writer;

pub use archiver::Archiver;
pub use how::How;
pub use row::Row;
pub use writer::store;
