//! The calls of producers, state by state.

use super::ledger::{Job, Ledger, Record, Waiting};
use super::operations::{
    Amendment, Condition, DEBOUNCE, HOUR, Id, Payload, Placement, SeriesJob, When,
};

impl Ledger {
    pub(super) fn schedule_all(&mut self, items: &[Placement]) -> Vec<String> {
        let is_new = !self.counters.contains_key("accepted");
        let answers: Vec<String> = items.iter().map(|item| self.schedule(item)).collect();
        if is_new && self.counters.contains_key("accepted") {
            self.unlisted = Some(self.now);
        }
        let bare = |place: usize| answers[place].trim_end_matches('!');
        let is_repeat = |place: usize| {
            let (word, _) = bare(place).split_once(':').unwrap_or_default();
            let is_stored = ["created", "replaced", "succeeds"].contains(&word);
            is_stored && place > 0 && bare(place) == bare(place - 1)
        };
        let answer = |place: usize| match is_repeat(place) {
            true => answers[place].replace(bare(place), "="),
            false => answers[place].clone(),
        };
        (0..answers.len()).map(answer).collect()
    }

    fn schedule(&mut self, item: &Placement) -> String {
        let record = Record {
            payload: item.payload.to_owned(),
            ..self.accepted_now(item.header)
        };
        let mut job = Waiting {
            due: self.due(item.when),
            record,
        };
        if item.mode == DEBOUNCE {
            self.debounce(item.id, &mut job);
        }
        let due = job.due;
        let there = self.jobs.get(item.id).map_or(0, order_of);
        if item.mode == "ordered" && there > order_in(item.header) {
            return format!("overtaken:{there}");
        }
        match (self.jobs.get_mut(item.id), item.mode) {
            (Some(_), "absent") => "exists".to_owned(),
            (None, "present") => "absent".to_owned(),
            (None, _) => {
                self.count("accepted");
                format!("created:{due}{}", self.put(item.id, job))
            }
            (Some(Job::Pending(_)), _) => {
                self.count("accepted");
                self.count("replaced");
                format!("replaced:{due}{}", self.put(item.id, job))
            }
            (Some(Job::Leased(run)), _) => {
                let earlier = run.successor.replace(job);
                self.count("accepted");
                if earlier.is_some() {
                    self.count("replaced");
                }
                format!("succeeds:{due}")
            }
        }
    }

    /// Takes over the time of the first call that waits for silence, and waits no longer than an
    /// hour from it.
    fn debounce(&self, id: Id, job: &mut Waiting) {
        let there = match self.jobs.get(id) {
            Some(Job::Pending(there)) => Some(there),
            Some(Job::Leased(run)) => run.successor.as_ref(),
            None => None,
        };
        let ends = |step: &String| {
            ["failed@", "again@", "snoozed@"]
                .iter()
                .any(|word| step.starts_with(word))
        };
        if let Some(there) = there.filter(|there| !there.record.steps.iter().any(ends)) {
            job.record.accepted = there.record.accepted;
        }
        job.due = self.ms().max(job.due.min(job.record.accepted + HOUR));
    }

    pub(super) fn reschedule(&mut self, id: Id, when: When, step: &str) -> String {
        let at = self.ms();
        let Some(mut job) = self.jobs.remove(id) else {
            return "absent".to_owned();
        };
        let waiting = match &mut job {
            Job::Pending(job) => Some(job),
            Job::Leased(run) => run.successor.as_mut(),
        };
        if let Some(waiting) = waiting {
            waiting.due = self.due_instead(waiting.due, when);
            waiting.record.step(step, at);
        }
        match job {
            Job::Pending(job) => {
                let due = job.due;
                format!("moved:{due}{}", self.put(id, job))
            }
            Job::Leased(run) => {
                let answer = match &run.successor {
                    Some(successor) => format!("successor:{}", successor.due),
                    None => "running".to_owned(),
                };
                self.jobs.insert(id, Job::Leased(run));
                answer
            }
        }
    }

    pub(super) fn update(&mut self, id: Id, payload: Payload) -> String {
        let at = self.ms();
        let (record, answer) = match self.jobs.get_mut(id) {
            None => return "absent".to_owned(),
            Some(Job::Pending(job)) => (&mut job.record, format!("updated:{}", job.due)),
            Some(Job::Leased(run)) => match &mut run.successor {
                Some(next) => (&mut next.record, format!("successor:{}", next.due)),
                None => (&mut run.record, "running".to_owned()),
            },
        };
        record.payload = payload.to_owned();
        record.step("updated", at);
        answer
    }

    /// The job as a caller has seen it, or another one if `is_seen` is false.
    pub(super) fn seen(&self, id: Id, is_seen: bool) -> Vec<u8> {
        let (state, record) = match self.jobs.get(id) {
            Some(Job::Pending(job)) if is_seen => ("pending", &job.record),
            Some(Job::Leased(run)) if is_seen => match &run.successor {
                Some(next) => ("successor", &next.record),
                None => ("leased", &run.record),
            },
            _ => return b"pending {\"v\":1}\n7\n".to_vec(),
        };
        [state.as_bytes(), b" ", record.opening().as_bytes()].concat()
    }

    pub(super) fn amend(&mut self, item: &Amendment, seen: &[u8]) -> String {
        let Amendment { id, header, .. } = *item;
        match self.jobs.get(id) {
            None => return "absent".to_owned(),
            Some(Job::Leased(run)) if run.cancelled && run.successor.is_none() => {
                return "absent".to_owned();
            }
            Some(_) => {}
        }
        if self.seen(id, true) != seen {
            return "changed".to_owned();
        }
        let (at, due) = (self.ms(), self.due(item.when));
        let accepted = self.accepted_now(header);
        let change = |record: &mut Record| {
            header.clone_into(&mut record.header);
            if let Some(payload) = item.payload {
                record.payload = payload.to_owned();
            }
            record.step("updated", at);
        };
        match self.jobs.remove(id) {
            None => unreachable!("it is there"),
            Some(Job::Pending(mut job)) => {
                change(&mut job.record);
                job.due = due;
                format!("moved:{due}{}", self.put(id, job))
            }
            Some(Job::Leased(mut run)) => {
                let word = match &mut run.successor {
                    Some(next) => {
                        change(&mut next.record);
                        next.due = due;
                        "successor"
                    }
                    None => {
                        let payload = item.payload.map_or(run.record.payload.clone(), Vec::from);
                        let record = Record {
                            payload,
                            ..accepted
                        };
                        run.successor = Some(Waiting { due, record });
                        self.count("accepted");
                        "succeeds"
                    }
                };
                self.jobs.insert(id, Job::Leased(run));
                format!("{word}:{due}")
            }
        }
    }

    /// A job of a series as its caller has seen it.
    pub(super) fn seen_of_series(&self, job: &SeriesJob) -> Vec<u8> {
        match (self.jobs.get(job.id), job.is_seen) {
            (None | Some(Job::Leased(_)), true) => Vec::new(),
            (Some(Job::Pending(waiting)), true) => ["pending ", &waiting.record.opening()]
                .concat()
                .into_bytes(),
            (_, false) => b"pending {\"v\":1}\n7\n".to_vec(),
        }
    }

    /// Changes a series as a whole, or not at all.
    pub(super) fn plan(&mut self, jobs: &[SeriesJob], known: &Ledger) -> String {
        let is_as_seen = |job: &SeriesJob| {
            let is_leased = matches!(self.jobs.get(job.id), Some(Job::Leased(_)));
            let as_it_is = SeriesJob {
                is_seen: true,
                ..job.clone()
            };
            !is_leased && self.seen_of_series(&as_it_is) == known.seen_of_series(job)
        };
        if !jobs.iter().all(is_as_seen) {
            return "changed".to_owned();
        }
        let mut mark = String::new();
        for job in jobs {
            let present = self.jobs.remove(job.id);
            match (present, job.put) {
                (None, None) => {}
                (Some(_), None) => {
                    self.disarm(job.id);
                    self.count("cancelled");
                }
                (present, Some((when, header, payload))) => {
                    let due = self.due(when);
                    let waiting = self.planned(present, due, header, payload);
                    if !self.put(job.id, waiting).is_empty() {
                        "!".clone_into(&mut mark);
                    }
                }
            }
        }
        format!("planned{mark}")
    }

    /// A job of a series from now on.
    fn planned(
        &mut self,
        present: Option<Job>,
        due: u64,
        header: &str,
        payload: Option<Payload>,
    ) -> Waiting {
        let at = self.ms();
        let Some(Job::Pending(mut job)) = present else {
            self.count("accepted");
            let payload = payload.unwrap_or_default().to_owned();
            let record = Record {
                payload,
                ..self.accepted_now(header)
            };
            return Waiting { due, record };
        };
        let step = if job.due == due {
            "updated"
        } else {
            "postponed"
        };
        header.clone_into(&mut job.record.header);
        if let Some(payload) = payload {
            payload.clone_into(&mut job.record.payload);
        }
        job.record.step(step, at);
        job.due = due;
        job
    }

    /// The record of a job that is accepted now, without its payload.
    fn accepted_now(&self, header: &str) -> Record {
        let header = header.strip_suffix('}').expect("it is an object");
        Record {
            header: format!("{header},\"us\":{}}}", self.now % 1000),
            accepted: self.ms(),
            steps: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// `known` is the model when the call was sent; `is_done` says that an earlier item of the call
    /// has cancelled this job.
    pub(super) fn cancel(
        &mut self,
        id: Id,
        condition: Condition,
        known: &Ledger,
        is_done: bool,
    ) -> String {
        let there = self.jobs.get(id).map_or(0, order_of);
        match condition {
            Condition::OrderBelow(limit) if there >= limit => return format!("overtaken:{there}"),
            Condition::Seen(is_seen)
                if !is_done
                    && self.jobs.contains_key(id)
                    && self.seen(id, true) != known.seen(id, is_seen) =>
            {
                return "changed".to_owned();
            }
            _ => {}
        }
        match self.jobs.get_mut(id) {
            None => "absent".to_owned(),
            Some(Job::Pending(_)) => {
                self.jobs.remove(id);
                self.disarm(id);
                self.count("cancelled");
                "cancelled".to_owned()
            }
            Some(Job::Leased(run)) => {
                run.cancelled = true;
                if run.successor.take().is_some() {
                    self.count("cancelled");
                }
                "running".to_owned()
            }
        }
    }
}

/// The order number of a job, or of its successor.
fn order_of(job: &Job) -> u64 {
    let record = match job {
        Job::Pending(job) => &job.record,
        Job::Leased(run) => run.successor.as_ref().map_or(&run.record, |it| &it.record),
    };
    order_in(&record.header)
}

fn order_in(header: &str) -> u64 {
    let header: serde_json::Value = serde_json::from_str(header).unwrap_or_default();
    header["order"].as_u64().unwrap_or(0)
}
