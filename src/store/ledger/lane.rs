//! Numbered calls: what makes it safe to repeat one.

/// A sequence of calls, one at a time, each with a number that is higher than the last. A
/// ledger answers a repeated number with its first reply and refuses a lower one.
#[derive(Debug)]
pub(crate) struct Lane {
    id: String,
    number: u64,
}

/// A name that nobody else has: 96 random bits.
pub(crate) fn unique_id() -> String {
    let [a, b, c]: [u32; 3] = rand::random();
    format!("{a:08x}{b:08x}{c:08x}")
}

impl Lane {
    /// A lane that nobody else has.
    pub(crate) fn new() -> Self {
        Lane {
            id: unique_id(),
            number: 0,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Begins a call and returns its number.
    pub(crate) fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The number of the call that was begun last.
    pub(crate) fn last(&self) -> u64 {
        self.number
    }

    /// A lane that will give `number` next: for tests of repeats and late originals.
    #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
    pub(crate) fn rewound(&self, number: u64) -> Self {
        Lane {
            id: self.id.clone(),
            number: number - 1,
        }
    }
}
