//! The flaws that an audit can find in the stored data of a job.

/// A flaw that an audit found under one name; from [`Client::audit`](crate::Client::audit).
///
/// Keyfall alone causes none of them: another program wrote to its keys, or Redis lost some keys
/// and not others.
///
/// Each variant says what a repair does; [`remedy`](Self::remedy) returns the same in a few words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// The job is pending, and its record is missing. A repair buries it, without a payload.
    DueWithoutRecord,
    /// There is a record of a job that is neither pending nor leased. A repair buries the job, with
    /// the payload.
    RecordAlone,
    /// The job is both pending and leased. A repair makes the pending one the successor of the run,
    /// unless the run has a successor already.
    DueAndLeased,
    /// The lease has a deadline and no holder. A repair lets another worker take the job over when
    /// the lease lapses.
    LeaseWithoutHolder,
    /// The lease has a holder and no deadline. A repair sets a deadline, by which its holder has to
    /// renew it.
    LeaseWithoutDeadline,
    /// The lease has lapsed, and the record is missing. A repair buries the job without a payload;
    /// its successor, if it has one, becomes pending.
    LapsedWithoutRecord,
    /// The job runs, and its record is missing. This one is not repaired: the worker has the record
    /// in memory.
    RunningWithoutRecord,
    /// There is a successor of a run that does not exist. A repair makes it pending.
    SuccessorAlone,
    /// A dead letter has no record. A repair gives it one, without a payload.
    LetterWithoutRecord,
    /// There is the record of a dead letter that is missing in the list of dead letters. A repair
    /// lists it.
    LetterRecordAlone,
    /// The name refers to dead letters that do not exist. A repair keeps the references to letters
    /// that exist.
    LetterMisfiled,
    /// There is a dead letter of the name, and the name does not refer to it. A repair adds the
    /// reference.
    LetterUnfiled,
    /// The record of a dead letter cannot be read. A repair writes a readable one, with the reason,
    /// and with the part that looks like the payload.
    LetterUnreadable,
    /// The job is pending at a time that never comes, or that is no time. A repair buries it, with
    /// its payload.
    DueAtNoTime,
    /// The record of the job, or of its successor, cannot be read. A repair buries it, with the
    /// part that looks like the payload. While the job is leased it is left alone: the worker that
    /// has it, or takes it over, buries it.
    RecordUnreadable,
    /// No job, or no dead letter, can have this name. A repair buries the data that are stored
    /// under it, under the name with `_` for each character that is not allowed.
    NameOfNoJob,
    /// No job, or no dead letter, can have this name, and no data worth keeping are stored under
    /// it. A repair drops the name.
    NameAlone,
}

impl Flaw {
    /// Whether an audit can repair it: all of them but
    /// [`RunningWithoutRecord`](Self::RunningWithoutRecord).
    pub fn is_repairable(self) -> bool {
        self != Flaw::RunningWithoutRecord
    }

    /// The result of a repair, in a few words.
    ///
    /// ```
    /// use keyfall::Flaw;
    ///
    /// assert_eq!(Flaw::SuccessorAlone.remedy(), "pending");
    /// assert!(!Flaw::RunningWithoutRecord.is_repairable());
    /// ```
    pub fn remedy(self) -> &'static str {
        match self {
            Flaw::DueWithoutRecord | Flaw::LapsedWithoutRecord => "a dead letter without a payload",
            Flaw::RecordAlone | Flaw::DueAtNoTime => "a dead letter",
            Flaw::DueAndLeased => "the pending job follows the run",
            Flaw::LeaseWithoutHolder => "taken over when it lapses",
            Flaw::LeaseWithoutDeadline => "a deadline, by which its holder has to renew it",
            Flaw::RunningWithoutRecord => "left to its worker",
            Flaw::SuccessorAlone => "pending",
            Flaw::LetterWithoutRecord => "a record without a payload",
            Flaw::LetterRecordAlone => "one of the dead letters",
            Flaw::LetterMisfiled => "its name leads to the existing dead letters",
            Flaw::LetterUnfiled => "its name leads to it",
            Flaw::LetterUnreadable => "readable, with the reason",
            Flaw::RecordUnreadable => "a dead letter, unless a worker is about to bury it",
            Flaw::NameOfNoJob => "a dead letter under a name with `_` for each forbidden character",
            Flaw::NameAlone => "the name is dropped, since nothing is stored under it",
        }
    }

    /// The reason that is written into the dead letter which a repair makes.
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
