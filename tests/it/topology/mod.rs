//! More than one server: a primary with replicas that sentinels watch.

mod sentineled;
mod sentinels;
