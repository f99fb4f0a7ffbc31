//! The archive: every job that has ended, for months or for ever.
//!
//! | module | contents |
//! |---|---|
//! | [`archiver`] | stores the records that wait in Redis, and removes them there |
//! | [`how`] | how a job has ended |
//! | [`row`] | a job that has ended, as it is stored |
//! | [`writer`] | stores rows, each once |
//! | [`retention`] | drops the partitions whose time is over |
//! | [`query`] | what is looked for |
//! | [`search`] | finds jobs, newest first, window by window |
//! | [`statement`] | the statement that finds the jobs of a window |
//! | [`job`] | a job as the archive has it |

mod archiver;
mod how;
mod job;
mod query;
mod retention;
mod row;
mod search;
mod statement;
mod writer;

pub use archiver::Archiver;
pub use how::How;
pub use job::ArchivedJob;
pub use query::ArchiveQuery;
pub use row::Row;
pub use search::ArchivePage;
pub use writer::store;
