//! Runs what was claimed, for as long as its lease lasts.
//!
//! | part | what it does |
//! |---|---|
//! | [`slots`] | how many jobs may run at the same time; with [`rate`] and [`hands`], how many in a time, and how many in the hands of those who pull |
//! | [`runner`] | calls the handler, and settles |
//! | [`leases`] | renews the leases of what runs |

mod hands;
pub(super) mod leases;
mod rate;
pub(super) mod runner;
pub(super) mod slots;
