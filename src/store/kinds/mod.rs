//! Kinds and their shards: the list of kinds, their layouts, their pauses, and the repair of split
//! ledgers.
//!
//! A kind is the first three segments of a job key. Its jobs are in one ledger or in several, one
//! for each shard. The files here decide where a job of a kind is stored; the files in
//! `src/store/ledger` read and change one ledger.
//!
//! | file | contents |
//! |---|---|
//! | [`registration`] | registers kinds, with the number of ledgers that they start with |
//! | [`layout`], [`moving`] | the number of ledgers of a kind; moves of jobs between ledgers |
//! | `declared` | the recurring jobs that a configuration declares |
//! | [`dropping`] | removes kinds without jobs |
//! | [`terms`] | the rules by which jobs leave records for an archive, and changes for a copy |
//! | [`limits`], [`shares`], [`group_shares`] | limits: rates, and numbers of leases; how ledgers share one, and that of each group |
//! | [`pause`], [`switches`] | pauses and resumes kinds; the rules that cover kinds by prefix |
//! | [`order`] | order numbers, which say which of several jobs came last |
//! | [`search`] | finds kinds with jobs by their keys, without the list of kinds |
//! | [`data_set`] | the id of the data set |
//! | [`common_keys`] | checks the keys that all kinds share |
//! | `activity` | how many runs of a kind began and ended, minute by minute |
//! | [`split`], [`stray_slots`], `slot_repair` | ledgers with a part on another node: how calls treat them, where the part is, how it is brought back |

#[cfg(feature = "worker")]
pub(super) mod activity;
pub(super) mod common_keys;
pub(super) mod data_set;
#[cfg(feature = "worker")]
pub(super) mod declared;
pub(super) mod dropping;
pub(super) mod group_shares;
pub(super) mod layout;
pub(super) mod limits;
pub(super) mod moving;
pub(super) mod order;
pub(super) mod pause;
pub(super) mod registration;
pub(super) mod search;
pub(super) mod shares;
#[cfg(feature = "worker")]
pub(super) mod slot_repair;
pub(super) mod split;
pub(super) mod stray_slots;
pub(super) mod switches;
pub(super) mod terms;
