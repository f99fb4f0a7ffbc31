//! Several workers, graceful and hard stops, leases and their take-over.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, Handler, Job, JobState, NewJob, Notice, Outcome, RetryPolicy, Router,
    Source, Worker,
};
use keyfall_testing::proxies::FreezingProxy;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::log::Log;
use crate::runs::{Gate, PATIENCE, eventually, recorder};
use crate::site::{HOUR, Running, Site, ms};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A lease that survives ten seconds in which the machine stands still. A new worker leaves a
/// lapsed job to its owner for a third of this time.
pub(crate) const STEADY: Duration = Duration::from_secs(12);

/// A worker with a runtime of its own, which dies without notice: it hands no job back, and renews
/// no lease.
pub(crate) struct Mortal(Runtime);

impl Mortal {
    pub(crate) fn start(url: &str, router: Router, lease: Duration) -> Self {
        Mortal::start_telling(url, router, lease).0
    }

    /// The same worker, and its client.
    pub(crate) fn start_telling(
        url: &str,
        router: Router,
        lease: Duration,
    ) -> (Self, oneshot::Receiver<Client>) {
        Mortal::running(url, move |client| Worker::new(client, router).lease(lease))
    }

    /// Lets any worker die in the same way.
    pub(crate) fn running(
        url: &str,
        worker: impl FnOnce(Client) -> Worker + Send + 'static,
    ) -> (Self, oneshot::Receiver<Client>) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let url = url.to_owned();
        let (tell, told) = oneshot::channel();
        runtime.spawn(async move {
            let client = Client::connect(&url).await.unwrap();
            // The receiver may have ended.
            let _ = tell.send(client.clone());
            worker(client).run().await
        });
        (Mortal(runtime), told)
    }

    /// Takes the runtime away from under its handlers.
    pub(crate) fn die(self) {
        self.0.shutdown_background();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_share_the_work_and_run_each_job_once() {
    let here = Site::new("work-two").await;
    let there = Site::at(&here.url, "work-two").await;
    let ((log_here, mut runs_here), (log_there, mut runs_there)) = (recorder(), recorder());
    let start = |site: &Site, log: &crate::runs::Recorder| {
        let router = Router::new().route(&site.pattern(), log.done());
        Running::start(site.worker(router).concurrency(32))
    };
    let workers = [start(&here, &log_here), start(&there, &log_there)];
    // Some jobs over a while, and then a crowd at once.
    for crowd in 0..6_u64 {
        let calls = (0..500).map(|n| {
            let key = here.key(format_args!("{crowd}-{n}"));
            let delay = ms(300 + if crowd < 4 { n } else { 700 });
            here.client.schedule(key, "").after(delay).into_future()
        });
        try_join_all(calls).await.unwrap();
    }
    let stats = eventually("all done", async || {
        let stats = here.stats().await;
        (stats.done == 3000).then_some(stats)
    })
    .await;
    assert_eq!((stats.lapsed, stats.failed), (0, 0));
    for worker in workers {
        worker.stop().await;
    }
    let (ran_here, ran_there) = (runs_here.rest(), runs_there.rest());
    assert!(!ran_here.is_empty() && !ran_there.is_empty());
    let all = || ran_here.iter().chain(&ran_there);
    let different: HashSet<&str> = all().map(|job| job.key().id()).collect();
    assert_eq!((different.len(), all().count()), (3000, 3000));
    here.assert_balanced().await;
}

#[tokio::test]
async fn a_graceful_stop_lets_a_handler_finish_and_settles_its_job() {
    let site = Site::new("work-finish").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    site.client.schedule(site.key("runs"), "").await.unwrap();
    let job = runs.next().await;
    let stopping = worker.told_to_stop();
    // From now on no job begins.
    site.client.schedule(site.key("waits"), "").await.unwrap();
    tokio::task::yield_now().await;
    assert!(!stopping.is_finished());
    assert!(!job.cancellation().is_raised());
    gate.open();
    stopping.await.unwrap().unwrap();
    let stats = site.stats().await;
    assert_eq!(stats.leased, 0);
    assert_eq!(stats.done + stats.pending, 2, "{stats:?}");
    assert!(!job.cancellation().is_raised());
    site.client.cancel(site.key("waits")).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_handler_beyond_the_grace_is_stopped_and_its_job_handed_back() {
    let site = Site::new("work-grace").await;
    let (log, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), log.stuck().retry(RetryPolicy::none()));
    let worker = Running::start(site.worker(router.clone()).grace(ms(100)));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let job = runs.next().await;
    worker.stop().await;
    assert!(job.cancellation().is_raised());
    let view = site.view(&key).await;
    assert_eq!((view.state(), view.attempts()), (JobState::Pending, 0));
    assert_eq!(view.steps()[0].what, "returned");

    // The attempt did not count, so the next worker gets the job as attempt 1 of 1.
    let next = Running::start(
        site.worker(Router::new().route(&site.pattern(), log.done().retry(RetryPolicy::none()))),
    );
    let again = runs.next().await;
    assert_eq!(again.attempt(), 1);
    assert!(job.fence() < again.fence());
    assert_eq!(job.due(), again.due(), "it is still as late as it was");
    let stats = site.all_ended().await;
    assert_eq!((stats.returned, stats.done, stats.lapsed), (1, 1, 0));
    next.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_handler_that_stops_when_told_decides_the_outcome() {
    let site = Site::new("work-notice").await;
    let (log, mut runs) = recorder();
    let handler = log.until_stopped(|| Outcome::Done);
    let router = Router::new().route(&site.pattern(), handler);
    let worker = Running::start(site.worker(router).grace(ms(50)));
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.next().await;
    worker.stop().await;
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.returned), (1, 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn another_worker_continues_when_one_stops() {
    let site = Site::new("work-relay").await;
    let (log, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), log.done());
    let mut worker = site.serve(router.clone());
    for (number, key) in site.keys(60).enumerate() {
        let delay = ms(20 * number as u64);
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    for _ in 0..3 {
        runs.take(10).await;
        let next = site.serve(router.clone());
        worker.stop().await;
        worker = next;
    }
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (60, 0));
    worker.stop().await;
    assert_eq!(runs.rest().len(), 30);
    site.assert_balanced().await;
}

#[tokio::test]
async fn dropping_a_worker_stops_it_hard() {
    let site = Site::new("work-drop").await;
    let (log, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), log.stuck());
    let worker = Running::start(site.worker(router).lease(STEADY));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let job = runs.next().await;
    worker.drop_it().await;
    job.cancellation().raised().await;
    // The job was given back, or taken over if that call was lost.
    let router = Router::new().route(&site.pattern(), log.done());
    let next = Running::start(site.worker(router).lease(STEADY));
    assert!(job.fence() < runs.next().await.fence());
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.returned + stats.lapsed), (1, 1));
    next.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let site = Site::new("work-block").await;
    let (log, mut runs) = recorder();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let handler = async move |job: Job| {
        log.note(&job);
        // Blocks until the test releases it.
        let _ = blocked.lock().unwrap().recv();
    };
    let router = Router::new().route(&site.pattern(), handler);
    let worker = Running::start(site.worker(router.clone()).lease(STEADY));
    // Another worker would take the job over.
    let rival = Running::start(site.worker(router).lease(STEADY));
    site.client.schedule(site.key(1), "").await.unwrap();
    assert_eq!(runs.next().await.attempt(), 1);
    // Without renewals the lease would be over.
    site.passes(STEADY).await;
    drop(release);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 0));
    worker.stop().await;
    rival.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

/// A worker that waited for a sweep after each job would need six minutes: there are five a second.
#[tokio::test]
async fn a_worker_with_one_slot_takes_the_jobs_of_a_backlog_without_a_pause() {
    let site = Site::new("work-backlog").await;
    let jobs = site.keys(2000).map(|key| NewJob::new(key, ""));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let router = Router::new().route(&site.pattern(), async || {});
    let worker = Running::start(site.worker(router).concurrency(1));
    assert_eq!(site.all_ended().await.done, 2000);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_job_of_a_gone_worker_is_taken_over_as_another_attempt() {
    let site = Site::new("work-gone").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    let worker = Mortal::start(&site.url, stuck, STEADY);
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let first = runs.next().await;
    assert_eq!(first.attempt(), 1);
    worker.die();
    site.lapse(1).await;
    let router = Router::new().route(&site.pattern(), log.done());
    let next = Running::start(site.worker(router).lease(STEADY));
    let second = runs.next().await;
    assert_eq!((second.attempt(), second.source()), (2, Source::Reconciler));
    assert!(first.fence() < second.fence());
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 1));
    next.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_that_outlives_all_its_workers_ends_as_a_dead_letter() {
    let site = Site::new("work-killer").await;
    let (log, mut runs) = recorder();
    let policy = RetryPolicy::fixed(HOUR).unwrap().attempts(2);
    let router = Router::new().route(&site.pattern(), log.stuck().retry(policy));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    for attempt in 1..=2 {
        let worker = Mortal::start(&site.url, router.clone(), STEADY);
        assert_eq!(runs.next().await.attempt(), attempt);
        worker.die();
        site.lapse(1).await;
    }
    let worker = Running::start(site.worker(router).lease(STEADY));
    let dead = site.reaches(&key, JobState::Dead).await;
    let reason = dead.last_error().unwrap();
    assert!(reason.contains("its lease lapsed in attempt 2"), "{reason}");
    let stats = site.all_ended().await;
    assert_eq!((stats.dead, stats.lapsed), (1, 2));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancelled_or_superseded_lapsed_job_is_not_taken_over() {
    let site = Site::new("work-lapsed").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    let worker = Mortal::start(&site.url, stuck, STEADY);
    let (cancelled, superseded) = (site.key("cancelled"), site.key("superseded"));
    for key in [&cancelled, &superseded] {
        site.client.schedule(key, "first").await.unwrap();
    }
    runs.take(2).await;
    worker.die();
    site.client.cancel(&cancelled).await.unwrap();
    site.client.schedule(&superseded, "second").await.unwrap();
    for id in ["cancelled", "superseded"] {
        site.lapse(id).await;
    }
    let router = Router::new().route(&site.pattern(), log.done());
    let next = Running::start(site.worker(router).lease(STEADY));
    let job = runs.next().await;
    assert_eq!(job.key().id(), "superseded");
    assert_eq!((&job.payload()[..], job.attempt()), (&b"\"second\""[..], 1));
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.cancelled, stats.replaced), (1, 1, 1));
    next.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_claimed_too_late_for_its_lease_does_not_begin() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "work-late").await;
    let told = Log::read();
    // A client with such a long response timeout asks only once.
    let client = Client::builder(&proxy.url).response_timeout(PATIENCE);
    let client = client.connect().await.unwrap();
    let ((log, mut runs), (other_log, mut other_runs)) = (recorder(), recorder());
    let key = site.key(1);
    let router = Router::new()
        .route(&key, log.done().lease(SECOND))
        .route(&site.pattern(), log.done());
    let worker = Running::start(Worker::new(client, router));
    // Only the reply to the claim has the payload in it.
    proxy.freeze_at("held back");
    site.client.schedule(&key, "held back").await.unwrap();
    site.reaches(&key, JobState::Lapsed).await;
    let router = Router::new().route(&site.pattern(), other_log.done());
    let rival = Running::start(site.worker(router).lease(STEADY));
    assert_eq!(other_runs.next().await.attempt(), 2);
    site.all_ended().await;
    rival.stop().await;
    proxy.thaw();
    site.client.schedule(site.key("next"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "next");
    let lost = told.with("the lease was lost before the run began");
    assert_eq!(lost.len(), 1, "its claim was answered");
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (2, 1));
    worker.stop().await;
    runs.assert_no_more();
    other_runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_cancelled_before_its_claim_is_answered_does_not_begin() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "work-early").await;
    let client = Client::builder(&proxy.url).response_timeout(PATIENCE);
    let client = client.connect().await.unwrap();
    let (log, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), log.done());
    let worker = Running::start(Worker::new(client, router).lease(STEADY));
    let key = site.key(1);
    proxy.freeze_at("held back");
    site.client.schedule(&key, "held back").await.unwrap();
    site.reaches(&key, JobState::Running).await;
    let cancelled = site.client.cancel(&key).await.unwrap();
    assert_eq!(cancelled, Cancelled::Running);
    // By then the worker asks for its lease, and hears of the cancel.
    site.passes(STEADY / 3).await;
    proxy.thaw();
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.cancelled), (0, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_claimed_late_begins_when_its_lease_was_renewed() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "work-doubt").await;
    let told = Log::read();
    let client = Client::builder(&proxy.url).response_timeout(PATIENCE);
    let client = client.connect().await.unwrap();
    let ((log, mut runs), (other_log, mut other_runs)) = (recorder(), recorder());
    let router = Router::new().route(&site.pattern(), log.done());
    let worker = Running::start(Worker::new(client, router).lease(STEADY));
    for (id, is_lost) in [("lost", true), ("kept", false)] {
        let key = site.key(id);
        proxy.freeze_at("held back");
        site.client.schedule(&key, "held back").await.unwrap();
        site.reaches(&key, JobState::Running).await;
        if is_lost {
            // By its own clock, the worker still has the lease.
            site.lapse(id).await;
            let router = Router::new().route(&site.pattern(), other_log.done());
            let rival = Running::start(site.worker(router).lease(STEADY));
            assert_eq!(other_runs.next().await.attempt(), 2);
            site.all_ended().await;
            rival.stop().await;
        }
        site.passes(STEADY / 3).await;
        proxy.thaw();
        site.all_ended().await;
    }
    assert_eq!(runs.next().await.key().id(), "kept");
    let lost = told.with("the lease was lost before the run began");
    assert_eq!(lost.len(), 1);
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.lapsed), (2, 1));
    worker.stop().await;
    runs.assert_no_more();
    other_runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_that_lost_its_lease_ends_and_settles_nothing() {
    let site = Site::new("work-fenced").await;
    let ((log, mut runs), (other_log, mut other_runs)) = (recorder(), recorder());
    let gate = Gate::closed();
    let worker = Running::start(
        site.worker(Router::new().route(&site.pattern(), log.stuck()))
            .lease(45 * SECOND),
    );
    site.client.schedule(site.key(1), "").await.unwrap();
    let first = runs.next().await;
    // The next renewal shows that the lease is lost.
    site.lapse(1).await;
    let rival = Running::start(
        site.worker(Router::new().route(&site.pattern(), other_log.behind(&gate)))
            .lease(STEADY),
    );
    let second = other_runs.next().await;
    assert_eq!(second.attempt(), 2);
    let raised = first.cancellation().raised();
    tokio::time::timeout(PATIENCE, raised).await.unwrap();
    worker.stop().await;
    let stats = site.stats().await;
    assert_eq!((stats.leased, stats.returned, stats.lapsed), (1, 0, 1));
    gate.open();
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 1));
    rival.stop().await;
    runs.assert_no_more();
    other_runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_worker_whose_thread_hangs_does_not_respond() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "hung").await;
    let (enter, mut entered) = mpsc::unbounded_channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    // It runs on the thread of the worker.
    let hook = move |_: &Notice| {
        let _ = enter.send(());
        let _ = released.lock().unwrap().recv();
    };
    let route = format!("{}:it:other:*", site.app);
    let worker = site.worker(Router::new().route(&route, async || {}));
    let worker = worker.on_notice(hook);
    let readiness = worker.readiness();
    let responds = async |time| timeout(time, readiness.responds()).await.is_ok();
    assert!(!responds(SECOND / 10).await, "it does not run");
    let worker = Running::start(worker);
    worker.ready().await;
    assert!(responds(PATIENCE).await);

    // No worker has a route for it, and the notice of that enters the hook.
    site.client.schedule(site.key(1), &()).await.unwrap();
    timeout(PATIENCE, entered.recv()).await.unwrap();
    assert!(!responds(SECOND).await);
    drop(release);
    assert!(responds(PATIENCE).await);
    worker.stop().await;
}
