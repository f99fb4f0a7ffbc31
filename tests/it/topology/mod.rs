//! More than one server: a primary with replicas, which sentinels may watch.

mod durable;
mod nodes;
mod sentineled;
mod sentinels;
mod stale;
