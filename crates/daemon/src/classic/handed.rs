//! The leases of popped jobs, by id: a finish names no topic and no lease.
//!
//! Nothing depends on the table: an id without an entry, or with an old one, is searched for in all
//! topics. It keeps a finish from ending a job of the same id in another topic, which a consumer of
//! another daemon has.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use keyfall::Lease;

/// The least number of entries before lapsed leases are dropped.
const FEW: usize = 1024;

#[derive(Default)]
pub(super) struct Handed(Mutex<Leases>);

#[derive(Default)]
struct Leases {
    by_id: HashMap<String, (Lease, Instant)>,
    /// The number of entries after lapsed leases were last dropped.
    kept: usize,
}

impl Handed {
    /// Records that a consumer holds a job for this time.
    pub(super) fn remember(&self, lease: Lease, length: Duration) {
        let now = Instant::now();
        let mut leases = self.lock();
        if leases.by_id.len() >= 2 * leases.kept.max(FEW) {
            leases.by_id.retain(|_, (_, until)| *until > now);
            leases.kept = leases.by_id.len();
        }
        let id = lease.key().id().to_owned();
        leases.by_id.insert(id, (lease, now + length));
    }

    /// The lease of the latest delivery. `id` is the id of its key.
    pub(super) fn get(&self, id: &str) -> Option<Lease> {
        self.lock().by_id.get(id).map(|(lease, _)| lease.clone())
    }

    /// Drops this lease, unless a later one has taken its place.
    pub(super) fn forget(&self, lease: &Lease) {
        let mut leases = self.lock();
        let id = lease.key().id();
        if leases.by_id.get(id).is_some_and(|(kept, _)| kept == lease) {
            leases.by_id.remove(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.0.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: usize) -> Lease {
        format!("app1:queue:a:{id}@ab-{id}").parse().unwrap()
    }

    #[test]
    fn the_latest_delivery_counts_and_lapsed_leases_are_dropped() {
        let handed = Handed::default();
        let hour = Duration::from_secs(3600);
        handed.remember(lease(1), hour);
        let later: Lease = "app1:queue:b:1@cd-1".parse().unwrap();
        handed.remember(later.clone(), hour);
        assert_eq!(handed.get("1"), Some(later.clone()));
        handed.forget(&lease(1));
        assert_eq!(handed.get("1"), Some(later.clone()));
        handed.forget(&later);
        assert_eq!(handed.get("1"), None);
        handed.remember(lease(2), hour);
        for id in 3..10 * FEW {
            handed.remember(lease(id), Duration::ZERO);
        }
        assert!(handed.lock().by_id.len() <= 2 * FEW);
        assert_eq!(handed.get("2"), Some(lease(2)));
    }
}
