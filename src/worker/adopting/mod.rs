//! Makes jobs of plain keys: hears what happens to those that routes adopt, and brings the
//! ledgers into line. `docs/adoption.md` says what each command does. Each server has all of this
//! once: what is done to the keys of one is heard, missed and searched for there, whatever becomes of
//! the others.
//!
//! | part | what it does |
//! |---|---|
//! | [`changes`] | hears what is done to keys, and decides who looks at them |
//! | [`pending`] | keeps which keys are to be looked at, and why |
//! | [`adopter`] | looks at them |
//! | [`location`] | has them looked at in the ledgers that have their jobs, and leaves those alone that have none here |
//! | [`confirm`] | has the keys of jobs that are about to run looked at once more |
//! | [`coverage`] | knows whether changes are heard, how far, and which keys expired |
//! | [`search`] | finds what was done to keys while nobody listened |

pub(crate) mod adopter;
pub(crate) mod changes;
pub(crate) mod confirm;
pub(crate) mod coverage;
mod location;
mod pending;
pub(crate) mod search;
