//! Kinds and their shards: the list of kinds, layouts, pauses, and ledgers that are split.
//!
//! | file | contents |
//! |---|---|
//! | [`registration`] | makes a kind known, with as many ledgers as it starts with |
//! | [`layout`], [`moving`] | how many ledgers a kind has; moves jobs from one ledger to another |
//! | [`dropping`] | removes a kind without jobs |
//! | [`pause`], [`switches`] | pauses kinds and resumes them; the rules that say which are paused |
//! | [`order`] | numbers that say which of several jobs came last |
//! | [`search`] | finds the kinds that have jobs, whatever the list of kinds says |
//! | [`common_keys`] | looks for what is wrong with the keys that all kinds share |
//! | [`split`], [`stray_slots`], `slot_repair` | ledgers of which a part is on another node: how calls meet them, where the part is, how it is brought back |

pub(super) mod common_keys;
pub(super) mod dropping;
pub(super) mod layout;
pub(super) mod moving;
pub(super) mod order;
pub(super) mod pause;
pub(super) mod registration;
pub(super) mod search;
#[cfg(feature = "worker")]
pub(super) mod slot_repair;
pub(super) mod split;
pub(super) mod stray_slots;
pub(super) mod switches;
