//! What can be wrong with what is stored of a job.

/// What an audit finds wrong with one name; from [`Client::audit`](crate::Client::audit).
///
/// None of it comes about by Keyfall alone: somebody wrote to its keys, or Redis lost some of
/// them and not others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// It is pending, and its record is not there. Repaired: a dead letter.
    DueWithoutRecord,
    /// A record of a job that is neither pending nor leased. Repaired: a dead letter, with the
    /// payload.
    RecordAlone,
    /// It is both pending and leased. Repaired: what is pending follows the run, unless
    /// something does already.
    DueAndLeased,
    /// Its lease has a deadline, and no holder. Repaired: it is taken over when it lapses.
    LeaseWithoutHolder,
    /// Its lease has a holder, and no deadline. Repaired: it lapses, unless its holder renews
    /// it.
    LeaseWithoutDeadline,
    /// Its lease has lapsed, and its record is not there. Repaired: a dead letter; what was to
    /// follow it is pending.
    LapsedWithoutRecord,
    /// It runs, and its record is not there. Left alone: its worker knows what it runs.
    RunningWithoutRecord,
    /// It was to follow a run that is not there. Repaired: pending.
    SuccessorAlone,
    /// A dead letter without a record. Repaired: it has one, without a payload.
    LetterWithoutRecord,
    /// The record of a dead letter that is not counted among the dead. Repaired: it is.
    LetterRecordAlone,
    /// The name leads to dead letters that are not there. Repaired: it leads to the others.
    LetterMisfiled,
    /// There is a dead letter of the name, and the name leads to none. Repaired: it leads to it.
    LetterUnfiled,
    /// The record of a dead letter cannot be read. Repaired: it can, with the reason, and with what
    /// looks like its payload.
    LetterUnreadable,
    /// It is pending at a time that never comes, or is none. Repaired: a dead letter, with its
    /// payload.
    DueAtNoTime,
    /// Its record, or that of what is to follow it, cannot be read. Repaired: a dead letter, with
    /// what looks like the payload. Left alone while it is leased: whoever has it, or takes it over,
    /// buries it.
    RecordUnreadable,
    /// No job, or no dead letter, can have this name. Repaired: what is stored under it becomes a
    /// dead letter, of the name with `_` for each character that it cannot have.
    NameOfNoJob,
    /// The same, and nothing is stored under it that could be kept. Repaired: dropped.
    NameAlone,
}

impl Flaw {
    /// Whether an audit can repair it.
    pub fn is_repairable(self) -> bool {
        self != Flaw::RunningWithoutRecord
    }

    /// What becomes of it by a repair, in a few words.
    pub fn remedy(self) -> &'static str {
        match self {
            Flaw::DueWithoutRecord | Flaw::LapsedWithoutRecord => "a dead letter without a payload",
            Flaw::RecordAlone | Flaw::DueAtNoTime => "a dead letter",
            Flaw::DueAndLeased => "what is pending follows the run",
            Flaw::LeaseWithoutHolder => "taken over when it lapses",
            Flaw::LeaseWithoutDeadline => "a deadline, by which its holder has to renew it",
            Flaw::RunningWithoutRecord => "left to its worker",
            Flaw::SuccessorAlone => "pending",
            Flaw::LetterWithoutRecord => "a record without a payload",
            Flaw::LetterRecordAlone => "one of the dead letters",
            Flaw::LetterMisfiled => "its name leads to the letters that are there",
            Flaw::LetterUnfiled => "its name leads to it",
            Flaw::LetterUnreadable => "readable, with the reason",
            Flaw::RecordUnreadable => "a dead letter, unless a worker is about to bury it",
            Flaw::NameOfNoJob => "a dead letter under a name with `_` for what cannot be in one",
            Flaw::NameAlone => "dropped, since nothing is stored under it that could be kept",
        }
    }

    /// What the dead letter says that comes of it.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Flaw::RecordAlone => "an audit found it stored, and neither pending nor leased",
            Flaw::LetterWithoutRecord => "an audit found this dead letter without a record",
            Flaw::DueAtNoTime => "an audit found it due at a time that never comes",
            Flaw::NameOfNoJob => "an audit found it under a name that no job can have",
            Flaw::RecordUnreadable | Flaw::LetterUnreadable => {
                "an audit found a record that cannot be read"
            }
            _ => "an audit found it without a record: its payload is lost",
        }
    }
}
