//! Scenarios side by side: each waits most of the time, and has servers and processes of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// How many at a time. They share the machine, and each measures what that does to it.
const LANES: usize = 2;

/// Does this with each of them, some at a time, and hands on what came of it in their order.
pub(crate) fn each_in_order<T: Sync, R: Send>(
    all: &[T],
    act: impl Fn(&T) -> R + Sync,
    mut told: impl FnMut(R),
) {
    let next = AtomicUsize::new(0);
    let (tell, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            let (tell, next, act) = (tell.clone(), &next, &act);
            scope.spawn(move || {
                while let place = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(one) = all.get(place)
                {
                    // Whoever is told is gone only if it has panicked.
                    let _ = tell.send((place, act(one)));
                }
            });
        }
        drop(tell);
        let mut early = BTreeMap::new();
        let mut turn = 0;
        for (place, result) in done {
            early.insert(place, result);
            while let Some(result) = early.remove(&turn) {
                told(result);
                turn += 1;
            }
        }
    });
}

/// In this thread, with a runtime of its own, so that nothing that holds it up is felt elsewhere.
pub(crate) fn alone<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts")
        .block_on(work)
}
