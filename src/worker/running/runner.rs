//! The runner: runs one job, from the claim to the settlement.
//!
//! 1. It keeps the lease of the claimed job from now on.
//! 2. It looks at the plain key, for kinds that adopt keys, and may give the job back.
//! 3. It calls the handler, or hands the job to a client that pulls. A timeout, a stop of the
//!    worker or a lost lease ends the call early.
//! 4. It calls the hook for dead jobs, if the job is to be a dead letter.
//! 5. It posts the settlement, and keeps slot and lease until Redis has answered.
//!
//! A run whose lease is lost settles nothing: another worker has the job by then, or takes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::sleep;
use tracing::{Instrument, Span};

use super::leases::{LeaseGuard, Leases, Stop};
use super::slots::Slot;
use super::span;
use crate::client::{Durably, DyingJob};
use crate::durable::Reached;
use crate::durations::written;
use crate::ended::{self, Ended};
use crate::error::Result;
use crate::handler::{CancelSignal, Job, JobParts, PullPermit};
use crate::hooks::{Hooks, Start};
use crate::key::JobKey;
use crate::lateness::MaxLateness;
use crate::lease::Lease;
use crate::moment::Moment;
use crate::outcome::Outcome;
use crate::record::{Header, Record, RecordFault};
use crate::recurrence::{Recurring, RunEnd};
use crate::retry::RetryPolicy;
use crate::router::{RouteEntry, Routes};
use crate::settings::{FOREVER, LeaseLength, WorkerSettings};
use crate::source::Source;
use crate::store::{Answered, Claimed, Next, Settlement, Verb, When, Word};
use crate::time::{UnixMs, UnixUs};
use crate::worker::adopting::confirm::{ConfirmRound, KeyVerdict, Leased};
use crate::worker::finding::reconciler::Reconciler;
use crate::worker::notice::{Notice, Notices};
use crate::worker::served::ServedLedger;
use crate::worker::server_monitor::ServerMonitors;

/// How long a job whose record a newer version wrote is left to workers of that version.
const NOT_FOR_US: Duration = Duration::from_secs(30);

/// Runs claimed jobs, on the runtime of the worker's owner.
pub(crate) struct Runner {
    /// The runtime that handlers run on.
    pub(crate) handle: Handle,
    /// The routes, with their handlers.
    pub(crate) routes: Arc<Routes>,
    /// Renews the leases of the jobs that run.
    pub(crate) leases: Arc<Leases>,
    /// Told when a lease that a client took over will run out.
    pub(crate) reconciler: Arc<Reconciler>,
    /// Confirm jobs of plain keys before they run.
    pub(crate) monitors: Arc<ServerMonitors>,
    /// The settings of the worker, for everything that a route does not set itself.
    pub(crate) settings: WorkerSettings,
    /// The retry policy of jobs and routes without their own.
    pub(crate) default_policy: RetryPolicy,
    /// Reports dead jobs to the owner of the worker.
    pub(crate) notices: Notices,
    /// The hooks for dead and late jobs.
    pub(crate) hooks: Arc<Hooks>,
    /// Set at a stop: jobs that are claimed from now on go back at once.
    pub(crate) stopping: AtomicBool,
}

/// The times of a claim, by the clocks of this process and of the server.
#[derive(Clone, Copy)]
pub(crate) struct ClaimedAt {
    /// When the call was sent.
    pub(crate) sent: Moment,
    /// When its reply was read.
    pub(crate) received: Instant,
    /// The server's time of the claim.
    pub(crate) server: UnixUs,
    /// Length of the leases.
    pub(crate) lease: LeaseLength,
}

/// A claimed job, with its slot.
pub(crate) struct Begun {
    /// The claimed job, with its token and its record.
    pub(crate) job: Claimed,
    /// The right to run it; freed when its handler has ended.
    pub(crate) slot: Slot,
    /// The part that found the job.
    pub(crate) source: Source,
}

/// One job between its claim and its settlement.
struct JobRun {
    runner: Arc<Runner>,
    served: Arc<ServedLedger>,
    key: JobKey,
    /// The token of the lease, by which Redis knows this claim.
    token: Arc<str>,
    /// When the job was due.
    due: UnixMs,
    /// How late the job started; `None` before it has.
    lag: Option<Duration>,
    /// Attempts begun since the record was last written, this one included.
    claims: u32,
    /// The fencing number of this claim; handlers pass it on.
    fence: u64,
    source: Source,
    at: ClaimedAt,
    signal: CancelSignal,
    held: LeaseGuard,
    slot: Slot,
    /// Size of the stored record, in bytes.
    payload_bytes: usize,
    /// Whether the job must not run, because its plain key has changed.
    is_stale: bool,
}

impl Runner {
    /// Length of the leases of routes without their own.
    pub(crate) fn lease(&self) -> LeaseLength {
        self.settings.lease
    }

    /// Gives back all jobs that are claimed from now on.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Starts the jobs of one claim, each on the route of its slot. Jobs of kinds that adopt plain
    /// keys are confirmed first.
    pub(crate) fn start(
        self: &Arc<Self>,
        served: &Arc<ServedLedger>,
        begun: Vec<Begun>,
        at: ClaimedAt,
    ) {
        let runs = begun.into_iter();
        let runs: Vec<_> = runs
            .filter_map(|begun| self.hold(served, begun, at))
            .collect();
        if served.adopts && !runs.is_empty() {
            // Not on the runtime of the handlers: a handler that blocks would delay calls to Redis.
            tokio::spawn(confirm(self.clone(), runs));
        } else {
            self.run_all(runs);
        }
    }

    /// Spawns these jobs on the runtime of the handlers.
    fn run_all(&self, mut runs: Vec<(Box<JobRun>, Vec<u8>)>) {
        match runs.len() {
            0 => {}
            1 => drop(self.handle.spawn(run(runs.remove(0)))),
            // A spawn from within the runtime takes half the time of a spawn from outside.
            _ => drop(self.handle.spawn(async move {
                for job in runs {
                    tokio::spawn(run(job));
                }
            })),
        }
    }

    /// Starts to keep the lease of a job. `None` if no job can have its id.
    fn hold(
        self: &Arc<Self>,
        served: &Arc<ServedLedger>,
        begun: Begun,
        at: ClaimedAt,
    ) -> Option<(Box<JobRun>, Vec<u8>)> {
        let Begun { job, slot, source } = begun;
        let Some(key) = served.key(&job.id) else {
            // Only a person can have put it there. It stays leased, out of the way.
            tracing::error!(
                ledger = ?served, id = job.id,
                "the ledger holds an id that is not valid in a job key"
            );
            return None;
        };
        let signal = CancelSignal::new();
        if job.cancelled {
            signal.raise();
        }
        let held = self.leases.hold(
            served.ledger.clone(),
            key.clone(),
            job.token.clone(),
            at.sent,
            at.lease,
            signal.clone(),
        );
        if self.routes.routes[slot.route()].hands_on() {
            held.share();
        }
        let run = Box::new(JobRun {
            runner: self.clone(),
            served: served.clone(),
            key,
            token: job.token,
            due: job.due,
            lag: None,
            claims: job.claims,
            fence: job.fence,
            source,
            at,
            signal,
            held,
            slot,
            payload_bytes: job.record.len(),
            is_stale: false,
        });
        Some((run, job.record))
    }
}

/// Runs the jobs that their plain keys confirm, and gives the other jobs back.
async fn confirm(runner: Arc<Runner>, mut runs: Vec<(Box<JobRun>, Vec<u8>)>) {
    let mut round = ConfirmRound::AtOnce;
    while let Some((first, _)) = runs.first() {
        let served = first.served.clone();
        let jobs: Vec<_> = runs
            .iter()
            .map(|(run, _)| Leased {
                key: run.key.clone(),
                due: run.due,
            })
            .collect();
        let adopter = &runner.monitors.of(&served).adopter;
        let verdicts = adopter.confirm(&served, &jobs, round).await;
        let (mut judged, mut open) = (Vec::with_capacity(runs.len()), Vec::new());
        for ((mut run, record), verdict) in runs.into_iter().zip(verdicts) {
            run.is_stale = verdict == KeyVerdict::Back;
            match verdict {
                KeyVerdict::Open => open.push((run, record)),
                KeyVerdict::Run | KeyVerdict::Back => judged.push((run, record)),
            }
        }
        runner.run_all(judged);
        (runs, round) = (open, round.next());
    }
}

/// Runs a job, given with its record, in a span of its own.
fn run((run, record): (Box<JobRun>, Vec<u8>)) -> impl Future<Output = ()> + Send {
    let record = Record::parse(record);
    let before = record.as_ref().map_or(0, |record| record.header.attempts);
    let attempt = before.saturating_add(run.claims);
    let header = record.as_ref().ok().map(|record| &record.header);
    let span = span::run(&run.key, attempt, header);
    // Boxed: the future is large, and moved several times on its way into the runtime.
    Box::pin(run.run(record, attempt, span.clone())).instrument(span)
}

impl JobRun {
    /// Runs the job, and settles it unless its lease was lost.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an `async fn` has room for its arguments twice"
    )]
    fn run(
        mut self: Box<Self>,
        record: Result<Record, RecordFault>,
        attempt: u32,
        span: Span,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let Some(verb) = (match &record {
                Ok(record) => self.attempt(record, attempt, &span).await,
                Err(fault) => Some(unreadable(fault, attempt)),
            }) else {
                return;
            };
            span::ended(&span, &verb);
            self.slot.handler_ended();
            if self.has_told(&verb, record.as_ref().ok()).await {
                let next = match &record {
                    Ok(record) => ended::next(&record.header, &verb, self.end()),
                    Err(RecordFault::Newer(_)) => Next::Unknown,
                    Err(_) => Next::Nothing,
                };
                drop(record);
                if let Some(queued) = self.settle(verb, next, span) {
                    queued.await;
                }
            }
        }
    }

    /// The time of the server now, counted from the claim.
    fn now(&self) -> UnixUs {
        self.at.server.plus(self.at.received.elapsed())
    }

    /// The end of the run, now.
    fn end(&self) -> RunEnd {
        let clock = self.served.ledger.clock();
        let estimate = || self.now();
        RunEnd {
            now: clock.now().unwrap_or_else(estimate).floor_ms(),
            claimed: self.at.server.floor_ms(),
            due: self.due,
            random: rand::random(),
        }
    }

    /// Calls the hook for dead jobs if the job is to be a dead letter, while the lease is held.
    /// Returns `false` if there was no time for the hook: then another worker has to take the job
    /// and call the hook, and this one must not settle it.
    async fn has_told(&mut self, verb: &Verb, record: Option<&Record>) -> bool {
        let hooks = self.runner.hooks.clone();
        let Verb::Bury { header } = verb else {
            return true;
        };
        if !hooks.want_dead() {
            return true;
        }
        let letter = DyingJob {
            key: &self.key,
            header,
            due: self.due,
            lag: self.lag,
            record,
        };
        // A run that was asked to stop before has used up its time.
        if !self.held.stop.is_terminated() {
            tokio::select! {
                biased;
                () = hooks.dead(letter) => return true,
                _ = &mut self.held.stop => {}
            }
        }
        tracing::warn!(
            "the hook for dead letters was interrupted, because the worker stops or has lost the \
             lease; another worker takes the job over"
        );
        false
    }

    /// Runs the handler. `None` if there is nothing to settle: the lease was lost, or a client that
    /// pulls has accepted the job.
    async fn attempt(&mut self, record: &Record, attempt: u32, span: &Span) -> Option<Verb> {
        let runner = self.runner.clone();
        let route = &runner.routes.routes[self.slot.route()];
        let terms = &record.header.terms;
        let policy = &*terms.policy(route.retry.as_ref().unwrap_or(&runner.default_policy));
        let ended = Ended {
            header: &record.header,
            attempt,
            policy,
        };
        // The plan of a series has no work: it was kept for a while after the last member.
        if record.header.plan().is_some() {
            return Some(Verb::Done);
        }
        if let Some(reason) = &record.header.unusable {
            return Some(ended.bury(reason.clone()));
        }
        if let Some(open) = record.header.recur().filter(|recur| recur.is_open()) {
            return Some(ended.give_back_resolved(open.resolved(self.end())));
        }
        // Before a stop of the worker gives the job back: its lateness would count from then.
        let may_run = !self.is_stale && !self.signal.is_raised();
        if may_run && let Some(verb) = self.too_late(record, &ended, route) {
            return Some(verb);
        }
        if may_run && let Some(verb) = self.is_quiet(&ended, route) {
            return Some(verb);
        }
        // Another worker may have the job by now, or it may be cancelled.
        match self.held.ascertain().await {
            Ok(()) => {}
            Err(Stop::HandBack) => return Some(ended.give_back(self.due)),
            Err(Stop::Lost) => {
                tracing::warn!("the lease was lost before the run began");
                return None;
            }
        }
        // Cancelled before it began: the settlement notices that.
        if self.is_stale || self.signal.is_raised() || runner.stopping.load(Ordering::Acquire) {
            return Some(ended.give_back(self.due));
        }
        // The previous attempts ended with the death of their worker or the loss of their lease.
        if self.claims > 1 && attempt > policy.max_attempts() {
            let begun = Ended {
                attempt: attempt - 1,
                ..ended
            };
            return Some(begun.bury(format!(
                "its lease lapsed in attempt {}, which was its last: did the job crash its worker?",
                begun.attempt
            )));
        }
        let usual_limit = route.timeout.unwrap_or(runner.settings.timeout);
        let mut limit = terms.timeout().unwrap_or(usual_limit);
        if let Some(recurring) = record.header.recur() {
            let now = self.now().floor_ms();
            let room = recurring.replaced_at(now).map(|next| next.since(now));
            limit = room.map_or(limit, |room| room.min(limit));
        }
        let job = self.job(record, attempt, policy, (limit, usual_limit), route);
        self.lag = Some(job.lag());
        self.tell_late(route, &job);
        let meter = self.served.ledger.meter();
        meter.begun(self.source, job.lag(), attempt);
        self.served.ledger.run_begins(job.lag());
        span::begun(span, &job);
        if let Some(place) = self.slot.take_place() {
            let is_theirs = self.hand_over(place, job, self.at.lease).await;
            return (!is_theirs).then(|| ended.give_back(self.due));
        }
        tracing::debug!(source = ?self.source, lag = ?job.lag(), "started");
        let began = Instant::now();
        let handed_out = route.hands_over.then(|| job.lease().clone());
        if let Some(lease) = &handed_out {
            // Before the handler passes the job on: its receiver may settle it quickly.
            self.slot.hand_out(lease.clone(), self.at.lease.0);
        }
        let called = self.call(route, limit, self.at.lease.notice(), job).await;
        self.served.ledger.meter().ran(began.elapsed());
        if let Some(lease) = handed_out
            && called != Ok(Outcome::HandedOver)
        {
            self.slot.take_back(&lease);
        }
        match called {
            Ok(outcome) => {
                tracing::debug!(?outcome, "ended");
                ended.verb(outcome, rand::random())
            }
            Err(Stop::HandBack) => {
                tracing::info!("the job is given back, because the worker stops");
                Some(ended.give_back(self.due))
            }
            Err(Stop::Lost) => {
                tracing::warn!("the lease was lost, and the run was cancelled");
                span::lost(span);
                None
            }
        }
    }

    /// The settlement of a run that exceeds its limit of lateness, and so does not begin. A run that
    /// another worker has begun goes on, however late it is.
    fn too_late(&self, record: &Record, ended: &Ended<'_>, route: &RouteEntry) -> Option<Verb> {
        if self.claims > 1 {
            return None;
        }
        let own = record.header.terms.max_lateness;
        let of_rule = || record.header.recur()?.max_lateness();
        let MaxLateness { limit, then } = own.or_else(of_rule).or(route.max_lateness)?;
        // It could have begun when a worker gave it back, and may have.
        let since = record
            .given_back_at()
            .map_or(self.due, |at| at.max(self.due));
        let late = self.now().since(since);
        if late <= limit {
            return None;
        }
        let seconds = |time: Duration| written(&Duration::from_secs(time.as_secs()));
        let (late, limit) = (seconds(late), seconds(limit));
        let verb = ended.too_late(
            then,
            format!("{late} late, and the limit is {limit}"),
            rand::random(),
        )?;
        tracing::warn!(late, limit, %then, "the run is too late");
        Some(verb)
    }

    /// The settlement of a job that does not start now, because the hours of its route are quiet.
    fn is_quiet(&self, ended: &Ended<'_>, route: &RouteEntry) -> Option<Verb> {
        ended.quieted(route.quiet.as_ref()?.at_start(self.now().floor_ms()))
    }

    /// Calls the hook for late jobs if this start is late. Of several starts for the same due time,
    /// only the first counts.
    fn tell_late(&self, route: &RouteEntry, job: &Job) {
        let limit = route.late_after.or(self.runner.settings.late_after);
        if let Some(limit) = limit
            && self.claims == 1
            && job.lag() > limit
        {
            self.runner.hooks.late(Start { job, limit });
        }
    }

    /// The job as its handler sees it.
    fn job(
        &self,
        record: &Record,
        attempt: u32,
        policy: &RetryPolicy,
        (limit, usual_limit): (Duration, Duration),
        route: &RouteEntry,
    ) -> Job {
        Job::new(JobParts {
            key: self.key.clone(),
            payload: match record.header.recur() {
                Some(recurring) => recurring.payload(&record.payload),
                None => record.payload.clone(),
            },
            due: self.due.to_system(),
            lag: self.now().since(self.due),
            attempt,
            max_attempts: policy.max_attempts(),
            policy: policy.clone(),
            limit,
            usual_limit,
            first_scheduled_at: record.first_scheduled_at(),
            occurrence: record.header.recur().map(Recurring::view),
            fence: self.fence,
            source: self.source,
            headers: record.header.headers.clone(),
            names: route.names.clone(),
            cancellation: self.signal.clone(),
            lease: Lease::new(self.key.clone(), self.token.clone()),
        })
    }

    /// Hands the job to a client that pulls, and keeps its lease until the client accepts it.
    /// Returns whether there is nothing left to settle: the client has the job, or the lease is
    /// lost. `false` if nobody took it.
    async fn hand_over(&mut self, place: PullPermit, job: Job, length: LeaseLength) -> bool {
        let lease = job.lease().clone();
        // Before the client has the job: it may settle it quickly.
        self.slot.hand_out(lease.clone(), length.0);
        let (is_theirs, length) =
            match place.deliver(job, lease.clone(), length.0, self.held.proof()) {
                None => (false, None),
                Some(mut accepted) => tokio::select! {
                    biased;
                    accepted = &mut accepted => (accepted.is_ok(), accepted.ok().flatten()),
                    stop = &mut self.held.stop => {
                        // The client may have taken it just now; after this it cannot.
                        accepted.close();
                        let accepted = accepted.try_recv();
                        let is_theirs = is_out_of_our_hands(accepted.is_ok(), stop.ok());
                        (is_theirs, accepted.ok().flatten())
                    }
                },
            };
        if let Some(length) = length {
            self.slot.hand_on(&lease, length);
            self.held.run_out(LeaseLength(length)).await;
            self.runner.reconciler.expect_in(&self.served, length);
        }
        if !is_theirs {
            self.slot.take_back(&lease);
            tracing::debug!("the job is given back, because no consumer took it");
        }
        is_theirs
    }

    /// Calls the handler. A panic is a failed attempt, and so is a run that takes longer than
    /// `limit`. After that, or a stop, the handler gets `notice` to end.
    ///
    /// # Errors
    /// If the run has no outcome: the lease was lost, or the job goes back.
    async fn call(
        &mut self,
        route: &RouteEntry,
        limit: Duration,
        notice: Duration,
        job: Job,
    ) -> Result<Outcome, Stop> {
        let call = route.handler.call_and_catch(job);
        let mut call = std::pin::pin!(call);
        let why = tokio::select! {
            biased;
            outcome = &mut call => return Ok(outcome),
            stop = &mut self.held.stop => Some(stop.unwrap_or(Stop::Lost)),
            () = sleep(limit) => None,
        };
        self.signal.raise();
        if why == Some(Stop::Lost) {
            return Err(Stop::Lost);
        }
        // After a stop request, a handler may still return its outcome.
        let lost = async {
            match why {
                None => (&mut self.held.stop).await.unwrap_or(Stop::Lost),
                Some(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = call => Ok(outcome),
            stop = lost => Err(stop),
            () = sleep(notice) => match why {
                Some(stop) => Err(stop),
                None => Ok(Outcome::timed_out(limit)),
            }
        }
    }

    /// Posts the settlement to the batcher of the ledger. The slot and the lease are kept until the
    /// answer; nothing else waits for it. A future is returned if the queue is full.
    fn settle(
        self: Box<Self>,
        verb: Verb,
        next: Next,
        span: Span,
    ) -> Option<BoxFuture<'static, ()>> {
        let reason = match &verb {
            Verb::Bury { header } => Header::reason(header),
            _ => None,
        };
        let settlement = Settlement {
            key: self.key.clone(),
            token: self.token.clone(),
            verb,
            next,
            payload_bytes: self.payload_bytes,
        };
        let served = self.served.clone();
        let durable = self.runner.routes.routes[self.slot.route()].durable;
        let until = Instant::now() + FOREVER;
        match durable {
            None => {
                let told = move |answer| span.in_scope(|| self.settled(answer, reason));
                served.settles.post(settlement, until, told)
            }
            Some(durable) => {
                let told = move |answer| span.in_scope(|| self.settled_durably(answer, reason));
                let item = settlement;
                let durably = Durably { item, durable };
                served.durable_settles.post(durably, until, told)
            }
        }
    }

    /// Takes in the answer to a durable settlement.
    fn settled_durably(
        self: Box<Self>,
        answer: Result<(Answered, Result<Reached>)>,
        reason: Option<String>,
    ) {
        match &answer {
            Ok((_, Ok(reached))) => tracing::debug!(?reached),
            Ok((_, Err(error))) => tracing::warn!(%error, "the end of this run may not be durable"),
            Err(_) => {}
        }
        self.settled(answer.map(|(answered, _)| answered), reason);
    }

    /// Takes in the answer to a settlement.
    fn settled(self: Box<Self>, answer: Result<Answered>, reason: Option<String>) {
        match answer {
            Ok(answered) => match answered.answer {
                Word::Gone | Word::Foreign => {
                    tracing::warn!(
                        answer = ?answered.answer,
                        "the run ended too late: this worker no longer has the lease"
                    );
                }
                Word::Buried(letter) => self.tell_buried(letter, reason.unwrap_or_default()),
                answer => tracing::debug!(?answer, "settled"),
            },
            Err(error) => tracing::error!(
                %error,
                "Redis could not be told about the end of this run; the job will run again"
            ),
        }
    }

    /// Sends the notice of a dead job. On the runtime of the handlers, not on the thread that
    /// renews leases, because a hook may be slow.
    fn tell_buried(self: Box<Self>, letter: u64, reason: String) {
        let handle = self.runner.handle.clone();
        handle.spawn(
            async move {
                self.runner.notices.tell(&Notice::Buried {
                    key: self.key.clone(),
                    letter,
                    reason,
                });
            }
            .in_current_span(),
        );
    }
}

/// The settlement of a job whose record a newer version of Keyfall wrote.
pub(in crate::worker) fn left_to_newer(version: u32) -> Verb {
    tracing::warn!(
        version,
        "a newer version of Keyfall wrote this job; this worker leaves it to newer workers"
    );
    Verb::Later {
        when: When::After(NOT_FOR_US),
        header: String::new(),
        step: "returned",
    }
}

/// The settlement of a job whose record this worker cannot read.
fn unreadable(fault: &RecordFault, attempt: u32) -> Verb {
    if let RecordFault::Newer(version) = fault {
        return left_to_newer(*version);
    }
    tracing::error!(%fault, "the job cannot run, and becomes a dead letter");
    let mut header = Header::default();
    header.attempts = attempt;
    header.error = Some(fault.to_string());
    Verb::Bury {
        header: header.to_line().into_owned(),
    }
}

/// Whether a stop leaves nothing to settle of a job that is on its way to a client: the client has
/// taken the job at the last moment, or the lease is lost.
fn is_out_of_our_hands(is_accepted: bool, stop: Option<Stop>) -> bool {
    is_accepted || stop != Some(Stop::HandBack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_back_if_the_worker_stops_and_no_client_has_taken_it() {
        assert!(!is_out_of_our_hands(false, Some(Stop::HandBack)));
        assert!(is_out_of_our_hands(true, Some(Stop::HandBack)));
        for stop in [Some(Stop::Lost), None] {
            assert!(is_out_of_our_hands(false, stop) && is_out_of_our_hands(true, stop));
        }
    }
}
