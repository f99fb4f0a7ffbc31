//! What each process writes down of what it was answered and did.

use keyfall_testing::journals::{self, FileJournal, Micros};
use serde::{Deserialize, Serialize};

/// The journal of one process.
pub(crate) type Journal = FileJournal<What>;

/// A line of a journal.
pub(crate) type Noted = journals::Noted<What>;

/// What is done to a process that a signal stops.
pub(crate) const STOPPED: &str = "stopped";

/// What is done to the clock of one of several servers.
pub(crate) const CLOCK: &str = "a clock is set";

/// Tells one schedule from all others; it is the payload of its job.
pub(crate) type Version = u64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    // Of producers: the call has this number among those of its process.
    Sent {
        call: u64,
        key: String,
        ask: Ask,
    },
    Answered {
        call: u64,
        answer: Answer,
    },
    // Of workers: a run is known by its key and its fencing value.
    Began {
        key: String,
        version: Version,
        attempt: u32,
        fence: u64,
        /// How long after its due time, by the clock of Redis, in µs.
        late: Micros,
    },
    Ended {
        key: String,
        fence: u64,
        /// Done or buried: nobody needs to run it again.
        last: bool,
    },
    /// The end of a run was told to Redis, which took it, or refused it.
    Settled {
        key: String,
        fence: u64,
        taken: bool,
    },
    /// The end of a run did not reach whoever is to tell Redis, as far as is known.
    Unheard {
        key: String,
        fence: u64,
    },
    // Of the witness.
    /// Redis says who listens to what is done to adopted keys; and whether it takes writes, and
    /// announces what there is to hear.
    Looked {
        sent: Micros,
        able: bool,
        listeners: Vec<u64>,
    },
    // Of the harness.
    /// Something is done to somebody: to this process, if it names one.
    Fault {
        name: String,
        process: Option<String>,
    },
    /// The first fault is about to come, or the last one is over.
    Weather {
        bad: bool,
    },
    /// This process is no more.
    Gone {
        process: String,
    },
    /// Redis went back to what it had at some instant: what was answered after that and before
    /// now may be undone.
    RolledBack {
        /// That instant, by the mark that Redis came back with, if it did.
        kept: Option<Micros>,
        /// What was answered before this had to be there still, by what was done to Redis.
        since: Micros,
        /// What it had of that, if not all.
        of: Option<Part>,
    },
    /// From then on until now, something was done to what serves these ledgers.
    Suffered {
        part: Part,
        since: Micros,
    },
    /// What a primary served that was ill-treated is served again.
    Served,
}

/// Some ledgers, `app:module:biz/3`, of kinds that have so many each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) shards: u16,
    pub(crate) ledgers: Vec<String>,
}

impl Part {
    /// Whether the job of this key belongs to one of them.
    pub(crate) fn has(&self, key: &str) -> bool {
        let (kind, id) = key.rsplit_once(':').expect("it is the key of a job");
        let ledger = format!("{kind}/{}", keyfall::shard_of(id, self.shards));
        self.ledgers.contains(&ledger)
    }
}

/// What a producer asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Schedule {
        version: Version,
        /// It is meant to end as a dead letter.
        deadly: bool,
        /// In so many ms it is due.
        after: u64,
    },
    Update {
        version: Version,
    },
    Move,
    Cancel,
    Requeue {
        version: Version,
    },
    Discard,
    // Of a program that knows nothing of jobs.
    /// The key is to have this value, for so long.
    Set {
        version: Version,
        ms: Option<u64>,
    },
    Expire {
        ms: u64,
        /// By naming a time, which may have been over when Redis had it.
        named: bool,
    },
    Persist,
    Delete,
}

/// What became of it, as far as the producer knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// There is a new job, and there was none; or what there was has another due time or payload.
    Done,
    /// There is a new job. What was there before, if anything, is not said.
    Placed,
    /// As `Done`; what was pending under this name is gone.
    Replaced,
    /// As `Done`; it waits for the end of the run in progress.
    Follows,
    /// The job is gone, and never starts.
    Cancelled,
    /// The job is running, or about to.
    Running,
    /// There was nothing to do it to.
    Absent,
    /// An error that says that nothing was done.
    Refused(String),
    /// An error that leaves open whether it was done.
    Unknown(String),
    /// An error that trying again does not mend: no weather explains it.
    Failed(String),
}
