//! Pushes and deletes of one id take turns: each is several calls to Redis.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Mutex, MutexGuard};

/// The most ids that can have their turn at the same time.
const TURNS: usize = 1024;

pub(super) struct Turns {
    hasher: RandomState,
    turns: Box<[Mutex<()>]>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            hasher: RandomState::new(),
            turns: std::iter::repeat_with(Mutex::default).take(TURNS).collect(),
        }
    }

    /// Waits until no other call has the turn of this id.
    pub(super) async fn of(&self, id: &str) -> MutexGuard<'_, ()> {
        let number = self.hasher.hash_one(id) % TURNS as u64;
        self.turns[usize::try_from(number).expect("less than all")]
            .lock()
            .await
    }
}
