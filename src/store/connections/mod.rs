//! Connections to Redis: where a server is, how it is reached, and what a failure of it means.
//!
//! | file | contents |
//! |---|---|
//! | [`url`], `tls` | the URLs of servers, and their certificates |
//! | [`origin`], [`sentinel`] | where a server is, as its URL or sentinels say |
//! | [`cluster`] | the nodes of a cluster, and which of them serves a key |
//! | [`link`], [`connection`] | connections for commands, opened again when they break or hang |
//! | [`subscription`], [`subscriptions`] | the subscription to one node, and those to all nodes |
//! | [`in_time`] | waits for an answer, and takes one that came in time |
//! | [`fault`] | why a request failed, and whether repeating it can help |

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
