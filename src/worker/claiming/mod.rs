//! Claims what was found, as much as can be run.
//!
//! | part | what it does |
//! |---|---|
//! | [`inbox`] | holds what was found, for the claimer |
//! | [`pick`] | says what is claimed next |
//! | [`claimer`] | claims it |

pub(super) mod claimer;
pub(super) mod inbox;
mod pick;
