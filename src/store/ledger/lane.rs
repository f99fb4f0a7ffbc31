//! Lanes: series of numbered calls, which a client may repeat without harm.

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

    /// A lane with the same id that gives `number` next, for tests of repeats and late originals.
    #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
    pub(crate) fn rewound(&self, number: u64) -> Self {
        Lane {
            id: self.id.clone(),
            number: number - 1,
        }
    }
}
