//! More than one server: a primary with replicas, which sentinels may watch, and clusters.

mod clustered;
mod clusters;
mod durable;
mod handover;
mod nodes;
mod replicated;
mod sentineled;
mod sentinels;
mod several;
mod stale;
