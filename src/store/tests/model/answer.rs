//! The replies to calls with a lane, word for word: to new, repeated and late calls.

use std::collections::HashSet;
use std::fmt;

use super::ledger::{Job, Kept, Lane, Ledger};
use super::operations::{Id, Operation};

/// The reply of a script, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: String,
    pub(super) rest: Vec<Vec<u8>>,
}

/// The header that clients send to requeue a letter.
pub(super) const REQUEUED: &str = r#"{"v":1,"headers":{"again":"yes"}}"#;

/// Lane and number of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number<'a> {
    pub(super) lane: &'a str,
    pub(super) number: u64,
}

impl Reply {
    pub(super) fn new(status: &str, rest: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Reply {
            status: status.to_owned(),
            rest: rest.into_iter().collect(),
        }
    }

    pub(super) fn ok<T: ToString>(rest: impl IntoIterator<Item = T>) -> Self {
        let rest = rest.into_iter().map(|it| it.to_string().into_bytes());
        Reply::new("ok", rest)
    }

    fn late() -> Self {
        Reply::new("late", [])
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        let rest = self.rest.iter();
        rest.map(|it| it.escape_ascii())
            .try_for_each(|it| write!(f, " | {it}"))
    }
}

impl Number<'_> {
    fn token(&self) -> String {
        format!("{}-{}", self.lane, self.number)
    }
}

impl Ledger {
    /// Carries out a call with a lane: as a new call, as a repeat, or not at all. `known` is the
    /// model when the call was sent: it has the tokens and letter numbers that the sender knew.
    pub(super) fn numbered(
        &mut self,
        call: Number,
        operation: &Operation,
        known: &Ledger,
    ) -> Reply {
        let last = self.lanes.get(call.lane).cloned();
        match last {
            Some(last) if call.number < last.number => Reply::late(),
            Some(last) if call.number == last.number => self.again(call, operation, &last.kept),
            last => {
                let is_first = self.remembers_nothing();
                let (kept, reply) = self.anew(call, operation, known);
                let switches = matches!(
                    operation,
                    Operation::Pause | Operation::Resume | Operation::Limit(_)
                ) && !matches!(&kept, Kept::Answers(answer) if answer == "kept");
                let accepted = self.counters.contains_key("accepted");
                if switches || is_first && !accepted {
                    self.passing = !switches;
                }
                let lane = Lane {
                    met: last.map_or(self.ms(), |last| last.met),
                    number: call.number,
                    called: self.ms(),
                    kept,
                };
                self.lanes.insert(call.lane.to_owned(), lane);
                reply
            }
        }
    }

    fn anew(&mut self, call: Number, operation: &Operation, known: &Ledger) -> (Kept, Reply) {
        let token = call.token();
        let claimed = match operation {
            Operation::Claim { ids, fill, lease } => self.claim(&token, ids, *fill, *lease),
            Operation::Reclaim { ids, lease } => self.reclaim(&token, ids, *lease),
            _ => {
                let (answers, told) = self.by_items(operation, known);
                let answers = answers.join(" ");
                let rest = [answers.clone()].into_iter().chain(told);
                return (Kept::Answers(answers), Reply::ok(rest));
            }
        };
        let (answers, handed) = claimed;
        let reply = self.handed(self.status(), &answers, &handed);
        (Kept::Claim(handed), reply)
    }

    fn again(&mut self, call: Number, operation: &Operation, kept: &Kept) -> Reply {
        match (kept, operation) {
            (
                Kept::Claim(handed),
                Operation::Claim { lease, .. } | Operation::Reclaim { lease, .. },
            ) => {
                let held = self.claim_again(&call.token(), handed, *lease);
                self.handed("ok", &[], &held)
            }
            (Kept::Answers(answers), Operation::Settle { .. }) => {
                Reply::ok([answers.as_str(), "0"])
            }
            (
                Kept::Answers(answers),
                Operation::Schedule(_) | Operation::Requeue(_) | Operation::Plan(_),
            ) => {
                let mark = self.unlisted.map(|since| since.to_string());
                Reply::ok([answers.clone()].into_iter().chain(mark))
            }
            (Kept::Answers(answers), _) => Reply::ok([answers]),
            (Kept::Claim(_), _) => unreachable!("a repeat is of the same call"),
        }
    }

    /// The answers; and the number of dropped letters, or the time since which the kind has to be
    /// registered, if the reply has it.
    fn by_items(&mut self, operation: &Operation, known: &Ledger) -> (Vec<String>, Option<String>) {
        let answers = match operation {
            Operation::Schedule(items) => {
                let answers = self.schedule_all(items);
                return (answers, self.unlisted.map(|since| since.to_string()));
            }
            Operation::Reschedule(items) => items
                .iter()
                .map(|(id, when, step)| self.reschedule(id, *when, step))
                .collect(),
            Operation::Update(items) => items
                .iter()
                .map(|(id, payload)| self.update(id, payload))
                .collect(),
            Operation::Amend(items) => {
                let amend = |item| self.amend(item, &known.seen(item.id, item.is_seen));
                items.iter().map(amend).collect()
            }
            Operation::Plan(series) => {
                let is_new = !self.counters.contains_key("accepted");
                let plan = |jobs: &Vec<_>| self.plan(jobs, known);
                let answers = series.iter().map(plan).collect();
                if is_new && self.counters.contains_key("accepted") {
                    self.unlisted = Some(self.now);
                }
                return (answers, self.unlisted.map(|since| since.to_string()));
            }
            Operation::Cancel(items) => {
                let mut done = HashSet::new();
                let cancel = |(id, condition): &(Id, _)| {
                    let answer = self.cancel(id, *condition, known, done.contains(id));
                    if matches!(&*answer, "cancelled" | "running" | "absent") {
                        done.insert(*id);
                    }
                    answer
                };
                items.iter().map(cancel).collect()
            }
            Operation::Settle { ends, limits } => {
                let before = self.clone();
                let settle = |(id, holder, verb, next): &(Id, _, _, _)| {
                    self.settle(&before, id, &known.token(id, *holder), *verb, *next)
                };
                let answers: Vec<String> = ends.iter().map(settle).collect();
                let buried = answers.iter().filter(|it| it.starts_with("buried"));
                let fallen = match buried.count() {
                    0 => 0,
                    came => self.trim(*limits, came),
                };
                return (answers, Some(fallen.to_string()));
            }
            Operation::Requeue(items) => {
                let requeue = |(id, which, when): &(Id, _, _)| {
                    self.requeue(id, known.letter(id, *which), *when, REQUEUED)
                };
                let answers = items.iter().map(requeue).collect();
                return (answers, self.unlisted.map(|since| since.to_string()));
            }
            Operation::Discard(items) => items
                .iter()
                .map(|(id, which)| self.discard(id, known.letter(id, *which)))
                .collect(),
            Operation::Pause => vec![self.pause()],
            Operation::Resume => vec![self.resume()],
            Operation::Limit(limit) => vec![self.limit(*limit)],
            other => unreachable!("{other:?} takes no lane"),
        };
        (answers, None)
    }

    /// The reply of a claim.
    fn handed(&self, status: &str, answers: &[String], ids: &[Id]) -> Reply {
        let mut leases: Vec<String> = Vec::new();
        let mut jobs = Vec::new();
        for id in ids {
            let Some(Job::Leased(run)) = self.jobs.get(id) else {
                unreachable!("what was handed out is leased");
            };
            leases.push(run.lease());
            jobs.extend([id.as_bytes().to_vec(), run.record.bytes()]);
        }
        for i in (1..leases.len()).rev() {
            if leases[i] == leases[i - 1] {
                leases[i] = "=".into();
            }
        }
        let texts = [answers.join(" "), leases.join("\n")].map(String::into_bytes);
        Reply::new(status, texts.into_iter().chain(jobs))
    }

    pub(super) fn status(&self) -> &'static str {
        if self.is_paused() { "paused" } else { "ok" }
    }
}
