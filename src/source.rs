//! How a job that is due was found.

/// How a job that is due was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Redis announced that its trigger expired, or that it was due when it was stored.
    Event,
    /// The pacer touched its trigger, and no event followed.
    Pacer,
    /// The reconciler found it overdue, or its lease lapsed.
    Reconciler,
    /// It was due when a slot became free: the oldest of its kind.
    Backlog,
}

impl Source {
    /// How the history writes it.
    pub(crate) fn letter(self) -> char {
        match self {
            Source::Event => 'e',
            Source::Pacer => 'p',
            Source::Reconciler => 'r',
            Source::Backlog => 'b',
        }
    }

    pub(crate) fn of_letter(letter: &str) -> Option<Self> {
        let all = [
            Source::Event,
            Source::Pacer,
            Source::Reconciler,
            Source::Backlog,
        ];
        all.into_iter()
            .find(|source| letter.chars().eq([source.letter()]))
    }

    /// In a word: `event`, `pacer`, `reconciler` or `backlog`.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Event => "event",
            Source::Pacer => "pacer",
            Source::Reconciler => "reconciler",
            Source::Backlog => "backlog",
        }
    }
}
