//! The arguments of each call, as the headers in `lua/` list them.

use redis::{Cmd, ToRedisArgs};

use super::answer::{Number, REQUEUED, Reply};
use super::ledger::Ledger;
use super::operations::{
    AT_ONCE, Condition, Id, LIMITED_BY, LONG_AGO, Next, Operation, Verb, When,
};
use crate::names::MARKER;
use crate::store::ledger::script::{
    ADMIT, AMEND, CANCEL, CLAIM, DISCARD, GET, HOLD, LETTERS, LIMIT, PAUSE, PLAN, RECLAIM, RENEW,
    REQUEUE, RESCHEDULE, RESUME, SCHEDULE, SETTLE, STATS, SWEEP, Script, TRIM, UPDATE,
};
use crate::store::tests::support::{Bench, soon};

/// A call as it is sent, and repeated.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) cmd: Cmd,
}

impl Operation {
    pub(super) fn script(&self) -> &'static Script {
        match self {
            Operation::Schedule(_) => &SCHEDULE,
            Operation::Reschedule(_) => &RESCHEDULE,
            Operation::Update(_) => &UPDATE,
            Operation::Amend(_) => &AMEND,
            Operation::Plan(_) => &PLAN,
            Operation::Cancel(_) => &CANCEL,
            Operation::Claim { .. } => &CLAIM,
            Operation::Reclaim { .. } => &RECLAIM,
            Operation::Renew { .. } => &RENEW,
            Operation::Settle { .. } => &SETTLE,
            Operation::Requeue(_) => &REQUEUE,
            Operation::Discard(_) => &DISCARD,
            Operation::Trim(_) => &TRIM,
            Operation::Pause => &PAUSE,
            Operation::Limit(_) => &LIMIT,
            Operation::Hold(_) => &HOLD,
            Operation::Admit(_) => &ADMIT,
            Operation::Resume => &RESUME,
            Operation::Sweep { .. } => &SWEEP,
            Operation::Get(_) => &GET,
            Operation::Letters(..) => &LETTERS,
            Operation::Stats => &STATS,
            Operation::List(_) | Operation::Audit(_) => unreachable!("several calls"),
        }
    }

    /// Whether it takes a lane and a number.
    pub(super) fn is_numbered(&self) -> bool {
        !matches!(
            self,
            Operation::Renew { .. }
                | Operation::Trim(_)
                | Operation::Sweep { .. }
                | Operation::Hold(_)
                | Operation::Admit(_)
                | Operation::Get(_)
                | Operation::Letters(..)
                | Operation::Stats
                | Operation::List(_)
                | Operation::Audit(_)
        )
    }

    /// The jobs whose triggers are keys of the call.
    fn triggers(&self) -> Vec<Id> {
        match self {
            Operation::Schedule(items) => items.iter().map(|item| item.id).collect(),
            Operation::Reschedule(items) => items.iter().map(|item| item.0).collect(),
            Operation::Amend(items) => items.iter().map(|item| item.id).collect(),
            Operation::Plan(series) => series.iter().flatten().map(|job| job.id).collect(),
            Operation::Cancel(items) => items.iter().map(|item| item.0).collect(),
            Operation::Reclaim { ids, .. } => ids.clone(),
            Operation::Settle { ends, .. } => ends.iter().map(|item| item.0).collect(),
            Operation::Requeue(items) => items.iter().map(|item| item.0).collect(),
            _ => Vec::new(),
        }
    }
}

/// The place in all calls: the epoch of the first layout.
const PLACE: &str = "0";

/// The call for this operation, with the tokens and numbers of `known`, the model when it is sent.
pub(super) fn render(
    bench: &Bench,
    known: &Ledger,
    operation: &Operation,
    number: Option<Number>,
) -> Call {
    let script = operation.script();
    let triggers = operation.triggers();
    let triggers: Vec<_> = triggers.iter().map(|id| bench.key(id)).collect();
    let keys = bench.keys_of(script);
    let mut cmd = bench.ledger.call(script, &keys, triggers.iter());
    if let Some(Number { lane, number }) = number {
        cmd.arg(lane).arg(number).arg("model");
    }
    if script.is_addressed() {
        cmd.arg(PLACE);
    }
    let (wake, kind) = (&bench.ledger.wake, bench.ledger.kind().as_str());
    let subject = &bench.names().subject;
    match operation {
        Operation::Schedule(_)
        | Operation::Reschedule(_)
        | Operation::Amend(_)
        | Operation::Plan(_)
        | Operation::Requeue(_) => {
            args(&mut cmd, (wake, subject, MARKER));
        }
        Operation::Cancel(_) => args(&mut cmd, (wake, kind, MARKER)),
        Operation::Reclaim { lease, .. } => args(&mut cmd, (lease, wake, subject, MARKER)),
        Operation::Settle { limits, .. } => {
            args(&mut cmd, (wake, subject, MARKER, limits.count, limits.age));
        }
        Operation::Claim { lease, fill, .. } => {
            args(&mut cmd, (lease, fill, wake, subject, "oldest"));
        }
        Operation::Pause | Operation::Resume => args(&mut cmd, (wake, kind, 0)),
        Operation::Limit(it) => {
            args(&mut cmd, (wake, subject, it.gap, it.burst, it.most));
            args(&mut cmd, format!("{} {LIMITED_BY}", it.set));
            // No groups: the random calls of groups.rs have some.
            args(&mut cmd, ("", 0, 0, 0, ""));
            // And no other ledgers: those of shares.rs have some.
            args(&mut cmd, ("", "", ""));
        }
        Operation::Hold(time) => args(&mut cmd, time),
        Operation::Admit(true) => args(&mut cmd, (wake, subject)),
        Operation::Admit(false) => args(&mut cmd, ("", subject)),
        _ => {}
    }
    items(&mut cmd, known, operation);
    Call { script, cmd }
}

fn items(cmd: &mut Cmd, known: &Ledger, operation: &Operation) {
    let at = |when: &When| match when {
        When::After(delay) => format!("+{delay}"),
        When::Past => format!("@{LONG_AGO}"),
        When::Ahead(delay) => format!("@{}", known.began + delay),
        When::By(delay) => format!(">{delay}"),
    };
    match operation {
        Operation::Schedule(items) => {
            for alike in items.chunk_by(|a, b| (a.mode, a.header) == (b.mode, b.header)) {
                args(cmd, (alike[0].mode, alike[0].header, alike.len()));
                for item in alike {
                    args(cmd, (item.id, at(&item.when), item.payload));
                }
            }
        }
        Operation::Reschedule(items) => {
            items
                .iter()
                .for_each(|(id, when, step)| args(cmd, (id, at(when), step)));
        }
        Operation::Update(items) => {
            items
                .iter()
                .for_each(|(id, payload)| args(cmd, (id, payload)));
        }
        Operation::Amend(items) => items.iter().for_each(|item| {
            args(
                cmd,
                (
                    item.id,
                    known.seen(item.id, item.is_seen),
                    at(&item.when),
                    item.header,
                ),
            );
            let keep = if item.payload.is_some() {
                "set"
            } else {
                "keep"
            };
            args(cmd, (item.payload.unwrap_or_default(), keep));
        }),
        Operation::Plan(series) => series.iter().for_each(|jobs| {
            args(cmd, jobs.len());
            for job in jobs {
                args(cmd, (job.id, known.seen_of_series(job)));
                match job.put {
                    None => args(cmd, ("", "", "", "keep")),
                    Some((when, header, payload)) => {
                        let keep = if payload.is_some() { "set" } else { "keep" };
                        args(cmd, (at(&when), header, payload.unwrap_or_default(), keep));
                    }
                }
            }
        }),
        Operation::Cancel(items) => items.iter().for_each(|(id, condition)| match condition {
            Condition::Always => args(cmd, id),
            Condition::OrderBelow(limit) => args(cmd, format!("{id} {limit}")),
            Condition::Seen(is_seen) => {
                args(
                    cmd,
                    [id.as_bytes(), b"\n", &known.seen(id, *is_seen)].concat(),
                );
            }
        }),
        Operation::Reclaim { ids, .. } => args(cmd, ids),
        Operation::Claim { ids, .. } => args(cmd, ("e".repeat(ids.len()), ids)),
        Operation::Renew {
            leases,
            lease,
            longer,
        } => {
            args(cmd, (lease, if *longer { "longer" } else { "set" }));
            for (id, holder) in leases {
                args(cmd, (id, known.token(id, *holder)));
            }
        }
        Operation::Settle { ends, .. } => {
            let token = |(id, holder, ..): &(Id, _, _, _)| known.token(id, *holder);
            let is_alike = |a: &_, b: &_| token(a) == token(b) && (a.2, a.3) == (b.2, b.3);
            for alike in ends.chunk_by(is_alike) {
                args(cmd, token(&alike[0]));
                match &alike[0].2 {
                    Verb::Done => args(cmd, ("done", "", "", "", "")),
                    Verb::Skip => args(cmd, ("skip", "", "", "", "1h late")),
                    Verb::Later(when, header, step) => {
                        args(cmd, ("later", at(when), header, step, "1 no"));
                    }
                    Verb::Bury(header) => args(cmd, ("bury", "", header, "", "1 no")),
                }
                match &alike[0].3 {
                    Next::Unknown => args(cmd, ("", "")),
                    Next::Nothing => args(cmd, ("-", "")),
                    Next::At(when, header) => args(cmd, (at(when), header)),
                }
                args(cmd, alike.len());
                alike.iter().for_each(|(id, ..)| args(cmd, id));
            }
        }
        Operation::Requeue(items) => items.iter().for_each(|(id, which, when)| {
            args(cmd, (id, known.letter(id, *which), at(when), REQUEUED));
        }),
        Operation::Discard(items) => items
            .iter()
            .for_each(|(id, which)| args(cmd, (id, known.letter(id, *which)))),
        Operation::Trim(limits) => args(cmd, (limits.count, limits.age, AT_ONCE)),
        Operation::Sweep {
            overdue,
            limit,
            skip,
        } => {
            args(cmd, (overdue, limit, skip[0], skip[1]));
        }
        Operation::Get(id) => args(cmd, (id, PLACE)),
        Operation::Letters(id, limit, which) => {
            args(
                cmd,
                (id, PLACE, limit, which.map(|which| known.letter(id, which))),
            );
        }
        Operation::Pause | Operation::Resume | Operation::Stats => {}
        Operation::Limit(_) | Operation::Hold(_) | Operation::Admit(_) => {}
        Operation::List(_) | Operation::Audit(_) => unreachable!("several calls"),
    }
}

fn args(cmd: &mut Cmd, some: impl ToRedisArgs) {
    cmd.arg(some);
}

impl Call {
    /// Sends the call. Returns the time in the reply, Unix µs, and the reply; or the message of the
    /// refusal.
    pub(super) async fn send(&self, bench: &Bench) -> Result<(u64, Reply), String> {
        let called = bench.ledger.eval(self.script, &self.cmd, soon()).await;
        let mut reply = called.map_err(|error| error.to_string())?.reply;
        let mut rest = Vec::new();
        while !reply.is_exhausted() {
            rest.push(reply.bytes().unwrap());
        }
        let status = reply.status;
        Ok((reply.now.0, Reply { status, rest }))
    }
}
