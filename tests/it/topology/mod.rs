//! More than one server: a primary with replicas, which sentinels may watch, and clusters.

mod adopted;
mod benching;
mod clustered;
mod clusters;
mod dropped;
mod durable;
mod followed;
mod founded;
mod guarded;
mod handover;
mod lagging;
mod nodes;
mod outlets;
mod replicated;
mod returned;
mod sentineled;
mod sentinels;
mod several;
mod sized;
mod skewed;
mod stale;
mod started;
mod suite;
mod torn;
