//! How a job has ended.

use std::fmt;

use serde::Serialize;

/// How a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum How {
    /// A handler has done it.
    Done,
    /// It did not run, because it was too late or its rule said so.
    Skipped,
    /// A caller has cancelled it.
    Cancelled,
    /// A job of the same name took its place.
    Replaced,
    /// It became a dead letter.
    Buried,
}

impl How {
    /// Every way to end.
    pub const ALL: [How; 5] = [
        How::Done,
        How::Skipped,
        How::Cancelled,
        How::Replaced,
        How::Buried,
    ];

    /// The word in the table, such as `done`.
    pub fn as_str(self) -> &'static str {
        match self {
            How::Done => "done",
            How::Skipped => "skipped",
            How::Cancelled => "cancelled",
            How::Replaced => "replaced",
            How::Buried => "buried",
        }
    }

    /// The way with this word.
    pub fn parse(word: &str) -> Option<Self> {
        How::ALL.into_iter().find(|how| how.as_str() == word)
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
