//! One server, the set of servers, and what is asked of each of them.
//!
//! | file | contents |
//! |---|---|
//! | [`server`] | one server: its link, its clock, and its simple commands |
//! | [`fan_out`] | asks several servers at the same time, of which some may be away |
//! | [`membership`] | verifies that a server is number m of n |
//! | [`catch_up`] | tells a server that was away what it has missed |
//! | [`nodes`] | the nodes of a server that is a cluster |
//! | [`requirements`], [`rights`] | what a server must be, and what it must allow this user |
//! | `proof` | proves that a server announces what is done to keys |
//! | `health`, `vitals` | what a worker's server ails from; what the doctor looks at |
//! | [`clock`] | the clock of a server |
//! | [`durable`] | waits until replicas and disks have what was written |
//! | `instances` | which workers live |
//! | [`functions`] | the scripts as Redis functions, for any client |

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
pub(super) mod server;
#[cfg(feature = "worker")]
pub(super) mod vitals;
