//! The events of a ledger: the calls of a few clients, their repeats and late originals, and
//! foreign writes to the names of its triggers.

/// Few ids, so that the steps of a sequence meet the same jobs. One id is the beginning of another.
pub(super) const IDS: [Id; 4] = ["a", "ab", "b", "c"];

/// Each client has one lane.
pub(super) const CLIENTS: usize = 3;

pub(super) const HOUR: u64 = 3_600_000;
pub(super) const MOMENT: u64 = 1;

/// A time in the past, Unix ms.
pub(super) const LONG_AGO: u64 = 1000;

/// About how many letters one `Trim` drops.
pub(super) const AT_ONCE: usize = 4;

/// A schedule waits for silence, but not for more than an hour.
pub(super) const DEBOUNCE: &str = "debounce:3600000";

/// What people are told of a limit.
pub(super) const LIMITED_BY: &str = "1 2 0 3 model";

pub(super) type Id = &'static str;

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A client makes a call.
    Call(usize, Operation),
    /// A call is lost before it arrives.
    Lost(usize, Operation),
    /// A client got no reply, and sends its last call again.
    Repeat(usize),
    /// A call arrives late: its client has made this many calls since. It may have arrived before.
    Late(usize, usize),
    /// A foreign program stores a value under the name of a trigger.
    Seize(Id),
    /// A trigger is evicted, or the foreign value is deleted.
    Lose(Id),
    /// The kind is dropped, if it is empty.
    Raze,
    /// The client that was told to registers the kind.
    Listed,
}

/// One call of one script.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Schedule(Vec<Placement>),
    /// Each with the step that the record keeps.
    Reschedule(Vec<(Id, When, &'static str)>),
    Update(Vec<(Id, Payload)>),
    Amend(Vec<Amendment>),
    /// The jobs of each series.
    Plan(Vec<Vec<SeriesJob>>),
    Cancel(Vec<(Id, Condition)>),
    Claim {
        ids: Vec<Id>,
        fill: usize,
        lease: u64,
    },
    Reclaim {
        ids: Vec<Id>,
        lease: u64,
    },
    Renew {
        leases: Vec<(Id, Holder)>,
        lease: u64,
        /// Whether a lease that already runs longer stays as it is.
        longer: bool,
    },
    Settle {
        ends: Vec<(Id, Holder, Verb, Next)>,
        limits: Limits,
    },
    Requeue(Vec<(Id, Which, When)>),
    Discard(Vec<(Id, Which)>),
    Trim(Limits),
    Pause,
    Resume,
    Limit(Limit),
    /// For so long, ms.
    Hold(u64),
    /// Whether it announces jobs, which is not compared.
    Admit(bool),
    Sweep {
        overdue: u64,
        limit: usize,
        skip: [usize; 2],
    },
    Get(Id),
    List(Page),
    Letters(Id, usize, Option<Which>),
    Stats,
    /// Whether the audit repairs its findings.
    Audit(bool),
}

/// A limit of the ledger.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// µs between two starts; 0 without a rate.
    pub(super) gap: u64,
    pub(super) burst: u64,
    /// 0 for any number of leases.
    pub(super) most: usize,
    /// The newest limit holds.
    pub(super) set: u64,
}

pub(super) type Payload = &'static [u8];

#[derive(Debug, Clone)]
pub(super) struct Placement {
    pub(super) id: Id,
    pub(super) mode: &'static str,
    pub(super) when: When,
    pub(super) header: &'static str,
    pub(super) payload: Payload,
}

/// When a job is cancelled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    Always,
    /// If its order number is lower.
    OrderBelow(u64),
    /// If it is as the caller has seen it; and whether the caller has seen it as it is when the call
    /// is sent.
    Seen(bool),
}

#[derive(Debug, Clone)]
pub(super) struct Amendment {
    pub(super) id: Id,
    /// Whether the caller has seen the job as it is when the call is sent.
    pub(super) is_seen: bool,
    pub(super) when: When,
    pub(super) header: &'static str,
    pub(super) payload: Option<Payload>,
}

/// One job of a series; a series names a job once.
#[derive(Debug, Clone)]
pub(super) struct SeriesJob {
    pub(super) id: Id,
    /// Whether the caller has seen the job as it is when the call is sent. A job that is leased is
    /// never seen as it is.
    pub(super) is_seen: bool,
    /// The job from now on: due time, header, and payload unless that stays.
    pub(super) put: Option<(When, &'static str, Option<Payload>)>,
}

/// A due time. The times are far apart, so that no answer depends on the speed of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum When {
    /// This many ms from now.
    After(u64),
    /// The time [`LONG_AGO`].
    Past,
    /// This many ms after the beginning of the sequence: one instant for all jobs.
    Ahead(u64),
    /// This many ms after the present due time.
    By(u64),
}

/// The owner of the token that a worker sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The worker that holds the lease.
    Owner,
    /// The worker that held the lease this many leases ago.
    Former(usize),
    Nobody,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verb {
    Done,
    Skip,
    Later(When, &'static str, &'static str),
    Bury(&'static str),
}

/// The occurrence that follows the end of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// The caller knows of none.
    Unknown,
    Nothing,
    /// With this header.
    At(When, &'static str),
}

/// The most dead letters, and the most ms for which they are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) count: usize,
    pub(super) age: u64,
}

/// The dead letter of a job that a client names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The letter this many before the latest.
    Latest(usize),
    Missing,
}

/// The selection of a list, and the size of its pages.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) state: &'static str,
    pub(super) down: bool,
    pub(super) limit: usize,
    pub(super) looks: usize,
    pub(super) records: bool,
    pub(super) until: When,
    pub(super) of_id: &'static str,
}
