//! Makes jobs of plain keys: hears what happens to those that routes adopt, and brings the
//! ledgers into line. `docs/adoption.md` says what each command does. Each server has all of this
//! once: what is done to the keys of one is heard, missed and searched for there, whatever becomes of
//! the others.
//!
//! | part | what it does |
//! |---|---|
//! | [`subscriber`] | hears of them |
//! | [`heard`] | decides who looks at them |
//! | [`names`] | keeps which keys are to be looked at, and why |
//! | [`adopter`] | looks at them |
//! | [`location`] | has them looked at in the ledgers that have their jobs |
//! | [`found`] | looks at those that were found |
//! | [`confirm`] | has those of jobs that are about to run looked at once more |
//! | [`coverage`] | knows whether they are heard of, and how far |
//! | [`expired`] | remembers which of them expired |
//! | [`others`] | keeps what others are to look at, should they be gone |
//! | [`search`] | finds what was done to keys while nobody listened |
//! | [`strays`] | leaves those alone that are no keys of jobs, or are on the wrong server |

pub(crate) mod adopter;
pub(crate) mod confirm;
pub(crate) mod coverage;
mod expired;
mod found;
mod heard;
mod location;
mod names;
mod others;
pub(crate) mod search;
mod strays;
pub(crate) mod subscriber;
