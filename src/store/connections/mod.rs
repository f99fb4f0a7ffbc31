//! Connections to Redis: the addresses of servers, links for commands, subscriptions, and the
//! meaning of failures.
//!
//! | file | contents |
//! |---|---|
//! | [`url`], `tls` | URLs of servers, and their certificates |
//! | [`origin`], [`sentinel`] | address of a server, from its URL or from sentinels |
//! | [`cluster`] | nodes of a cluster, and the node that serves a key |
//! | [`link`], [`connection`] | connections for commands, opened again when they break or hang |
//! | `subscription`, `subscriptions` | subscription to one node, and to all nodes |
//! | [`in_time`] | waits for an answer until a deadline, and takes an answer that came in time |
//! | [`fault`] | cause of a failed request, and whether a repeat can help |

pub(super) mod cluster;
pub(super) mod connection;
pub(super) mod fault;
pub(super) mod in_time;
pub(super) mod link;
pub(super) mod origin;
pub(super) mod sentinel;
#[cfg(feature = "worker")]
pub(super) mod subscription;
#[cfg(feature = "worker")]
pub(super) mod subscriptions;
#[cfg(feature = "tls")]
pub(super) mod tls;
pub(super) mod url;
