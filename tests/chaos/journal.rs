//! The lines of a journal: the answers that a process got and its acts.

use keyfall_testing::journals::{self, FileJournal, Micros};
use serde::{Deserialize, Serialize};

/// The journal of one process.
pub(crate) type Journal = FileJournal<What>;

/// A line of a journal.
pub(crate) type Noted = journals::Noted<What>;

/// The name of the fault that stops a process by a signal.
pub(crate) const STOPPED: &str = "stopped";

/// The name of the fault that sets the clock of one of several servers.
pub(crate) const CLOCK: &str = "a clock is set";

/// Tells one schedule from all others; it is the payload of its job.
pub(crate) type Version = u64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    // Lines of producers: the call has this number among the calls of its process.
    Sent {
        call: u64,
        key: String,
        ask: Ask,
    },
    Answered {
        call: u64,
        answer: Answer,
    },
    /// The answer to a function that was called under an id, or to a repeat of that call; and
    /// whether all replicas had its effect then.
    Replied {
        call: u64,
        reply: String,
        kept: bool,
    },
    // Lines of workers: the key and the fencing value identify a run.
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
    /// A run of a recurring job has begun.
    Recurred {
        key: String,
        /// The number of the occurrence.
        number: u64,
        /// The time that the rule names, Unix ms.
        at: u64,
        /// The number of times of the rule that were left out before it.
        skipped: u64,
    },
    /// A run of a member of a series has begun.
    Came {
        key: String,
        /// Its due time, Unix ms.
        due: u64,
    },
    /// A run of a job that a transaction has scheduled has begun.
    Reminded {
        key: String,
        version: Version,
        fence: u64,
    },
    /// A run of a job of a limited kind has begun.
    Started {
        key: String,
        /// The time of its claim, by the clock of Redis, unless that was set back.
        fence: u64,
    },
    /// A worker told Redis the end of a run, and Redis took or refused it.
    Settled {
        key: String,
        fence: u64,
        taken: bool,
    },
    /// The end of a run did not reach the process that is to tell Redis, as far as is known.
    Unheard {
        key: String,
        fence: u64,
    },
    // Lines of the witness.
    /// Redis says who listens to changes of adopted keys, whether it takes writes, and whether it
    /// publishes events.
    Looked {
        sent: Micros,
        able: bool,
        listeners: Vec<u64>,
    },
    // Lines of the harness.
    /// A fault hits all processes, or this one, if it names one.
    Fault {
        name: String,
        process: Option<String>,
    },
    /// All programs of the trial have been started.
    Begun,
    /// The first plain keys have become jobs.
    AtWork,
    /// The first fault is about to come, or the last one is over.
    Weather {
        bad: bool,
    },
    /// This process has ended.
    Gone {
        process: String,
    },
    /// This process had ended before the harness ended it, in this way.
    Died {
        process: String,
        status: String,
    },
    /// Redis went back to an earlier state: effects of calls that were answered after that state
    /// and before now may be undone.
    RolledBack {
        /// The time of that state, by the mark that Redis came back with, if there is one.
        kept: Option<Micros>,
        /// Effects of calls that were answered before this time had to be there still, by the kind
        /// of the fault.
        since: Micros,
        /// The part of the data that went back, if not all.
        of: Option<Part>,
        /// The time at which the snapshot was there, and the time at which the server was gone, if
        /// known: a call that was sent after the first and answered before the second is undone.
        undone: Option<(Micros, Micros)>,
    },
    /// Redis had lost its data, or gone back to an older snapshot, and its jobs were brought back from
    /// the copy.
    Rebuilt {
        /// The times before and after the snapshot was made, if Redis has one.
        snapshot: Option<(Micros, Micros)>,
        /// Effects of calls that were answered before this time were in the copy.
        copied: Micros,
    },
    /// From this time until now, a fault hit the servers of these ledgers.
    Suffered {
        part: Part,
        since: Micros,
    },
    /// The data of a primary that was hit is served again.
    Served,
}

/// Some ledgers, `app:module:biz/3`, of kinds that have so many each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) shards: u16,
    pub(crate) ledgers: Vec<String>,
}

impl Part {
    /// Whether the job of this key belongs to one of these ledgers.
    pub(crate) fn has(&self, key: &str) -> bool {
        let (kind, id) = key.rsplit_once(':').expect("it is the key of a job");
        let ledger = format!("{kind}/{}", keyfall::shard_of(id, self.shards));
        self.ledgers.contains(&ledger)
    }
}

/// The request of a producer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Schedule {
        version: Version,
        /// The job is meant to end as a dead letter.
        deadly: bool,
        /// The delay until the job is due, in ms.
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
    /// Shows the job.
    Look,
    // Requests of a program that knows nothing of jobs.
    /// The key gets this value, for so long.
    Set {
        version: Version,
        ms: Option<u64>,
    },
    Expire {
        ms: u64,
        /// The command names the time of the expiry, which may have been over when Redis got it.
        named: bool,
    },
    Persist,
    Delete,
}

/// The outcome of a call, as far as the producer knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// There is a new job, and there was none; or the present job has another due time or payload.
    Done,
    /// There is a new job. The answer does not tell whether one was there before.
    Placed,
    /// As `Done`; the job that was pending under this name is gone.
    Replaced,
    /// As `Done`; it waits for the end of the run in progress.
    Follows,
    /// The job is gone, and never starts.
    Cancelled,
    /// The job is running, or about to.
    Running,
    /// This job is shown.
    Found(Version),
    /// There was no job for the call.
    Absent,
    /// The error says that nothing was done.
    Refused(String),
    /// The error leaves open whether the call was carried out.
    Unknown(String),
    /// Trying again does not mend the error: no fault explains it.
    Failed(String),
}
