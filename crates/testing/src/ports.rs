//! Ports that no other process takes.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// The distance of the port of a cluster's bus from the port for clients.
pub const BUS: u16 = 10_000;

/// A port that is free together with its bus port. It lies below the ports that the system gives to
/// connections, and no two calls return the same.
pub fn free_port() -> u16 {
    const FIRST: u16 = 11_000;
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Other processes of these tests begin elsewhere, also those whose ids are next to this one.
    let start = (std::process::id() as u16).wrapping_mul(97);
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let next = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + next % BUS;
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
}
