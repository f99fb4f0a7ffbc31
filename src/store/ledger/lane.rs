//! Lanes: series of numbered calls, which a client may repeat without harm; and pools of them.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout_at;

use crate::error::{Error, ErrorKind, Result};

/// A series of calls to one ledger, one at a time, with rising numbers. The ledger answers a
/// repeated number with its first reply, and refuses a lower one. It forgets a lane that was silent
/// for an hour.
#[derive(Debug)]
pub(crate) struct Lane {
    /// 24 hexadecimal digits.
    id: String,
    /// The number of the last call; 0 before the first one.
    number: u64,
}

/// The lanes of one sender to one ledger, which bound its calls at a time. Clones share the lanes.
#[derive(Clone)]
pub(crate) struct LanePool(Arc<Lanes>);

/// The state of a pool.
struct Lanes {
    /// Lanes that were used and are free. The last one is used next, so that a ledger has to
    /// remember few of them.
    free: Mutex<Vec<Lane>>,
    /// One permit for each lane that is free or was never used.
    turns: Semaphore,
}

/// A lane that one caller holds alone, and returns when it is dropped. A caller that stops waiting
/// returns it as it is: the next call of the lane overtakes the unfinished one.
pub(crate) struct HeldLane {
    /// `None` only while it is dropped.
    lane: Option<Lane>,
    pool: LanePool,
}

/// A random name that is unique: 96 bits as 24 hexadecimal digits.
pub(crate) fn unique_id() -> String {
    let [a, b, c]: [u32; 3] = rand::random();
    format!("{a:08x}{b:08x}{c:08x}")
}

impl Lane {
    /// A lane with a new random id. The ledger learns of it with its first call.
    pub(crate) fn new() -> Self {
        Lane {
            id: unique_id(),
            number: 0,
        }
    }

    /// The id, which is the first argument of each numbered call.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Begins a call and returns its number. Numbers begin with 1.
    pub(crate) fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The number of the call that was begun last; 0 if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.number
    }

    /// A lane whose id and last number are known.
    pub(crate) fn resumed(id: String, number: u64) -> Self {
        Lane { id, number }
    }

    /// A lane with the same id that gives `number` next, for tests of repeats and late originals.
    #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
    pub(crate) fn rewound(&self, number: u64) -> Self {
        Lane {
            id: self.id.clone(),
            number: number - 1,
        }
    }
}

impl LanePool {
    /// A pool of this many lanes.
    pub(crate) fn new(lanes: usize) -> Self {
        LanePool(Arc::new(Lanes {
            free: Mutex::default(),
            turns: Semaphore::new(lanes),
        }))
    }

    /// Takes a free lane, or waits for one.
    pub(crate) async fn take(&self) -> HeldLane {
        let turn = self.0.turns.acquire().await;
        self.hand_out(turn.expect("it is never closed"))
    }

    /// The same, until a deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no lane is free in time.
    pub(crate) async fn take_in_time(&self, until: Instant) -> Result<HeldLane> {
        timeout_at(until.into(), self.take()).await.map_err(|_| {
            Error::new(
                ErrorKind::Unavailable,
                "too many calls are waiting for Redis; these jobs were not sent",
            )
        })
    }

    /// Takes a lane if one is free.
    #[cfg(feature = "worker")]
    pub(crate) fn try_take(&self) -> Option<HeldLane> {
        let turn = self.0.turns.try_acquire().ok()?;
        Some(self.hand_out(turn))
    }

    /// Hands out a lane; it keeps the permit.
    fn hand_out(&self, turn: SemaphorePermit<'_>) -> HeldLane {
        turn.forget();
        let free = self.0.free.lock().expect("no panic while held").pop();
        HeldLane {
            lane: Some(free.unwrap_or_else(Lane::new)),
            pool: self.clone(),
        }
    }
}

impl Deref for HeldLane {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        self.lane.as_ref().expect("until it is dropped")
    }
}

impl DerefMut for HeldLane {
    fn deref_mut(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("until it is dropped")
    }
}

impl Drop for HeldLane {
    fn drop(&mut self) {
        let Lanes { free, turns } = &*self.pool.0;
        free.lock()
            .expect("no panic while held")
            .extend(self.lane.take());
        turns.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pool_hands_out_so_many_lanes_and_the_same_ones_again() {
        let pool = LanePool::new(2);
        let mut first = pool.take().await;
        assert_eq!(first.next(), 1);
        let (id, second) = (first.id().to_owned(), pool.take().await);
        assert_ne!(id, second.id());
        let now = Instant::now();
        let none_in_time = pool.take_in_time(now).await.map(drop).unwrap_err();
        assert_eq!(none_in_time.kind(), ErrorKind::Unavailable);
        drop(first);
        let mut again = pool.take().await;
        assert_eq!((again.id(), again.last()), (&*id, 1));
        assert_eq!(again.next(), 2, "no number is given twice");
    }
}
