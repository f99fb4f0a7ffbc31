//! The replies to calls without a lane, word for word: renewals, and calls that only read.

use super::answer::Reply;
use super::ledger::{Job, Ledger};
use super::operations::{AT_ONCE, Id, Operation};

/// How many values come before the counters; the first due time is one of them.
const STATES: usize = 12;

impl Reply {
    /// Sorts the values of `stats`: counters by name, without counters that were never raised.
    pub(super) fn in_order(mut self) -> Self {
        let mut counters = self.rest.split_off(STATES);
        let mut pairs: Vec<_> = counters.chunks_mut(2).collect();
        pairs.sort();
        let moved = pairs.into_iter().filter(|pair| pair[1] != b"0");
        self.rest.extend(moved.flat_map(|pair| pair.to_vec()));
        self
    }
}

impl Ledger {
    /// Carries out a call that takes no lane.
    pub(super) fn plain(&mut self, operation: &Operation) -> Reply {
        match operation {
            Operation::Renew {
                leases,
                lease,
                longer,
            } => {
                let renew = |(id, holder): &(Id, _)| {
                    let token = self.token(id, *holder);
                    self.renew(id, &token, *lease, *longer)
                };
                let answers: Vec<String> = leases.iter().map(renew).collect();
                Reply::ok([answers.join(" ")])
            }
            Operation::Trim(limits) => Reply::ok([self.trim(*limits, AT_ONCE)]),
            Operation::Sweep {
                overdue,
                limit,
                skip,
            } => self.sweep(*overdue, *limit, *skip),
            Operation::Get(id) => self.get(id),
            Operation::Letters(id, limit, which) => {
                let which = which.map(|which| self.letter(id, which));
                self.letters(id, *limit, which)
            }
            Operation::Stats => self.stats(),
            Operation::Hold(time) => Reply::ok([self.hold(*time)]),
            Operation::Admit(_) => self.admit(),
            other => unreachable!("{other:?} is looked at page by page"),
        }
    }

    fn sweep(&self, overdue: u64, limit: usize, skip: [usize; 2]) -> Reply {
        let some = |all: &[(u64, Id)], skip: usize| -> String {
            let ids = all.iter().skip(skip).take(limit).map(|(_, id)| *id);
            ids.collect::<Vec<_>>().join(" ")
        };
        let first = |all: &[(u64, Id)]| all.first().map_or(String::new(), |it| it.0.to_string());
        let (pending, leased) = (self.waiting(), self.running());
        let (due, coming) =
            pending.split_at(pending.partition_point(|it| it.0 + overdue <= self.ms()));
        let (lapsed, held) = leased.split_at(leased.partition_point(|it| it.0 <= self.ms()));
        let mut named = match self.is_paused() {
            true => Default::default(),
            false => [some(due, skip[0]), some(lapsed, skip[1])],
        };
        let mut waits = String::new();
        if !named[0].is_empty() && self.room() == 0 {
            named[0].clear();
            waits = self.next_start().to_string();
        }
        let rest = named.into_iter();
        let rest = rest.chain([first(coming), first(held), waits]);
        Reply::new(self.status(), rest.map(String::into_bytes))
    }

    fn get(&self, id: Id) -> Reply {
        let number = |number: u64| number.to_string().into_bytes();
        match self.jobs.get(id) {
            Some(Job::Pending(job)) => Reply::new("pending", [number(job.due), job.record.bytes()]),
            Some(Job::Leased(run)) => {
                let successor = run.successor.as_ref().map(|next| next.bytes());
                let lease = run.lease().into_bytes();
                let (deadline, record) = (number(run.deadline), run.record.bytes());
                Reply::new(
                    "leased",
                    [deadline, lease, record, successor.unwrap_or_default()],
                )
            }
            None => match self.letters_of(id).first() {
                Some(last) => {
                    let letter = &self.letters[last];
                    let record = letter.record.bytes();
                    Reply::new("dead", [number(letter.died), number(*last), record])
                }
                None => Reply::new("absent", []),
            },
        }
    }

    fn letters(&self, id: Id, limit: usize, which: Option<u64>) -> Reply {
        let sought: Vec<u64> = match which {
            Some(number) if self.has_letter(id, number) => vec![number],
            Some(_) => Vec::new(),
            None => self.letters_of(id).into_iter().take(limit).collect(),
        };
        let rest = sought.iter().flat_map(|number| {
            let letter = &self.letters[number];
            let died = letter.died.to_string().into_bytes();
            [number.to_string().into_bytes(), died, letter.record.bytes()]
        });
        Reply::new("ok", rest)
    }

    fn stats(&self) -> Reply {
        let runs = self.jobs.values().filter_map(|job| match job {
            Job::Leased(run) => Some(run),
            Job::Pending(_) => None,
        });
        let pending = self.waiting();
        let overdue = pending.iter().filter(|(due, _)| *due <= self.ms()).count();
        let within = |seconds: u64| {
            let coming = self.ms() + 1..=self.ms() + 1000 * seconds;
            let due = pending.iter().filter(|(due, _)| coming.contains(due));
            due.count().to_string()
        };
        let successors = runs.clone().filter(|run| run.successor.is_some()).count();
        let leased = runs.count();
        let oldest = pending.iter().map(|(due, _)| *due).min();
        let states: [String; STATES] = [
            pending.len().to_string(),
            overdue.to_string(),
            within(60),
            within(3600),
            within(86_400),
            oldest.map_or(String::new(), |due| due.to_string()),
            leased.to_string(),
            successors.to_string(),
            self.letters.len().to_string(),
            self.jobs.len().to_string(),
            leased.to_string(),
            self.held().to_string(),
        ];
        let counters = self.counters.iter();
        let counters = counters.flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]);
        let rest = states.into_iter().chain(counters);
        Reply::new(self.status(), rest.map(String::into_bytes))
    }
}
