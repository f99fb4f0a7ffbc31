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
