//! Runs what was claimed, for as long as its lease lasts.
//!
//! | part | what it does |
//! |---|---|
//! | [`slots`] | how many jobs may run at the same time |
//! | [`runner`] | calls the handler, and settles |
//! | [`leases`] | renews the leases of what runs |

pub(super) mod leases;
pub(super) mod runner;
pub(super) mod slots;
