//! Each call of a scenario, as a call of the library. Answers have the form of the HTTP API.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use keyfall::{
    BulkReport, Cancelled, Error, Extended, IfAbsent, IfPresent, JobState, Lease, MaxLateness,
    Member, MemberFate, MemberState, Outcome, Placed, Requeued, Rescheduled, RuleChange, Scheduled,
    Series, SeriesChange, Settled, Updated,
};
use keyfall_daemon::shapes::{Job, Payloads, Problem, Time};
use serde_json::{Value, json};

use super::given::Given;
use super::{Answer, Program};

impl Program {
    pub(super) async fn make(&self, call: &str, with: &Given) -> Answer {
        match call {
            "schedule" => self.schedule(with).await,
            "get" => {
                let view = self.client.get(with.key()).await.map_err(code)?;
                Ok(view.map_or(Value::Null, |view| shown(&Job::of(&view, Payloads::Json))))
            }
            "cancel" => {
                let word = match self.client.cancel(with.key()).await.map_err(code)? {
                    Cancelled::Cancelled => "cancelled",
                    Cancelled::Running => "running",
                    Cancelled::Absent => "absent",
                };
                Ok(word.into())
            }
            "postpone" => {
                let call = self.client.reschedule(with.key());
                let call = match (with.duration("after"), with.time("at")) {
                    (Some(delay), _) => call.after(delay),
                    (_, Some(due)) => call.at(due),
                    _ => call,
                };
                moved(with, call.await.map_err(code)?)
            }
            "fire" => moved(with, self.client.fire_now(with.key()).await.map_err(code)?),
            "update" => {
                let call = self.client.update_payload_bytes(with.key(), with.payload());
                match call.await.map_err(code)? {
                    Updated::Updated(due) => changed(with, false, due),
                    Updated::SuccessorUpdated(due) => changed(with, true, due),
                    Updated::Running => Ok(Value::Null),
                    _ => refused("job_absent"),
                }
            }
            "pull" => self.pull(with).await,
            "extend" => self.extend(with).await,
            "finish" => self.settle(with, Outcome::Done).await,
            "fail" => {
                let error: String = with.must("error");
                let outcome = match (with.some("bury"), with.duration("after")) {
                    (Some(true), _) => Outcome::bury(error),
                    (_, Some(after)) => Outcome::retry_after(after, error),
                    _ => Outcome::retry(error),
                };
                self.settle(with, outcome).await
            }
            "snooze" => {
                let after = with.duration("after").unwrap_or_default();
                self.settle(with, Outcome::snooze(after)).await
            }
            "change_rule" | "pause_rule" | "resume_rule" => self.rule(call, with).await,
            "preview_rule" => {
                let rule: keyfall::Rule = with.must("rule");
                let times = rule.upcoming(SystemTime::now(), 5);
                let times: Vec<Value> = times.into_iter().map(time).collect();
                Ok(json!({"words": rule.to_string(), "times": times}))
            }
            "set_series" => series_changed(with, self.series(with).await.map_err(code)?),
            "preview_series" => {
                series_changed(with, self.series(with).preview().await.map_err(code)?)
            }
            "get_series" => self.show_series(with).await,
            "cancel_series" => {
                let call = self.client.series(with.key()).cancel();
                let cancelled = call.await.map_err(code)?;
                cancelled.map_or(Ok(Value::Null), |change| series_changed(with, change))
            }
            "dead_letters" => {
                let letters = self.client.dead_letters(with.key()).await.map_err(code)?;
                let letters = letters.iter();
                Ok(letters
                    .map(|view| shown(&Job::of(view, Payloads::Json)))
                    .collect())
            }
            "requeue" => {
                let letter: u64 = with.must("letter");
                let call = self.client.requeue(with.key()).letter(letter);
                match call.await.map_err(code)? {
                    Requeued::Requeued(due) => {
                        Ok(json!({"key": with.key(), "letter": letter, "due": time(due)}))
                    }
                    Requeued::Present => refused("job_present"),
                    _ => refused("letter_absent"),
                }
            }
            "delete_letter" => {
                let call = self.client.delete_dead_letter(with.key());
                match call.letter(with.must("letter")).await.map_err(code)? {
                    true => Ok(Value::Null),
                    false => refused("letter_absent"),
                }
            }
            "count" => {
                let counts = self.client.count(&with.must::<String>("prefix")).await;
                let counts = counts.map_err(code)?;
                let (pending, running, dead) = (counts.pending, counts.running, counts.dead);
                Ok(json!({"pending": pending, "running": running, "dead": dead}))
            }
            "jobs" => self.list(with).await,
            "cancel_many" | "fire_many" | "postpone_many" => self.many(call, with).await,
            other => panic!("no scenario has the call {other}"),
        }
    }

    async fn schedule(&self, with: &Given) -> Answer {
        let mut call = self.client.schedule_bytes(with.key(), with.payload());
        if let Some(delay) = with.duration("after") {
            call = call.after(delay);
        }
        if let Some(due) = with.time("at") {
            call = call.at(due);
        }
        if let Some(quiet) = with.duration("debounce") {
            call = call.debounce(quiet, with.duration("at_most").unwrap());
        }
        if let Some(span) = with.duration("throttle") {
            call = call.throttle(span);
        }
        if let Some(rule) = with.some("recurring") {
            call = call.recurring(rule);
        }
        for (name, value) in with
            .some::<BTreeMap<String, String>>("headers")
            .unwrap_or_default()
        {
            call = call.header(name, value);
        }
        if let Some(policy) = with.some("retry") {
            call = call.retry(policy);
        }
        if let Some(limit) = with.some("attempts") {
            call = call.attempts(limit);
        }
        if let Some(limit) = with.duration("timeout") {
            call = call.timeout(limit);
        }
        if let Some(MaxLateness { limit, then }) = with.some("max_lateness") {
            call = call.max_lateness(limit, then);
        }
        match with.some::<String>("if").as_deref() {
            Some("absent") => match call.if_absent().await.map_err(code)? {
                IfAbsent::Scheduled(one) => scheduled(with, one),
                IfAbsent::Present(_) => refused("job_present"),
            },
            Some("present") => match call.if_present().await.map_err(code)? {
                IfPresent::Scheduled(one) => scheduled(with, one),
                IfPresent::Absent => refused("job_absent"),
            },
            _ => scheduled(with, call.await.map_err(code)?),
        }
    }

    async fn pull(&self, with: &Given) -> Answer {
        let kinds: Vec<String> = with.some("kinds").unwrap_or_default();
        let mut prefixes: Vec<String> = with.some("prefixes").unwrap_or_default();
        prefixes.extend(kinds.iter().map(|kind| format!("{kind}:")));
        let wait = Duration::from_secs_f64(with.must("wait"));
        let pulled = self.pull.pull(&prefixes, with.must("max"), wait).await;
        let mut jobs = Vec::new();
        for one in pulled.map_err(code)? {
            let length = one.lease_length();
            let (job, lease) = one.accept().expect("the worker holds it");
            let payload: Value = serde_json::from_slice(job.payload()).unwrap();
            let headers: BTreeMap<&str, &str> = job.headers().iter().collect();
            jobs.push(json!({
                "key": job.key().to_string(), "lease": lease.to_string(),
                "lease_ms": u64::try_from(length.as_millis()).unwrap(),
                "payload": payload, "headers": headers, "attempt": job.attempt(),
                "max_attempts": job.max_attempts(), "fence": job.fence(),
                "idempotency_key": job.idempotency_key(),
            }));
        }
        Ok(jobs.into())
    }

    async fn extend(&self, with: &Given) -> Answer {
        let by = with.duration("by").unwrap();
        let mut results = Vec::new();
        for lease in with.must::<Vec<String>>("leases") {
            let parsed: Lease = lease.parse().unwrap();
            let result = match self.client.extend(&parsed, by).await.map_err(code)? {
                Extended::Extended => "extended",
                Extended::Cancelled => "cancelled",
                Extended::Taken => "taken",
                _ => "gone",
            };
            results.push(json!({"lease": lease, "result": result}));
        }
        Ok(results.into())
    }

    async fn settle(&self, with: &Given, outcome: Outcome) -> Answer {
        let mut results = Vec::new();
        for lease in with.must::<Vec<String>>("leases") {
            let parsed: Lease = lease.parse().unwrap();
            let settled = self.client.settle(&parsed, outcome.clone()).await;
            let (result, due, letter) = match settled.map_err(code)? {
                Settled::Done => ("done", None, None),
                Settled::Pending(due) => ("pending", Some(time(due)), None),
                Settled::Replaced => ("replaced", None, None),
                Settled::Cancelled => ("cancelled", None, None),
                Settled::Buried(letter) => ("buried", None, Some(letter)),
                Settled::Taken => ("taken", None, None),
                _ => ("gone", None, None),
            };
            results.push(json!({"lease": lease, "result": result, "due": due, "letter": letter}));
        }
        Ok(results.into())
    }

    async fn rule(&self, call: &str, with: &Given) -> Answer {
        let answer = match call {
            "pause_rule" => self.client.pause_rule(with.key()).await,
            "resume_rule" => self.client.resume_rule(with.key()).await,
            _ => {
                self.client
                    .change_rule(with.key(), &with.must("rule"))
                    .await
            }
        };
        let (changed, after_run, due) = match answer.map_err(code)? {
            RuleChange::Changed(due) => (true, false, Some(due)),
            RuleChange::AfterRun(due) => (true, true, Some(due)),
            RuleChange::Unchanged => (false, false, None),
            RuleChange::NotRecurring => return refused("job_not_recurring"),
            _ => return refused("job_absent"),
        };
        // With a paused rule the time has no meaning.
        let due = due.filter(|_| call != "pause_rule").map(time);
        let key = with.key();
        Ok(json!({"key": key, "changed": changed, "after_run": after_run, "due": due}))
    }

    fn series(&self, with: &Given) -> Series<'_> {
        let mut call = self.client.series(with.key());
        if let Some(anchor) = with.some::<String>("anchor") {
            call = call.anchor(anchor, &with.must::<String>("zone"));
        }
        if let Some(members) = with.some::<Vec<Value>>("at") {
            call = call.at(members.iter().map(member));
        }
        if let Some(payload) = with.some::<Value>("payload") {
            call = call.payload(&payload);
        }
        call
    }

    async fn show_series(&self, with: &Given) -> Answer {
        let view = self.client.series(with.key()).view().await.map_err(code)?;
        let Some(view) = view else {
            return Ok(Value::Null);
        };
        let members = view.members.iter().map(|member| {
            let state = match member.state {
                MemberState::Planned => "planned",
                MemberState::Retrying => "retrying",
                MemberState::Running => "running",
                MemberState::Dead(_) => "dead",
                MemberState::LeftOut(_) => "left_out",
                _ => "ended",
            };
            json!({"key": member.key.to_string(), "at": member.offset, "state": state})
        });
        Ok(json!({
            "zone": view.zone, "anchor": time(view.anchor), "past": view.past,
            "members": members.collect::<Vec<_>>(),
        }))
    }

    async fn list(&self, with: &Given) -> Answer {
        let (mut jobs, mut cursor) = (Vec::new(), None);
        loop {
            let prefix: String = with.must("prefix");
            let mut call = self.client.list(&prefix, JobState::Pending);
            if let Some(limit) = with.some("limit") {
                call = call.limit(limit);
            }
            if let Some(time) = with.time("due_before") {
                call = call.due_before(time);
            }
            if let Some(cursor) = cursor {
                call = call.after(cursor);
            }
            let page = call.await.map_err(code)?;
            let views = page.jobs.iter();
            jobs.extend(views.map(|view| shown(&Job::of(view, Payloads::Json))));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(jobs.into()),
            }
        }
    }

    async fn many(&self, call: &str, with: &Given) -> Answer {
        let prefix: String = with.must("prefix");
        let selection = self.client.prefix(&prefix);
        let dry_run = with.some("dry_run").unwrap_or(false);
        let report = match call {
            "postpone_many" => {
                let by = with.duration("by").unwrap();
                selection.postpone().by(by).await
            }
            "fire_many" => selection.fire_now().await,
            _ if dry_run => selection.cancel().dry_run().await,
            _ => selection.cancel().await,
        };
        let BulkReport { matched, done, .. } = report.map_err(code)?;
        Ok(json!({"matched": matched, "done": done, "dry_run": dry_run}))
    }
}

/// The code that the HTTP API has for an error.
fn code(error: Error) -> String {
    Problem::from(error).code.into_owned()
}

fn refused(code: &str) -> Answer {
    Err(code.to_owned())
}

fn time(time: SystemTime) -> Value {
    Time(time).to_string().into()
}

/// A job in the form of the scenarios, which call bytes `bytes`.
fn shown(job: &Job) -> Value {
    let mut shown = serde_json::to_value(job).unwrap();
    if let Some(bytes) = shown.get("payload_base64").cloned() {
        shown["bytes"] = bytes;
    }
    shown
}

fn scheduled(with: &Given, one: Scheduled) -> Answer {
    let placed = match one.placed {
        Placed::Created => "created",
        Placed::Replaced => "replaced",
        Placed::LeftOut => "left_out",
        _ => "succeeds",
    };
    let key = with.key();
    Ok(json!({"key": key, "placed": placed, "due": time(one.due), "armed": one.armed}))
}

fn changed(with: &Given, successor: bool, due: SystemTime) -> Answer {
    Ok(json!({"key": with.key(), "successor": successor, "due": time(due)}))
}

fn moved(with: &Given, answer: Rescheduled) -> Answer {
    match answer {
        Rescheduled::Moved(due) => changed(with, false, due),
        Rescheduled::SuccessorMoved(due) => changed(with, true, due),
        Rescheduled::Running => refused("job_running"),
        _ => refused("job_absent"),
    }
}

fn member(value: &Value) -> Member {
    let Some(offset) = value["at"].as_str() else {
        return Member::new(value.as_str().unwrap());
    };
    let mut member = Member::new(offset);
    if let Some(name) = value["name"].as_str() {
        member = member.named(name);
    }
    match value.get("payload") {
        Some(payload) => member.payload(payload),
        None => member,
    }
}

fn series_changed(with: &Given, change: SeriesChange) -> Answer {
    let members = change.members.iter().map(|member| {
        let (what, due) = match member.fate {
            MemberFate::Created(due) => ("created", Some(due)),
            MemberFate::Moved(due) => ("moved", Some(due)),
            MemberFate::Unchanged(due) => ("unchanged", Some(due)),
            MemberFate::Cancelled => ("cancelled", None),
            MemberFate::LeftOut(_) => ("left_out", None),
            MemberFate::Running => ("running", None),
            MemberFate::Retrying => ("retrying", None),
            _ => ("ended", None),
        };
        let (key, at) = (member.key.to_string(), &member.offset);
        json!({"key": key, "at": at, "what": what, "due": due.map(time)})
    });
    let members: Vec<Value> = members.collect();
    let kept_until = change.kept_until.map(time);
    Ok(json!({"key": with.key(), "members": members, "kept_until": kept_until}))
}
