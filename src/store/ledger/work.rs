//! What workers do to a ledger.

use std::time::{Duration, Instant};

use super::counted;
use crate::error::Result;
use crate::key::JobKey;
use crate::moment::Moment;
use crate::names::MARKER;
use crate::record::Header;
use crate::settings::WorkerSettings;
use crate::store::ledger::call::Called;
use crate::store::ledger::number;
use crate::store::ledger::produce::When;
use crate::store::ledger::reply::{Answered, Reply, ReplyWord, unexpected};
use crate::store::ledger::script::{CLAIM, RECLAIM, RENEW, SETTLE, SWEEP, TRIM};
use crate::store::{Lane, Ledger};
use crate::time::{UnixMs, UnixUs};

/// How much of an error the history keeps.
const NOTE_BYTES: usize = 200;

/// A job that this process holds a lease of.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) id: String,
    pub(crate) token: String,
    /// The attempts begun since the record was last written, this one included.
    pub(crate) claims: u32,
    pub(crate) fence: u64,
    pub(crate) due: UnixMs,
    /// Somebody cancelled it since it was claimed.
    pub(crate) cancelled: bool,
    pub(crate) record: Vec<u8>,
}

/// What a claim brought.
#[derive(Debug)]
pub(crate) struct ClaimReply {
    /// The server's time of the claim.
    pub(crate) now: UnixUs,
    /// When the try that succeeded was sent: from here this process counts its leases.
    pub(crate) sent: Moment,
    /// Nothing can be claimed: the kind is paused.
    pub(crate) paused: bool,
    /// One for each id that was named; empty if the call was a repeat.
    pub(crate) answers: Vec<Answered>,
    pub(crate) jobs: Vec<Claimed>,
}

/// How long a renewal lets leases run, from now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent {
    /// So long, whatever it was before.
    Exactly(Duration),
    /// So long, or longer if they do already.
    AtLeast(Duration),
}

/// The end of one lease.
#[derive(Debug, Clone)]
pub(crate) struct Settlement {
    pub(crate) key: JobKey,
    pub(crate) token: String,
    pub(crate) verb: Verb,
    /// About how large its record is, which the script has to read unless the job is done.
    pub(crate) payload_bytes: usize,
}

/// How a lease ends.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    /// The job is done.
    Done,
    /// It is pending again. An empty header keeps the old one.
    Later {
        when: When,
        header: String,
        step: &'static str,
    },
    /// It becomes a dead letter.
    Bury { header: String },
}

/// How many dead letters a ledger keeps, and for how long. By default, what a worker keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadLimits {
    pub(crate) count: u64,
    pub(crate) age: Duration,
}

impl Default for DeadLimits {
    fn default() -> Self {
        let settings = WorkerSettings::default();
        DeadLimits {
            count: settings.dead_count,
            age: settings.dead_age,
        }
    }
}

/// What a sweep found.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The kind is paused: nothing is overdue.
    pub(crate) paused: bool,
    pub(crate) overdue: Vec<String>,
    pub(crate) lapsed: Vec<String>,
    pub(crate) next_due: Option<UnixMs>,
    pub(crate) next_lapse: Option<UnixMs>,
}

impl Settlement {
    /// Whether the script needs to be told only once how the two end. Those that one claim
    /// brought, and that are done, are the many.
    fn ends_like(&self, other: &Self) -> bool {
        self.token == other.token && matches!((&self.verb, &other.verb), (Verb::Done, Verb::Done))
    }
}

impl Ledger {
    /// Claims the jobs named, as far as they are due, and up to `fill` of the oldest due
    /// ones; `lua/claim.lua`. `found` has a letter for each job named, by
    /// [`Source`](crate::Source).
    pub(crate) async fn claim(
        &self,
        lane: &mut Lane,
        ids: &[&str],
        found: &str,
        fill: usize,
        lease: Duration,
        until: Instant,
    ) -> Result<ClaimReply> {
        let n = &self.names;
        let keys: [&str; 7] = [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.calls, &n.lanes, &n.history,
        ];
        let mut cmd = self.call(&CLAIM, &keys, [].into_iter());
        number(&mut cmd, lane);
        cmd.arg(millis(lease)).arg(fill).arg(found).arg(ids);
        claimed(self.eval(&CLAIM, &cmd, until).await?)
    }

    /// Takes over jobs whose lease has lapsed; `lua/reclaim.lua`.
    pub(crate) async fn reclaim(
        &self,
        lane: &mut Lane,
        keys: &[JobKey],
        lease: Duration,
        until: Instant,
    ) -> Result<ClaimReply> {
        let n = &self.names;
        let fixed: [&str; 9] = [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.next, &n.stats, &n.calls, &n.lanes,
            &n.history,
        ];
        let mut cmd = self.call(&RECLAIM, &fixed, keys.iter());
        number(&mut cmd, lane);
        cmd.arg(millis(lease))
            .arg(&self.wake)
            .arg(&n.subject)
            .arg(MARKER);
        for key in keys {
            cmd.arg(key.id());
        }
        claimed(self.eval(&RECLAIM, &cmd, until).await?)
    }

    /// Extends leases, given as id and token; `lua/renew.lua`. Returns the answers, and when
    /// the try that succeeded was sent.
    pub(crate) async fn renew(
        &self,
        leases: &[(String, String)],
        extent: Extent,
        until: Instant,
    ) -> Result<(Vec<Answered>, Moment)> {
        let keys: [&str; 2] = [&self.names.leased, &self.names.lease];
        let mut cmd = self.call(&RENEW, &keys, [].into_iter());
        match extent {
            Extent::Exactly(length) => cmd.arg(millis(length)).arg("set"),
            Extent::AtLeast(length) => cmd.arg(millis(length)).arg("longer"),
        };
        for (id, token) in leases {
            cmd.arg(id).arg(token);
        }
        let mut called = self.eval(&RENEW, &cmd, until).await?;
        let answers = called.reply.answers()?;
        if answers.len() != leases.len() {
            return Err(unexpected(format!(
                "{} items of {}",
                answers.len(),
                leases.len()
            )));
        }
        Ok((answers, called.sent))
    }

    /// Ends leases; `lua/settle.lua`. Returns the answers, and how many old dead letters fell
    /// to their limits.
    pub(crate) async fn settle(
        &self,
        lane: &mut Lane,
        items: &[Settlement],
        dead: DeadLimits,
        until: Instant,
    ) -> Result<(Vec<Answered>, u64)> {
        let n = &self.names;
        let keys: [&str; 11] = [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.next, &n.dead, &n.grave, &n.stats, &n.calls,
            &n.lanes, &n.history,
        ];
        let mut cmd = self.call(&SETTLE, &keys, items.iter().map(|item| &item.key));
        number(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&n.subject).arg(MARKER);
        cmd.arg(dead.count).arg(millis(dead.age));
        for alike in items.chunk_by(Settlement::ends_like) {
            let Settlement { token, verb, .. } = &alike[0];
            cmd.arg(token);
            match verb {
                Verb::Done => cmd.arg("done").arg("").arg("").arg("").arg(""),
                Verb::Later { when, header, step } => {
                    cmd.arg("later").arg(when.to_arg()).arg(header).arg(*step);
                    cmd.arg(if *step == "failed" {
                        note(header)
                    } else {
                        String::new()
                    })
                }
                Verb::Bury { header } => cmd
                    .arg("bury")
                    .arg("")
                    .arg(header)
                    .arg("")
                    .arg(note(header)),
            };
            cmd.arg(alike.len());
            for item in alike {
                cmd.arg(item.key.id());
            }
        }
        let mut reply = self.eval(&SETTLE, &cmd, until).await?.reply;
        let answers = reply.item_answers(items.len())?;
        for (item, answered) in items.iter().zip(&answers) {
            let outcome = counted::outcome(&item.verb, answered.answer);
            self.meter().settled(outcome);
            self.failures().tell(self.kind(), item, answered.answer);
        }
        let trimmed = reply.number()?;
        // A job that ran has no trigger any more. To the next one it is all the same whether the job
        // goes back or another one follows.
        let mut pending = answers.clone();
        for answered in &mut pending {
            if answered.answer == ReplyWord::Cancelled {
                answered.answer = ReplyWord::Done;
            }
        }
        for (place, due) in followers(&mut reply)? {
            if let Some(answered) = pending.get_mut(place) {
                answered.answer = ReplyWord::Later(due);
            }
        }
        self.begin_arming(items.iter().map(|item| &item.key), &pending);
        Ok((answers, trimmed))
    }

    /// Drops dead letters beyond their limits, about `limit` at the most; `lua/trim.lua`. Returns
    /// how many fell.
    pub(crate) async fn trim(&self, dead: DeadLimits, limit: usize, until: Instant) -> Result<u64> {
        let keys: [&str; 3] = [&self.names.dead, &self.names.grave, &self.names.stats];
        let mut cmd = self.call(&TRIM, &keys, [].into_iter());
        cmd.arg(dead.count).arg(millis(dead.age)).arg(limit);
        self.eval(&TRIM, &cmd, until).await?.reply.number()
    }

    /// Finds overdue jobs and lapsed leases, but for so many of the oldest of each;
    /// `lua/sweep.lua`.
    pub(crate) async fn sweep(
        &self,
        overdue: Duration,
        (skip_due, skip_lapsed): (usize, usize),
        limit: usize,
        until: Instant,
    ) -> Result<Sweep> {
        let n = &self.names;
        let keys: [&str; 3] = [&n.due, &n.leased, &n.calls];
        let mut cmd = self.call(&SWEEP, &keys, [].into_iter());
        cmd.arg(millis(overdue))
            .arg(limit)
            .arg(skip_due)
            .arg(skip_lapsed);
        let mut reply = self.eval(&SWEEP, &cmd, until).await?.reply;
        Ok(Sweep {
            paused: reply.is_paused(),
            overdue: reply.words()?,
            lapsed: reply.words()?,
            next_due: reply.time()?,
            next_lapse: reply.time()?,
        })
    }
}

/// Which items have successors that are pending now, from 0, and when those are due; only told
/// where scripts have no triggers.
fn followers(reply: &mut Reply) -> Result<Vec<(usize, UnixMs)>> {
    if reply.is_exhausted() {
        return Ok(Vec::new());
    }
    let numbers: std::result::Result<Vec<u64>, _> =
        reply.words()?.iter().map(|word| word.parse()).collect();
    let numbers = numbers.map_err(|_| unexpected("something else than places and times".into()))?;
    let pairs = numbers.chunks_exact(2);
    Ok(pairs
        .map(|pair| (pair[0] as usize, UnixMs(pair[1])))
        .collect())
}

/// What the history tells of an attempt that failed: its number, and the error.
fn note(header: &str) -> String {
    let Some((attempts, error)) = Header::told_by(header) else {
        return String::new();
    };
    let mut note = format!("{attempts} {error}");
    if note.len() > NOTE_BYTES {
        let end = (0..=NOTE_BYTES).rev().find(|at| note.is_char_boundary(*at));
        note.truncate(end.unwrap_or_default());
        note.push('…');
    }
    note
}

fn claimed(called: Called) -> Result<ClaimReply> {
    let Called { mut reply, sent } = called;
    reply.refuse_late()?;
    let answers = reply.answers()?;
    let mut jobs = Vec::new();
    while !reply.is_exhausted() {
        let id = reply.text()?;
        let lease = reply.text()?;
        let record = reply.bytes()?;
        match Claimed::parse(id, &lease, record) {
            Some(job) => jobs.push(job),
            // Written by hand. The others are as claimed as if it were not there.
            None => tracing::error!(lease, "a lease that does not parse"),
        }
    }
    Ok(ClaimReply {
        now: reply.now,
        sent,
        paused: reply.is_paused(),
        answers,
        jobs,
    })
}

impl Claimed {
    /// Reads a lease, `token claims fence due flag`.
    pub(crate) fn parse(id: String, lease: &str, record: Vec<u8>) -> Option<Self> {
        let fields: Vec<&str> = lease.split(' ').collect();
        let [token, claims, fence, due, flag] = fields[..] else {
            return None;
        };
        Some(Claimed {
            id,
            token: token.to_owned(),
            claims: claims.parse().ok()?,
            fence: fence.parse().ok()?,
            due: UnixMs(due.parse().ok()?),
            cancelled: flag == "cancelled",
            record,
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
