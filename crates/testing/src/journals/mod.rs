//! What producers were answered and handlers did, written down as it happens.
//!
//! [`RunJournal`] is of one process: it keeps all in memory, in one order, and judges it.
//! [`FileJournal`] is of one process among many, and survives its death.

mod file;
mod run;

pub use file::{FileJournal, Micros, Noted, at_unix_ms, now, read_all};
pub use run::{RunJournal, Sum, Wanted};
