//! One server, the set of servers, and the questions that each of them is asked.
//!
//! | file | contents |
//! |---|---|
//! | [`server`] | one server: its link, its clock, and its simple commands |
//! | [`fan_out`] | asks several servers at the same time, although some may be away |
//! | [`membership`] | verifies that a server is number m of n |
//! | [`schema`] | verifies the version of the stored data |
//! | [`catch_up`] | tells a server that was away the changes that it has missed |
//! | [`nodes`] | the nodes of a server that is a cluster |
//! | [`requirements`], [`rights`] | needed version, settings and role of a server; ACL rights |
//! | `proof` | proves that a server announces changes of keys |
//! | `health`, `vitals` | ailments of a worker's server; observations for the doctor |
//! | [`clock`] | the clock of a server |
//! | [`durable`] | waits until replicas and disks have a write |
//! | `instances`, `actions` | the list of live workers; the log of what operators did |
//! | [`functions`] | the scripts as Redis functions, for any client |

#[cfg(feature = "worker")]
pub(super) mod actions;
pub(super) mod catch_up;
pub(super) mod clock;
pub(super) mod durable;
pub(super) mod fan_out;
pub(super) mod functions;
#[cfg(feature = "worker")]
pub(super) mod health;
#[cfg(feature = "worker")]
pub(super) mod instances;
pub(super) mod membership;
pub(super) mod nodes;
#[cfg(feature = "worker")]
pub(super) mod proof;
pub(super) mod requirements;
pub(super) mod rights;
pub(super) mod schema;
pub(super) mod server;
#[cfg(feature = "worker")]
pub(super) mod vitals;
