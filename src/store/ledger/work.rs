//! The operations of workers on a ledger: claim, reclaim, renew, settle, trim and sweep.

use std::sync::Arc;
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

/// How many bytes of a failed attempt the history keeps: its number and its error. A longer note is
/// cut at the end of a character, and gets an ellipsis.
const NOTE_BYTES: usize = 200;

/// A job of which this process holds the lease.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// The id of the job, the last segment of its key.
    pub(crate) id: String,
    /// The token of the lease, `lane-number` of the claim. Jobs of one claim can share the text.
    pub(crate) token: Arc<str>,
    /// The attempts that began since the record was last written, including this one.
    pub(crate) claims: u32,
    /// The fencing value: higher than the value of every earlier claim in this ledger.
    pub(crate) fence: u64,
    /// The time at which the job was due.
    pub(crate) due: UnixMs,
    /// Whether the job was cancelled since it was claimed.
    pub(crate) cancelled: bool,
    /// The record; empty if it is missing, so that the worker can bury the job.
    pub(crate) record: Vec<u8>,
}

/// A lease as Redis stores it; [`Claimed`] describes the fields.
#[derive(Clone)]
pub(crate) struct LeaseTerms {
    pub(crate) token: Arc<str>,
    pub(crate) claims: u32,
    pub(crate) fence: u64,
    pub(crate) due: UnixMs,
    pub(crate) cancelled: bool,
}

/// The reply to a claim or a reclaim.
#[derive(Debug)]
pub(crate) struct ClaimReply {
    /// The time of the claim by the clock of the server.
    pub(crate) now: UnixUs,
    /// The moment at which the successful try was sent. This process counts its leases from here.
    pub(crate) sent: Moment,
    /// Whether the kind is paused, so that nothing can be claimed.
    pub(crate) paused: bool,
    /// One answer for each named id; empty if the call was a repeat.
    pub(crate) answers: Vec<Answered>,
    /// The jobs that this process now holds.
    pub(crate) jobs: Vec<Claimed>,
}

/// The jobs that a claim takes if the limit of the kind holds some of the named ones back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimOrder {
    /// The oldest due jobs, whatever their names: the caller can run any job of the kind.
    Oldest,
    /// As many of the named ones as may start.
    Named,
}

/// The jobs that a claim asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimRequest<'a> {
    /// The ids of the named jobs.
    pub(crate) ids: &'a [&'a str],
    /// One letter for each of them, by [`Source`](crate::Source).
    pub(crate) found: &'a str,
    /// How many of the oldest due jobs to take beside them.
    pub(crate) fill: usize,
    /// What to do if a limit holds some of them back.
    pub(crate) order: ClaimOrder,
}

/// The length of a lease after a renewal, counted from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Extent {
    /// This long, even if the lease ran longer before.
    Exactly(Duration),
    /// This long, or longer if the lease already runs longer.
    AtLeast(Duration),
}

/// The end of one lease.
#[derive(Debug, Clone)]
pub(crate) struct Settlement {
    /// The name of the job.
    pub(crate) key: JobKey,
    /// The token by which the lease is proved.
    pub(crate) token: Arc<str>,
    /// The sort of the end.
    pub(crate) verb: Verb,
    /// The occurrence of a recurring job that follows. It stands in the way of a retry.
    pub(crate) next: Next,
    /// The approximate size of the record in bytes. The script has to read it unless the job is
    /// done.
    pub(crate) payload_bytes: usize,
}

/// The sort of the end of a lease.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    /// The job is done.
    Done,
    /// The job ends without a run. The note says why, for the history.
    Skip { note: String },
    /// The job is pending again, due at `when`. An empty header keeps the old one. `step` is
    /// `failed`, `again`, `snoozed` or `returned`.
    Later {
        when: When,
        header: String,
        step: &'static str,
    },
    /// The job becomes a dead letter with this header.
    Bury { header: String },
}

/// The occurrence that follows the end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// The job does not recur, as far as the caller knows. The script does not end one that does.
    Unknown,
    /// None: the rule has ended, or cannot be read at all.
    Nothing,
    /// The job is pending again, due at this time, with this header.
    At(UnixMs, String),
}

/// The limits of the dead letters of a ledger. The default is the default of a worker: 10,000 dead
/// letters and 90 days.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadLimits {
    /// The most dead letters.
    pub(crate) count: u64,
    /// The age at which a dead letter is dropped.
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

/// The result of a sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Whether the kind is paused; then nothing counts as overdue or lapsed.
    pub(crate) paused: bool,
    /// The ids of overdue jobs, the oldest first.
    pub(crate) overdue: Vec<String>,
    /// The ids of jobs whose leases have lapsed, the oldest first.
    pub(crate) lapsed: Vec<String>,
    /// The due time of the next job that is not overdue yet.
    pub(crate) next_due: Option<UnixMs>,
    /// The deadline of the next lease that ends.
    pub(crate) next_lapse: Option<UnixMs>,
    /// Present if overdue jobs wait for the limit of the kind.
    pub(crate) held: Option<Held>,
}

/// Due jobs wait for a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// When its rate allows the next start; `None` if it waits for the end of a run, or for a share.
    pub(crate) next: Option<UnixUs>,
    /// Whether several ledgers share the limit.
    pub(crate) is_shared: bool,
}

impl Held {
    /// Reads `next`, Unix µs or 0, and behind it ` shared`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (next, is_shared) = match text.split_once(' ') {
            Some((next, word)) => (next, word == "shared"),
            None => (text, false),
        };
        let next: u64 = next.parse().ok()?;
        Some(Held {
            next: (next > 0).then_some(UnixUs(next)),
            is_shared,
        })
    }
}

impl Settlement {
    /// Whether both settlements have the same token and the end `done`, and nothing follows: the
    /// script then gets token and end once for both. Most settlements of one claim are like that.
    fn ends_like(&self, other: &Self) -> bool {
        let is_plain = |it: &Self| matches!((&it.verb, &it.next), (Verb::Done, Next::Unknown));
        self.token == other.token && is_plain(self) && is_plain(other)
    }
}

impl Ledger {
    /// Claims the named jobs that are due, and up to `fill` of the oldest due jobs;
    /// `lua/claim.lua`.
    ///
    /// A lease lasts `lease` from the claim. A repeat of the call returns the jobs that it still
    /// holds, and their leases count from then. It works while Redis is full. The answers about the
    /// named jobs:
    ///
    /// - `Claimed`: the job is in the reply.
    /// - `Early`: it is due in this many milliseconds; 0 if the reply was full before it.
    /// - `Paused`: it is due, but its kind is paused.
    /// - `Held`: it is due, but it waits for the limit of its kind.
    /// - `Leased`: a worker runs it.
    /// - `Absent`: there is no such job.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutcomeUnknown`](crate::error::ErrorKind::OutcomeUnknown) if a later call of
    /// the lane has overtaken this one.
    pub(crate) async fn claim(
        &self,
        lane: &mut Lane,
        ClaimRequest {
            ids,
            found,
            fill,
            order,
        }: ClaimRequest<'_>,
        lease: Duration,
        until: Instant,
    ) -> Result<ClaimReply> {
        let n = &self.names;
        let keys: [&str; 7] = [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.calls, &n.lanes, &n.history,
        ];
        let mut cmd = self.call(&CLAIM, &keys, [].into_iter());
        number(&mut cmd, lane);
        cmd.arg(millis(lease)).arg(fill);
        cmd.arg(&self.wake).arg(&n.subject).arg(match order {
            ClaimOrder::Oldest => "oldest",
            ClaimOrder::Named => "named",
        });
        cmd.arg(found).arg(ids);
        claimed(self.eval(&CLAIM, &cmd, until).await?)
    }

    /// Takes over jobs whose leases have lapsed; `lua/reclaim.lua`. The record stays as it is: the
    /// lease counts the attempts. The answers:
    ///
    /// - `Claimed`: the job is in the reply.
    /// - `Paused`: its lease has lapsed, but its kind is paused.
    /// - `Held`: its lease has lapsed, but it waits for the rate of its kind.
    /// - `Leased`: its lease has not lapsed, or the reply was full before it.
    /// - `Superseded`: its successor is pending instead.
    /// - `Cancelled`: it was cancelled while it ran, and is gone.
    /// - `Absent`: it has no lease.
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

    /// Extends leases, given as pairs of id and token; `lua/renew.lua`. Returns one answer for
    /// each, and the moment at which the successful try was sent.
    ///
    /// It needs no lane: a late call finds another token, or extends the lease beyond the time that
    /// its owner counts on. It works while Redis is full. The answers:
    ///
    /// - `Renewed`: the lease is extended.
    /// - `Cancelled`: the same, but the job was cancelled: stop the run.
    /// - `Gone`: there is no lease; the job was settled, or its ledger was lost.
    /// - `Foreign`: another worker holds the lease.
    pub(crate) async fn renew(
        &self,
        leases: &[(String, Arc<str>)],
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
            cmd.arg(id).arg(&**token);
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

    /// Ends leases; `lua/settle.lua`. Returns one answer for each, and the number of old dead
    /// letters that the limits removed. It works while Redis is full. A lapsed lease that no worker
    /// has taken over can still be settled. The answers:
    ///
    /// - `Done`, `Later`, `Buried`: the end that was asked for.
    /// - `Superseded`: not retried, because the successor or the next occurrence is pending
    ///   instead.
    /// - `Recurs`: nothing was done, because the job recurs, and its [`Next`] is `Unknown`.
    /// - `Cancelled`: neither retried nor a dead letter, because the job was cancelled while it
    ///   ran.
    /// - `Gone`, `Foreign`: the lease was lost; nothing was done.
    ///
    /// It also counts the outcomes, logs failed attempts and, on a cluster, moves the triggers in
    /// the background.
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
            let Settlement {
                token, verb, next, ..
            } = &alike[0];
            cmd.arg(&**token);
            match verb {
                Verb::Done => cmd.arg("done").arg("").arg("").arg("").arg(""),
                Verb::Skip { note } => cmd.arg("skip").arg("").arg("").arg("").arg(note),
                Verb::Later { when, header, step } => {
                    cmd.arg("later").arg(when.to_arg()).arg(header).arg(*step);
                    cmd.arg(match *step {
                        "failed" => note(header),
                        "snoozed" => Header::put_off(header).map(cut).unwrap_or_default(),
                        _ => String::new(),
                    })
                }
                Verb::Bury { header } => cmd
                    .arg("bury")
                    .arg("")
                    .arg(header)
                    .arg("")
                    .arg(note(header)),
            };
            match next {
                Next::Unknown => cmd.arg("").arg(""),
                Next::Nothing => cmd.arg("-").arg(""),
                Next::At(due, header) => cmd.arg(When::At(*due).to_arg()).arg(header),
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
            self.run_ended(outcome);
            self.failures().tell(self.kind(), item, answered.answer);
        }
        let trimmed = reply.number()?;
        let pending = to_arm(&answers, followers(&mut reply)?);
        self.begin_arming(items.iter().map(|item| &item.key), &pending);
        Ok((answers, trimmed))
    }

    /// Drops dead letters beyond the limits, about `limit` of them at the most; `lua/trim.lua`.
    /// Returns how many it dropped.
    pub(crate) async fn trim(&self, dead: DeadLimits, limit: usize, until: Instant) -> Result<u64> {
        let keys: [&str; 3] = [&self.names.dead, &self.names.grave, &self.names.stats];
        let mut cmd = self.call(&TRIM, &keys, [].into_iter());
        cmd.arg(dead.count).arg(millis(dead.age)).arg(limit);
        self.eval(&TRIM, &cmd, until).await?.reply.number()
    }

    /// Finds jobs that have been due for at least `overdue`, and lapsed leases, up to `limit` of
    /// each; `lua/sweep.lua`. The pair says how many of the oldest jobs and of the oldest leases
    /// are skipped. It only reads.
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
            held: Held::parse(&reply.text()?),
        })
    }
}

/// The indexes of the items whose successors are pending now, with the due times of the successors.
/// The script returns them only if its call has no triggers.
fn followers(reply: &mut Reply) -> Result<Vec<(usize, UnixMs)>> {
    if reply.is_exhausted() {
        return Ok(Vec::new());
    }
    let numbers: std::result::Result<Vec<u64>, _> =
        reply.words()?.iter().map(|word| word.parse()).collect();
    let numbers = numbers.map_err(|_| unexpected("a reply that is not places and times".into()))?;
    let pairs = numbers.chunks_exact(2);
    Ok(pairs
        .map(|pair| (pair[0] as usize, UnixMs(pair[1])))
        .collect())
}

/// The answers of a settlement as the triggers see them. A job that ran has no trigger any more,
/// and a cancelled one needs none removed. The trigger of a job that goes back is armed in the same
/// way as the trigger of a successor.
fn to_arm(answers: &[Answered], followers: Vec<(usize, UnixMs)>) -> Vec<Answered> {
    let mut pending = answers.to_vec();
    for answered in &mut pending {
        if answered.answer == ReplyWord::Cancelled {
            answered.answer = ReplyWord::Done;
        }
    }
    for (place, due) in followers {
        if let Some(answered) = pending.get_mut(place) {
            answered.answer = ReplyWord::Later(due);
        }
    }
    pending
}

/// The note of the history for a failed attempt: its number and the error.
fn note(header: &str) -> String {
    let Some((attempts, error)) = Header::told_by(header) else {
        return String::new();
    };
    cut(format!("{attempts} {error}"))
}

/// A note of the history, cut at [`NOTE_BYTES`].
fn cut(mut note: String) -> String {
    if note.len() > NOTE_BYTES {
        let end = (0..=NOTE_BYTES).rev().find(|at| note.is_char_boundary(*at));
        note.truncate(end.unwrap_or_default());
        note.push('…');
    }
    note
}

/// Reads the reply of a claim or a reclaim.
fn claimed(called: Called) -> Result<ClaimReply> {
    let Called { mut reply, sent } = called;
    reply.refuse_late()?;
    let answers = reply.answers()?;
    let jobs = claimed_jobs(&mut reply)?;
    Ok(ClaimReply {
        now: reply.now,
        sent,
        paused: reply.is_paused(),
        answers,
        jobs,
    })
}

/// Reads the jobs of such a reply: their leases in one text, a line for each, then ids and records.
/// The line `=` repeats the lease before it.
fn claimed_jobs(reply: &mut Reply) -> Result<Vec<Claimed>> {
    let leases = reply.text()?;
    let mut leases = leases.lines();
    let mut terms = None;
    let mut jobs = Vec::new();
    while !reply.is_exhausted() {
        let (id, record) = (reply.text()?, reply.bytes()?);
        let lease = leases.next();
        let lease = lease.ok_or_else(|| unexpected("fewer leases than jobs".into()))?;
        if lease != "=" {
            terms = LeaseTerms::parse(lease);
        }
        match &terms {
            Some(terms) => jobs.push(Claimed::new(id, terms.clone(), record)),
            // Some other program wrote this lease. The other jobs are claimed all the same.
            None => tracing::error!(id, lease, "a lease that does not parse"),
        }
    }
    // A stored lease with a line break would give its job's terms to the next one.
    if leases.next().is_some() {
        return Err(unexpected("more leases than jobs".into()));
    }
    Ok(jobs)
}

impl LeaseTerms {
    /// Reads a lease, `token claims fence due flag`. `None` if it has another form.
    pub(crate) fn parse(lease: &str) -> Option<Self> {
        let mut fields = lease.split(' ');
        // Behind the `@` is the group of the job, which only the scripts need.
        let token = fields.next()?.split('@').next()?;
        let terms = LeaseTerms {
            token: token.into(),
            claims: fields.next()?.parse().ok()?,
            fence: fields.next()?.parse().ok()?,
            due: UnixMs(fields.next()?.parse().ok()?),
            cancelled: fields.next()? == "cancelled",
        };
        fields.next().is_none().then_some(terms)
    }
}

impl Claimed {
    fn new(id: String, lease: LeaseTerms, record: Vec<u8>) -> Self {
        Claimed {
            id,
            token: lease.token,
            claims: lease.claims,
            fence: lease.fence,
            due: lease.due,
            cancelled: lease.cancelled,
            record,
        }
    }
}

/// Whole milliseconds, rounded down.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn a_note_is_cut_only_beyond_its_limit() {
        let noted = |error: &str| note(&format!(r#"{{"v":1,"attempts":2,"error":"{error}"}}"#));
        for (bytes, is_cut) in [(1, false), (NOTE_BYTES - 2, false), (NOTE_BYTES - 1, true)] {
            let error = "x".repeat(bytes);
            let noted = noted(&error);
            assert_eq!(noted.ends_with('…'), is_cut, "{bytes} bytes: {noted}");
            assert_eq!(noted == format!("2 {error}"), !is_cut);
        }
        assert_eq!(note(r#"{"v":1}"#), "");
    }

    fn reply(rest: &[&str]) -> Reply {
        let words = ["ok", "1"].iter().chain(rest);
        let words = words.map(|word| Value::BulkString(word.as_bytes().to_vec()));
        Reply::parse(Value::Array(words.collect())).unwrap()
    }

    #[test]
    fn a_lease_that_is_repeated_is_that_of_the_job_before_even_if_it_does_not_parse() {
        let jobs = ["a", "1", "b", "2", "c", "3", "d", "4", "e", "5"];
        let read = |leases: &str, jobs: &[&str]| {
            let texts: Vec<&str> = [leases].into_iter().chain(jobs.iter().copied()).collect();
            let jobs = claimed_jobs(&mut reply(&texts))?;
            let told = jobs
                .iter()
                .map(|job| format!("{} {} {}", job.id, job.token, job.due.0));
            Ok::<_, crate::Error>(told.collect::<Vec<_>>())
        };
        let leases = "ab-1@group 1 7 500 -\n=\nnone of ours\n=\nab-1 1 7 600 -";
        let expected = ["a ab-1 500", "b ab-1 500", "e ab-1 600"];
        assert_eq!(read(leases, &jobs).unwrap(), expected);
        assert_eq!(read("", &[]).unwrap(), [""; 0]);
        for (leases, jobs) in [
            ("ab-1 1 7 500 -", &jobs[..4]),
            ("ab-1 1 7 500 -", &jobs[..1]),
            ("ab-1 1 7 500 -\n=", &jobs[..2]),
        ] {
            let error = read(leases, jobs).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Damaged);
        }
    }

    #[test]
    fn successors_that_are_pending_now_are_read_with_their_due_times() {
        let read = |rest: &[&str]| followers(&mut reply(rest)).unwrap();
        assert_eq!(read(&[]), []);
        assert_eq!(read(&[""]), []);
        assert_eq!(read(&["0 700 3 900"]), [(0, UnixMs(700)), (3, UnixMs(900))]);
        assert!(followers(&mut reply(&["0 soon"])).is_err());
    }

    #[test]
    fn jobs_that_go_back_and_their_successors_get_triggers() {
        use ReplyWord::{Buried, Cancelled, Done, Gone, Later, Superseded};
        let answers = [
            Done,
            Later(UnixMs(500)),
            Cancelled,
            Superseded,
            Cancelled,
            Buried(7),
            Gone,
        ];
        let followers = vec![(3, UnixMs(900)), (4, UnixMs(700)), (9, UnixMs(1))];
        let pending = to_arm(&answers.map(Answered::of), followers);
        let pending: Vec<_> = pending.iter().map(|answered| answered.answer).collect();
        let expected = [
            Done,
            Later(UnixMs(500)),
            Done,
            Later(UnixMs(900)),
            Later(UnixMs(700)),
            Buried(7),
            Gone,
        ];
        assert_eq!(pending, expected);
    }
}
