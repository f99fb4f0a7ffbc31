//! The ways in which a worker finds a due job.

/// The way in which a worker found a due job; [`Job::source`](crate::Job::source) returns it.
///
/// Where events arrive, most runs come from `Event`. Many runs from `Pacer` or `Reconciler` are a
/// sign that events do not arrive; many runs from `Backlog` show that jobs wait for free slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Redis announced that the trigger expired, or that the job was due already when it was
    /// stored.
    Event,
    /// The pacer touched the trigger, and no event followed.
    Pacer,
    /// The reconciler found the job overdue, or its lease lapsed.
    Reconciler,
    /// The job was due when a slot became free, and was the oldest of its kind.
    Backlog,
}

impl Source {
    /// The letter that stands for it in claims and in the history.
    pub(crate) fn letter(self) -> char {
        match self {
            Source::Event => 'e',
            Source::Pacer => 'p',
            Source::Reconciler => 'r',
            Source::Backlog => 'b',
        }
    }

    /// The source that a letter stands for. `None` for any other text.
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

    /// The name in one word: `event`, `pacer`, `reconciler` or `backlog`.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Event => "event",
            Source::Pacer => "pacer",
            Source::Reconciler => "reconciler",
            Source::Backlog => "backlog",
        }
    }
}
