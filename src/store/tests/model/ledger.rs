//! A ledger as `docs/states.md` describes it: each job is one value in one state.

use std::collections::BTreeMap;

use super::operations::{Holder, Id, LONG_AGO, Limit, When, Which};
use crate::store::tests::support::NEVER;

/// The most steps that a record keeps, the last ones.
const STEPS: usize = 8;

/// How many letters are found by the id of their job, the last ones.
const FOUND_BY_ID: usize = 16;

#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    pub(super) jobs: BTreeMap<Id, Job>,
    /// The dead letters by number.
    pub(super) letters: BTreeMap<u64, Letter>,
    /// The numbers of the last letters of each job.
    pub(super) found: BTreeMap<Id, Vec<u64>>,
    pub(super) counters: BTreeMap<&'static str, u64>,
    pub(super) triggers: BTreeMap<Id, Trigger>,
    pub(super) lanes: BTreeMap<String, Lane>,
    /// The start of the pause, Unix ms; 0 after a resume.
    pub(super) paused: Option<u64>,
    pub(super) limited: Option<Limited>,
    /// Every later fencing value is larger than this.
    pub(super) fence: Option<u64>,
    /// The time since which the kind has to be registered, Unix µs.
    pub(super) unlisted: Option<u64>,
    /// Whether the keys exist even if they are empty.
    pub(super) founded: bool,
    /// Whether only the memory of calls is left, which expires.
    pub(super) passing: bool,
    /// Every lease that a worker was given: id and token.
    pub(super) issued: Vec<(Id, String)>,
    /// The beginning of the sequence, Unix ms.
    pub(super) began: u64,
    /// The server's clock, Unix µs.
    pub(super) now: u64,
}

/// A limit in force, and the starts that it has used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limited {
    pub(super) terms: Limit,
    /// When all starts of a burst are free again, Unix µs.
    pub(super) full: u64,
    /// Until when no job starts, Unix µs.
    pub(super) hold: u64,
}

#[derive(Debug, Clone)]
pub(super) enum Job {
    /// Also a job that waits for a retry.
    Pending(Waiting),
    /// Also a job whose lease has lapsed.
    Leased(Run),
}

#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) due: u64,
    pub(super) record: Record,
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) token: String,
    pub(super) claims: u64,
    pub(super) fence: u64,
    pub(super) due: u64,
    pub(super) cancelled: bool,
    pub(super) deadline: u64,
    pub(super) record: Record,
    pub(super) successor: Option<Waiting>,
}

#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) id: Id,
    pub(super) died: u64,
    pub(super) record: Record,
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) header: String,
    pub(super) accepted: u64,
    pub(super) steps: Vec<String>,
    pub(super) payload: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// Our trigger, with its expiry.
    Ours(u64),
    Foreign,
}

/// The last call of a lane.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) met: u64,
    pub(super) number: u64,
    pub(super) called: u64,
    pub(super) kept: Kept,
}

/// The remembered part of a reply.
#[derive(Debug, Clone)]
pub(super) enum Kept {
    Answers(String),
    Claim(Vec<Id>),
}

impl Record {
    pub(super) fn step(&mut self, what: &str, at: u64) {
        self.steps.push(format!("{what}@{at}"));
        if self.steps.len() > STEPS {
            self.steps.remove(0);
        }
    }

    /// Ends a run; an empty header keeps the old one.
    pub(super) fn end(&mut self, header: &str, step: &str, at: u64) {
        if !header.is_empty() {
            header.clone_into(&mut self.header);
        }
        self.step(step, at);
    }

    /// Whether the job recurs.
    pub(super) fn recurs(&self) -> bool {
        self.header.starts_with(r#"{"recur":"#)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        [self.opening().as_bytes(), &self.payload].concat()
    }

    /// The first two lines, with their line ends.
    pub(super) fn opening(&self) -> String {
        let mut steps = vec![self.accepted.to_string()];
        steps.extend(self.steps.iter().cloned());
        format!("{}\n{}\n", self.header, steps.join(" "))
    }
}

impl Waiting {
    /// The stored form of a successor.
    pub(super) fn bytes(&self) -> Vec<u8> {
        [format!("{} ", self.due).as_bytes(), &self.record.bytes()].concat()
    }
}

impl Run {
    pub(super) fn lease(&self) -> String {
        let flag = match () {
            () if self.cancelled => "cancelled",
            () if self.record.recurs() => "recurs",
            () => "-",
        };
        let Run {
            token,
            claims,
            fence,
            due,
            ..
        } = self;
        format!("{token} {claims} {fence} {due} {flag}")
    }
}

impl Letter {
    pub(super) fn name(&self, number: u64) -> String {
        format!("{}:{number}", self.id)
    }
}

impl Ledger {
    /// The present millisecond.
    pub(super) fn ms(&self) -> u64 {
        self.now / 1000
    }

    /// A due time: delays are rounded up, and the past means this millisecond.
    pub(super) fn due(&self, when: When) -> u64 {
        match when {
            When::After(0) | When::Past => self.ms(),
            When::After(delay) => self.now.div_ceil(1000) + delay,
            When::Ahead(delay) => self.began + delay,
            When::By(_) => unreachable!("only what is due can be postponed by a while"),
        }
    }

    /// The due time of a job that is rescheduled: an overdue job keeps its place.
    pub(super) fn due_instead(&self, old: u64, when: When) -> u64 {
        match when {
            When::After(0) => old.min(self.ms()),
            When::By(delay) => old + delay,
            when => self.due(when),
        }
    }

    /// As [`due`](Self::due), for a job that a worker returns: it stays as overdue as it was.
    pub(super) fn due_again(&self, when: When) -> u64 {
        match when {
            When::Past => LONG_AGO,
            when => self.due(when),
        }
    }

    pub(super) fn count(&mut self, counter: &'static str) -> u64 {
        let value = self.counters.entry(counter).or_default();
        *value += 1;
        let value = *value;
        if (counter, value) == ("accepted", 1) {
            self.fence.get_or_insert(0);
            self.passing = false;
        }
        value
    }

    /// Whether the memory of calls is empty.
    pub(super) fn remembers_nothing(&self) -> bool {
        let is_told = self.fence.is_some() || self.paused.is_some() || self.founded;
        let is_told = is_told || self.limited.is_some();
        self.lanes.is_empty() && !is_told
    }

    /// Removes the ledger if it is empty. Its memory of calls stays.
    pub(super) fn raze(&mut self) -> bool {
        if !self.jobs.is_empty() || !self.letters.is_empty() {
            return false;
        }
        self.counters.clear();
        self.found.clear();
        self.unlisted = None;
        self.passing = !self.lanes.is_empty() || self.is_paused();
        if !self.passing {
            (self.fence, self.paused, self.limited) = (None, None, None);
        }
        if self.founded {
            // The rig founds the ledger again at once, so its memory stays for good.
            self.passing = false;
        }
        true
    }

    /// Makes a job pending. Returns `!` if the job gets no trigger.
    pub(super) fn put(&mut self, id: Id, job: Waiting) -> &'static str {
        let unarmed = self.arm(id, job.due);
        self.jobs.insert(id, Job::Pending(job));
        unarmed
    }

    pub(super) fn arm(&mut self, id: Id, due: u64) -> &'static str {
        if self.triggers.get(id) == Some(&Trigger::Foreign) {
            return "!";
        }
        self.triggers.insert(id, Trigger::Ours(due));
        ""
    }

    pub(super) fn disarm(&mut self, id: Id) {
        if self.triggers.get(id) != Some(&Trigger::Foreign) {
            self.triggers.remove(id);
        }
    }

    /// Ends a run, and makes its successor pending.
    pub(super) fn follow(&mut self, id: Id, successor: Option<Waiting>) {
        self.jobs.remove(id);
        if let Some(job) = successor {
            self.put(id, job);
        }
    }

    /// The numbers of the letters that are found by the id, the latest first.
    pub(super) fn letters_of(&self, id: Id) -> Vec<u64> {
        let found = self.found.get(id).into_iter().flatten();
        found.rev().copied().collect()
    }

    pub(super) fn bury(&mut self, id: Id, record: Record) -> u64 {
        let number = self.count("buried");
        let died = self.ms();
        self.letters.insert(number, Letter { id, died, record });
        let found = self.found.entry(id).or_default();
        found.push(number);
        if found.len() > FOUND_BY_ID {
            found.remove(0);
        }
        number
    }

    pub(super) fn unbury(&mut self, number: u64) -> Letter {
        let letter = self.letters.remove(&number).expect("a letter");
        let found = self.found.entry(letter.id).or_default();
        found.retain(|other| *other != number);
        letter
    }

    /// The token that a worker sends.
    pub(super) fn token(&self, id: Id, holder: Holder) -> String {
        let mut tokens = self.issued.iter().rev().filter(|(of, _)| *of == id);
        let token = match holder {
            Holder::Owner => tokens.next(),
            Holder::Former(leases) => tokens.nth(leases + 1),
            Holder::Nobody => None,
        };
        token.map_or_else(|| NEVER.to_owned(), |(_, token)| token.clone())
    }

    /// The number of a letter that a client sends.
    pub(super) fn letter(&self, id: Id, which: Which) -> u64 {
        match which {
            Which::Latest(before) => self.letters_of(id).get(before).copied().unwrap_or(1),
            Which::Missing => 999,
        }
    }
}
