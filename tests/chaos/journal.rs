//! What each process was answered and did, one file for each, which only grows.
//!
//! A line is written with a single call, so a process that is killed leaves all lines but
//! perhaps the end of its last one. Times are of the machine's monotonic clock, which all
//! processes share and no fault can set.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A time of the machine's monotonic clock, in µs.
pub(crate) type Micros = u64;

/// What is done to a process that a signal stops.
pub(crate) const STOPPED: &str = "stopped";

/// What is done to the clock of one of several servers.
pub(crate) const CLOCK: &str = "a clock is set";

/// Tells one schedule from all others; it is the payload of its job.
pub(crate) type Version = u64;

/// The time now, asked of the kernel: what fakes clocks for a process does not reach it.
pub(crate) fn now() -> Micros {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000
}

/// When it is so many ms after 1970 by the wall clock, which no fault sets for this process.
pub(crate) fn at_unix_ms(ms: u64) -> Micros {
    let wall = clock_gettime(ClockId::Realtime);
    let wall = wall.tv_sec.cast_unsigned() * 1_000_000 + wall.tv_nsec.cast_unsigned() / 1000;
    (now() + ms * 1000).saturating_sub(wall)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at: Micros,
    pub(crate) what: What,
}

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

/// A journal that is being written.
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(dir: &Path, process: &str) -> Self {
        let path = dir.join(format!("{process}.journal"));
        let file = File::options().create(true).append(true).open(path);
        Journal(file.expect("the directory of the journals is writable"))
    }

    /// Writes down what happens now. Returns when the kernel has it.
    pub(crate) fn note(&self, what: What) {
        self.note_at(now(), what);
    }

    pub(crate) fn note_at(&self, at: Micros, what: What) {
        let mut line = serde_json::to_vec(&Line { at, what }).expect("a line is plain data");
        line.push(b'\n');
        (&self.0).write_all(&line).expect("the journal is writable");
    }
}

/// All journals of a directory, each with the name of its process.
pub(crate) fn read_all(dir: &Path) -> Vec<(String, Vec<Line>)> {
    let files = std::fs::read_dir(dir).expect("the directory is there");
    let journals = files.filter_map(|file| {
        let path = file.expect("it is readable").path();
        let process = path.file_name()?.to_str()?.strip_suffix(".journal")?;
        Some((process.to_owned(), read(&path)))
    });
    let mut journals: Vec<_> = journals.collect();
    journals.sort_by(|a, b| a.0.cmp(&b.0));
    journals
}

fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read(path).expect("it is readable");
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // What follows the last line end: nothing, or what a killed process could not finish.
    lines.pop();
    let parse = |line: &&[u8]| {
        serde_json::from_slice(line).unwrap_or_else(|error| {
            let line = String::from_utf8_lossy(line);
            panic!("{}: {line:?} is no line: {error}", path.display())
        })
    };
    lines.iter().map(parse).collect()
}
