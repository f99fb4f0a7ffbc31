//! Claims found jobs, as many as there are free slots.
//!
//! | part | task |
//! |---|---|
//! | [`inbox`] | keeps found jobs for the claimer |
//! | [`pick`] | picks the next claim of a ledger |
//! | [`claimer`] | sends the claims, and passes the jobs to the runner |

pub(super) mod claimer;
pub(super) mod inbox;
mod pick;
