//! The calls of workers.

use std::collections::BTreeMap;

use super::ledger::{Job, Ledger, Record, Run, Waiting};
use super::operations::{Id, Next, Verb};

impl Ledger {
    /// Claims the named jobs, and some of the oldest beside them. Returns the answers and the
    /// claimed jobs.
    pub(super) fn claim(
        &mut self,
        token: &str,
        ids: &[Id],
        fill: usize,
        lease: u64,
    ) -> (Vec<String>, Vec<Id>) {
        let (now, fence) = (self.ms(), self.next_fence());
        if let Some(oldest) = self.instead_of(ids, fill) {
            let answers = self.answers_held(ids, &oldest);
            oldest
                .iter()
                .for_each(|id| self.lease(id, token, fence, lease));
            self.use_starts(oldest.len());
            self.give_out(fence, &oldest);
            return (answers, oldest);
        }
        let (answers, mut handed) = each_once(ids, |id| match self.jobs.get(id) {
            None => "absent".to_owned(),
            Some(Job::Leased(_)) => "leased".to_owned(),
            Some(Job::Pending(job)) if job.due > now => format!("early:{}", job.due - now),
            Some(Job::Pending(_)) if self.is_paused() => "paused".to_owned(),
            Some(Job::Pending(_)) => {
                self.lease(id, token, fence, lease);
                "claimed".to_owned()
            }
        });
        if !self.is_paused() {
            let mut due = self.waiting();
            due.retain(|(due, _)| *due <= now);
            for (_, id) in due.into_iter().take(fill) {
                self.lease(id, token, fence, lease);
                handed.push(id);
            }
        }
        self.use_starts(handed.len());
        self.give_out(fence, &handed);
        (answers, handed)
    }

    pub(super) fn reclaim(
        &mut self,
        token: &str,
        ids: &[Id],
        lease: u64,
    ) -> (Vec<String>, Vec<Id>) {
        let fence = self.next_fence();
        let (starts, mut started) = (self.starts(), 0);
        let (answers, handed) = each_once(ids, |id| {
            let Some(Job::Leased(run)) = self.jobs.get(id).cloned() else {
                return "absent".to_owned();
            };
            let answer = if run.deadline > self.ms() {
                "leased"
            } else if run.cancelled {
                self.follow(id, run.successor);
                self.count("cancelled");
                "cancelled"
            } else if run.successor.is_some() {
                self.follow(id, run.successor);
                self.count("replaced");
                "replaced"
            } else if self.is_paused() {
                "paused"
            } else if started >= starts {
                "held"
            } else {
                started += 1;
                self.lease(id, token, fence, lease);
                self.count("lapsed");
                "claimed"
            };
            answer.to_owned()
        });
        self.use_starts(handed.len());
        self.give_out(fence, &handed);
        (answers, handed)
    }

    /// A repeated claim: the jobs whose leases the token still holds, with new deadlines.
    pub(super) fn claim_again(&mut self, token: &str, handed: &[Id], lease: u64) -> Vec<Id> {
        let deadline = self.deadline(lease);
        let mut held = Vec::new();
        for id in handed {
            if let Some(Job::Leased(run)) = self.jobs.get_mut(id)
                && run.token == token
            {
                run.deadline = deadline;
                held.push(*id);
            }
        }
        held
    }

    fn lease(&mut self, id: Id, token: &str, fence: u64, lease: u64) {
        let deadline = self.deadline(lease);
        let run = match self.jobs.remove(id) {
            Some(Job::Pending(Waiting { due, record })) => Run {
                token: token.to_owned(),
                claims: 1,
                fence,
                due,
                cancelled: false,
                deadline,
                record,
                successor: None,
            },
            Some(Job::Leased(run)) => Run {
                token: token.to_owned(),
                claims: run.claims + 1,
                fence,
                deadline,
                ..run
            },
            None => unreachable!("only what is there is leased"),
        };
        self.jobs.insert(id, Job::Leased(run));
        self.issued.push((id, token.to_owned()));
    }

    /// The deadline of a lease that begins now.
    fn deadline(&self, lease: u64) -> u64 {
        self.now.div_ceil(1000) + lease
    }

    /// The fencing value of this claim: larger than all before, and not below the time.
    fn next_fence(&self) -> u64 {
        self.fence.map_or(self.now, |last| self.now.max(last + 1))
    }

    /// Stores the fencing value of a claim. A claim without jobs leaves it for the next one.
    fn give_out(&mut self, fence: u64, handed: &[Id]) {
        self.fence = Some(fence - u64::from(handed.is_empty()));
    }

    pub(super) fn renew(&mut self, id: Id, token: &str, lease: u64, longer: bool) -> String {
        let deadline = self.deadline(lease);
        let answer = match self.jobs.get_mut(id) {
            Some(Job::Leased(run)) if run.token == token => {
                let least = if longer { run.deadline } else { 0 };
                run.deadline = deadline.max(least);
                if run.cancelled {
                    "cancelled"
                } else {
                    "renewed"
                }
            }
            Some(Job::Leased(_)) => "foreign",
            _ => "gone",
        };
        answer.to_owned()
    }

    /// Ends a lease. The job is compared with its state `before` the call.
    pub(super) fn settle(
        &mut self,
        before: &Ledger,
        id: Id,
        token: &str,
        verb: Verb,
        next: Next,
    ) -> String {
        match before.jobs.get(id) {
            Some(Job::Leased(run)) if run.token != token => {
                return "foreign".to_owned();
            }
            Some(Job::Leased(_)) => {}
            _ => return "gone".to_owned(),
        }
        let Some(Job::Leased(run)) = self.jobs.get(id).cloned() else {
            return "gone".to_owned();
        };
        let mut record = run.record;
        let is_later = matches!(verb, Verb::Later(..));
        let is_free = !run.cancelled && run.successor.is_none();
        if is_free && !is_later && record.recurs() && next == Next::Unknown {
            return "recurs".to_owned();
        }
        let mut successor = run.successor;
        if is_free && let Next::At(when, header) = next {
            self.count("accepted");
            let header = header.strip_suffix('}').expect("it is an object");
            successor = Some(Waiting {
                due: self.due(when),
                record: Record {
                    header: format!("{header},\"us\":{}}}", self.now % 1000),
                    accepted: self.ms(),
                    steps: Vec::new(),
                    payload: record.payload.clone(),
                },
            });
        }
        match (verb, run.cancelled, successor) {
            (Verb::Done, _, next) => {
                self.follow(id, next);
                self.count("done");
                "done".to_owned()
            }
            (_, true, next) => {
                self.follow(id, next);
                self.count("cancelled");
                "cancelled".to_owned()
            }
            (Verb::Skip, false, next) => {
                self.follow(id, next);
                self.count("unrun");
                "skipped".to_owned()
            }
            (Verb::Later(_, _, step), false, Some(next)) => {
                self.follow(id, Some(next));
                if step == "failed" {
                    self.count("failed");
                }
                self.count("replaced");
                "replaced".to_owned()
            }
            (Verb::Later(when, header, step), false, None) => {
                record.end(header, step, self.ms());
                let due = self.due_again(when);
                self.put(id, Waiting { due, record });
                self.count(step);
                format!("later:{due}")
            }
            (Verb::Bury(header), false, next) => {
                record.end(header, "buried", self.ms());
                self.follow(id, next);
                format!("buried:{}", self.bury(id, record))
            }
        }
    }

    pub(super) fn pause(&mut self) -> String {
        if !self.is_paused() {
            self.paused = Some(self.ms());
        }
        "paused".to_owned()
    }

    pub(super) fn resume(&mut self) -> String {
        self.paused = Some(0);
        "resumed".to_owned()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some_and(|since| since > 0)
    }

    /// The pending jobs, by due time and id.
    pub(super) fn waiting(&self) -> Vec<(u64, Id)> {
        let pending = self.jobs.iter().filter_map(|(id, job)| match job {
            Job::Pending(job) => Some((job.due, *id)),
            Job::Leased(_) => None,
        });
        let mut pending: Vec<_> = pending.collect();
        pending.sort_unstable();
        pending
    }

    /// The leased jobs, by deadline and id.
    pub(super) fn running(&self) -> Vec<(u64, Id)> {
        let leased = self.jobs.iter().filter_map(|(id, job)| match job {
            Job::Leased(run) => Some((run.deadline, *id)),
            Job::Pending(_) => None,
        });
        let mut leased: Vec<_> = leased.collect();
        leased.sort_unstable();
        leased
    }
}

/// The answer for each name, and the claimed jobs, each once, however often it is named.
fn each_once(ids: &[Id], mut answer: impl FnMut(Id) -> String) -> (Vec<String>, Vec<Id>) {
    let mut answered: BTreeMap<Id, String> = BTreeMap::new();
    let mut handed = Vec::new();
    let answers = ids.iter().map(|id| {
        let first = answered.entry(id).or_insert_with(|| {
            let answer = answer(id);
            if answer == "claimed" {
                handed.push(*id);
            }
            answer
        });
        first.clone()
    });
    (answers.collect(), handed)
}
