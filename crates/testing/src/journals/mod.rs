//! Journals of the answers to producers and of the runs of handlers, written as they happen.
//!
//! [`RunJournal`] belongs to one process: it keeps all events in memory, in one order, and judges
//! them. [`FileJournal`] belongs to one process among many, and survives its death.

mod file;
mod run;

pub use file::{FileJournal, Micros, Noted, at_unix_ms, now, read_all};
pub use run::{RunJournal, Sum, Wanted};
