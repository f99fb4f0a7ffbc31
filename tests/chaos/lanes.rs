//! Scenarios side by side: each waits most of the time, and has servers and processes of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLock, mpsc};

/// How many run at a time. They share the machine, and each measures the effect on it.
const LANES: usize = 2;

/// Runs `work` on each item, some at a time, and returns the results in the order of the items. An
/// item that `is_heavy` has the machine for itself.
pub(crate) fn each_in_order<T: Sync, R: Send>(
    all: &[T],
    is_heavy: impl Fn(&T) -> bool + Sync,
    act: impl Fn(&T) -> R + Sync,
    mut told: impl FnMut(R),
) {
    let next = AtomicUsize::new(0);
    let machine = RwLock::new(());
    let (tell, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            let (tell, next, machine) = (tell.clone(), &next, &machine);
            let (is_heavy, act) = (&is_heavy, &act);
            scope.spawn(move || {
                while let place = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(one) = all.get(place)
                {
                    let free = "no scenario panics while it has the machine";
                    let result = if is_heavy(one) {
                        let _machine = machine.write().expect(free);
                        act(one)
                    } else {
                        let _machine = machine.read().expect(free);
                        act(one)
                    };
                    // The receiver is gone only after a panic.
                    let _ = tell.send((place, result));
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

/// Runs the work in this thread, with a runtime of its own: if it blocks, nothing else is held up.
pub(crate) fn alone<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts")
        .block_on(work)
}
