//! Adoption: turns plain keys into jobs. It hears changes of the keys that routes adopt, and
//! updates the ledgers to match. `docs/adoption.md` lists the effect of each Redis command. Each
//! server has all of these parts once, so that changes of its keys are heard, missed and searched
//! for independently of the other servers.
//!
//! | part | task |
//! |---|---|
//! | [`changes`] | hears changes of keys, and decides which instance looks at each key |
//! | [`pending`] | keeps the keys to look at, with the reason |
//! | [`adopter`] | looks at the keys |
//! | [`location`] | finds the ledger of each key's job; ignores keys whose jobs are elsewhere |
//! | [`confirm`] | looks once more at the keys of jobs that are about to run |
//! | [`coverage`] | tracks whether and up to when changes are heard, and which keys expired |
//! | [`search`] | finds changes that nobody heard |

pub(crate) mod adopter;
pub(crate) mod changes;
pub(crate) mod confirm;
pub(crate) mod coverage;
mod location;
mod pending;
pub(crate) mod search;
