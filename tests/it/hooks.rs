//! Hooks: they hear of jobs before these become dead letters, and of late starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use keyfall::embedded::Embedded;
use keyfall::target::{Pull, stream};
use keyfall::{
    DeadJob, ErrorKind, Handler, Job, JobState, LateJob, Outcome, RetryPolicy, Router, Settled,
    Worker,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::log::Log;
use crate::runs::{Gate, PATIENCE, eventually, recorder};
use crate::site::{HOUR, Running, Site, fails_slowly, ms};
use crate::workers::{Mortal, SECOND, STEADY};

/// The calls of a hook, in order.
struct Told<T>(mpsc::UnboundedReceiver<T>);

impl<T> Told<T> {
    #[track_caller]
    fn next(&mut self) -> impl Future<Output = T> {
        let caller = std::panic::Location::caller();
        async move {
            match timeout(PATIENCE, self.0.recv()).await {
                Ok(Some(told)) => told,
                _ => panic!("{caller}: nobody was told"),
            }
        }
    }

    /// Asserts that the hook heard no more.
    #[track_caller]
    fn assert_no_more(&mut self) {
        assert!(self.0.try_recv().is_err(), "told more than that");
    }
}

fn told<T>() -> (mpsc::UnboundedSender<T>, Told<T>) {
    let (tell, told) = mpsc::unbounded_channel();
    (tell, Told(told))
}

/// The worker with a hook that passes on its dead letters.
fn hears_dead(worker: Worker) -> (Worker, Told<DeadJob>) {
    let (tell, told) = told();
    let worker = worker.on_dead(move |job: DeadJob| {
        let tell = tell.clone();
        async move { tell.send(job).map_err(|_| "nobody listens") }
    });
    (worker, told)
}

fn hears_late(worker: Worker) -> (Worker, Told<LateJob>) {
    let (tell, told) = told();
    let worker = worker.on_late(move |job: LateJob| {
        // Late jobs can be told after the test has ended.
        let _ = tell.send(job);
        async {}
    });
    (worker, told)
}

/// A worker for jobs that are buried for the reason in their payload.
fn buries(site: &Site) -> Worker {
    let bury = async |job: Job| Outcome::bury(String::from_utf8_lossy(job.payload()).into_owned());
    site.worker(Router::new().route(&site.pattern(), bury))
}

#[tokio::test]
async fn the_hook_gets_the_details_before_the_job_is_dead() {
    let site = Site::new("hook-dead").await;
    let client = site.client.clone();
    let (tell, mut told) = told();
    let worker = buries(&site).on_dead(move |job: DeadJob| {
        let (client, tell) = (client.clone(), tell.clone());
        async move {
            let state = client.get(job.key()).await.unwrap().unwrap().state();
            tell.send((job, state)).unwrap();
        }
    });
    let before = SystemTime::now() - ms(5_000);
    let worker = Running::start(worker);
    let key = site.key("a");
    let schedule = site.client.schedule_bytes(&key, "no such order");
    schedule.header("tenant", "7").await.unwrap();

    let (job, state) = told.next().await;
    assert_eq!(state, JobState::Running);
    assert_eq!(job.key().as_str(), key);
    assert_eq!((job.reason(), job.attempts()), ("no such order", 1));
    assert_eq!(&job.payload()[..], b"no such order");
    assert_eq!(job.headers().get("tenant"), Some("7"));
    assert!(job.due() > before && job.first_scheduled_at().unwrap() > before);
    assert!(job.lag().unwrap() < PATIENCE);
    let process = format!(":{}", std::process::id());
    assert!(job.instance().ends_with(&process), "{}", job.instance());
    assert!(job.idempotency_key().starts_with(&format!("{key}@")));
    site.reaches(&key, JobState::Dead).await;

    // It dies again, and that is another death.
    site.client.requeue(&key).await.unwrap();
    let (again, _) = told.next().await;
    assert_ne!(again.idempotency_key(), job.idempotency_key());
    site.all_ended().await;
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_hook_gets_the_last_error_of_a_job_without_attempts() {
    let site = Site::new("hook-used-up").await;
    let count = Arc::new(AtomicUsize::new(0));
    let fail = async move || {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        Err::<(), _>(format!("refused {number}"))
    };
    let policy = RetryPolicy::fixed(ms(1)).unwrap().attempts(3);
    let router = Router::new().route(&site.pattern(), fail.retry(policy));
    let (worker, mut told) = hears_dead(site.worker(router));
    let worker = Running::start(worker);
    site.client.schedule(site.key("a"), &1).await.unwrap();
    let job = told.next().await;
    assert_eq!((job.reason(), job.attempts()), ("refused 3", 3));
    assert_eq!(site.all_ended().await.dead, 1);
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_next_worker_reports_a_job_that_killed_its_worker() {
    let site = Site::new("hook-lapsed").await;
    let (recorder, mut runs) = recorder();
    let policy = fails_slowly().attempts(1);
    let router = Router::new().route(&site.pattern(), recorder.stuck().retry(policy));
    let first = Mortal::start(&site.url, router.clone(), SECOND);
    site.client.schedule(site.key("a"), &1).await.unwrap();
    runs.next().await;
    first.die();
    let (worker, mut told) = hears_dead(site.worker(router));
    let worker = Running::start(worker);
    let job = told.next().await;
    assert!(job.reason().contains("lapsed in attempt 1"), "{job:?}");
    assert_eq!((job.attempts(), job.lag()), (1, None));
    assert_eq!(site.all_ended().await.dead, 1);
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_hook_gets_the_known_facts_of_an_unreadable_record() {
    let site = Site::new("hook-unread").await;
    let key = site.key("a");
    site.client.schedule(&key, &1).after(ms(300)).await.unwrap();
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let _: u32 = site.command(&["HSET", &shadow, "a", "not ours"]).await;
    let (worker, mut told) = hears_dead(buries(&site));
    let worker = Running::start(worker);
    let job = told.next().await;
    assert!(job.reason().contains("damaged"), "{}", job.reason());
    assert_eq!((job.key().as_str(), job.attempts()), (&*key, 1));
    assert_eq!(job.first_scheduled_at(), None);
    assert!(job.payload().is_empty() && job.headers().is_empty());
    assert_eq!(site.all_ended().await.dead, 1);
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_hook_hears_of_a_pulled_job_that_its_consumer_buries() {
    let site = Site::new("hook-pull").await;
    let pull = Pull::new();
    let router = Router::new().route(&site.pattern(), pull.clone());
    let client = site.client.clone();
    let (tell, mut told) = told();
    let worker = site.worker(router).on_dead(move |job: DeadJob| {
        let (client, tell) = (client.clone(), tell.clone());
        async move {
            let state = client.get(job.key()).await.unwrap().unwrap().state();
            tell.send((job, state)).unwrap();
        }
    });
    let worker = Running::start(worker);
    site.client.schedule(site.key("a"), &7).await.unwrap();
    let mut jobs = pull.pull(&[""; 0], 1, PATIENCE).await.unwrap();
    let (_, lease) = jobs.pop().unwrap().accept().unwrap();
    let outcome = Outcome::bury("unknown account");
    let settled = site.client.settle(&lease, outcome.clone()).await.unwrap();
    assert!(matches!(settled, Settled::Buried(_)), "{settled:?}");
    let (job, state) = told.next().await;
    assert_eq!(state, JobState::Running);
    assert_eq!((job.reason(), job.attempts()), ("unknown account", 1));
    assert_eq!((&job.payload()[..], job.lag()), (&b"7"[..], None));

    // A job of a lost lease, or a cancelled job, is not reported.
    let settled = site.client.settle(&lease, outcome.clone()).await.unwrap();
    assert_eq!(settled, Settled::Gone);
    site.client.schedule(site.key("b"), &8).await.unwrap();
    let mut jobs = pull.pull(&[""; 0], 1, PATIENCE).await.unwrap();
    let (_, lease) = jobs.pop().unwrap().accept().unwrap();
    site.client.cancel(site.key("b")).await.unwrap();
    let settled = site.client.settle(&lease, outcome).await.unwrap();
    assert_eq!(settled, Settled::Cancelled);
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_hook_hears_of_an_unacknowledged_stream_entry() {
    let site = Site::new("hook-stream").await;
    let name = format!("{}-stream", site.app);
    let target = stream(&site.url, &name).acknowledged("closers");
    let route = target.lease(STEADY).retry(fails_slowly().attempts(1));
    let (worker, mut told) = hears_dead(site.worker(Router::new().route(&site.pattern(), route)));
    let worker = Running::start(worker);
    site.client.schedule(site.key("a"), &1).await.unwrap();
    eventually("it is read", async || {
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", "closers", "one", "STREAMS", &name, ">"]);
        // The call fails until the group exists.
        let read: redis::RedisResult<redis::Value> = read.query_async(&mut site.redis()).await;
        read.is_ok_and(|it| it != redis::Value::Nil).then_some(())
    })
    .await;
    // As if its consumer had been silent for an hour.
    let pending = ["XPENDING", &name, "closers", "-", "+", "1"];
    let pending: Vec<(String, String, u64, u64)> = site.command(&pending).await;
    let claim = ["XCLAIM", &name, "closers", "one", "0", &pending[0].0];
    let idle = ["IDLE", "3600000", "JUSTID"];
    let _: Vec<String> = site.command(&[&claim[..], &idle].concat()).await;
    let job = told.next().await;
    assert_eq!(job.reason(), "one has not acknowledged it within 12s");
    assert_eq!(site.all_ended().await.dead, 1);
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hook_hears_of_unrouted_jobs_when_they_are_buried() {
    // A server of its own, so there are no routes of other workers.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "hook-unrouted").await;
    let (worker, mut told) = hears_dead(buries(&site).bury_unrouted_after(SECOND));
    let worker = Running::start(worker);
    let other = format!("{}:it:other:1", site.app);
    site.client.schedule(&other, &"kept").await.unwrap();
    let job = told.next().await;
    assert_eq!((job.key().as_str(), job.attempts()), (&*other, 0));
    assert!(job.reason().contains("no live instance"), "{job:?}");
    assert_eq!((&job.payload()[..], job.lag()), (&b"\"kept\""[..], None));
    site.reaches(&other, JobState::Dead).await;
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hook_runs_again_after_a_crash_before_the_burial() {
    let site = Site::new("hook-crash").await;
    let route = async || Err::<(), _>("refused");
    let router = Router::new().route(&site.pattern(), route.retry(fails_slowly().attempts(1)));
    let (tell, mut first) = told();
    let (one, other) = (router.clone(), router);
    let (mortal, _) = Mortal::running(&site.url, move |client| {
        let worker = Worker::new(client, one).lease(STEADY);
        worker.on_dead(move |job: DeadJob| {
            let tell = tell.clone();
            async move {
                tell.send(job).unwrap();
                std::future::pending::<()>().await;
            }
        })
    });
    site.client.schedule(site.key("a"), &1).await.unwrap();
    let first = first.next().await;
    assert_eq!(first.reason(), "refused");
    mortal.die();
    site.lapse("a").await;
    let (worker, mut told) = hears_dead(site.worker(other).lease(STEADY));
    let worker = Running::start(worker);
    let second = told.next().await;
    assert_eq!(first.idempotency_key(), second.idempotency_key());
    assert_eq!((first.attempts(), second.attempts()), (1, 1));
    let stats = site.all_ended().await;
    assert_eq!((stats.dead, stats.buried, stats.lapsed), (1, 1, 1));
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_without_time_for_the_hook_leaves_the_burial_to_others() {
    let site = Site::new("hook-no-time").await;
    let (tell, mut first) = told();
    let worker = buries(&site).lease(STEADY).grace(Duration::ZERO);
    let worker = Running::start(worker.on_dead(move |job: DeadJob| {
        let tell = tell.clone();
        async move {
            tell.send(job).unwrap();
            std::future::pending::<()>().await;
        }
    }));
    site.client
        .schedule_bytes(site.key("a"), "no")
        .await
        .unwrap();
    let first = first.next().await;
    worker.stop().await;
    assert_eq!(
        site.view(first.key().as_str()).await.state(),
        JobState::Running
    );
    site.lapse("a").await;
    let (worker, mut told) = hears_dead(buries(&site).lease(STEADY));
    let worker = Running::start(worker);
    let second = told.next().await;
    assert_eq!(first.idempotency_key(), second.idempotency_key());
    assert_eq!(site.all_ended().await.dead, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_hooks_within_its_grace() {
    let site = Site::new("hook-grace").await;
    let (dead, late) = (Gate::closed(), Gate::closed());
    let (tell, mut began) = told();
    let (gate, say) = (dead.clone(), tell.clone());
    let worker = buries(&site).late_after(Duration::ZERO);
    let worker = worker.on_dead(move |_| {
        let (gate, tell) = (gate.clone(), say.clone());
        async move {
            tell.send("dead").unwrap();
            gate.passed().await;
        }
    });
    let gate = late.clone();
    let worker = worker.on_late(move |_| {
        let (gate, tell) = (gate.clone(), tell.clone());
        async move {
            tell.send("late").unwrap();
            gate.passed().await;
            tell.send("late ended").unwrap();
        }
    });
    let worker = Running::start(worker);
    site.client
        .schedule_bytes(site.key("a"), "no")
        .await
        .unwrap();
    let mut both = [began.next().await, began.next().await];
    both.sort_unstable();
    assert_eq!(both, ["dead", "late"]);
    let stop = worker.told_to_stop();
    assert!(!stop.is_finished());
    dead.open();
    site.reaches(&site.key("a"), JobState::Dead).await;
    assert!(!stop.is_finished(), "the other hook still runs");
    late.open();
    stop.await.unwrap().unwrap();
    assert_eq!(began.next().await, "late ended");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_hook_that_fails_panics_or_hangs_stops_no_burial() {
    let site = Site::new("hook-bad").await;
    let log = Log::read();
    let worker = buries(&site).hook_timeout(ms(100));
    let worker = Running::start(worker.on_dead(async |job: DeadJob| match job.key().id() {
        "fails" => Err("no pager"),
        "panics" => panic!("in the hook"),
        _ => std::future::pending().await,
    }));
    for (id, why) in [
        ("fails", "it failed: no pager"),
        ("panics", "it panicked"),
        ("hangs", "it took longer than 100ms"),
    ] {
        let key = site.key(id);
        site.client.schedule_bytes(&key, "no").await.unwrap();
        site.reaches(&key, JobState::Dead).await;
        let lines = log.with(why);
        assert!(
            lines.iter().any(|line| line.contains(&key)),
            "{key}: {lines:?}"
        );
    }
    assert_eq!(site.all_ended().await.buried, 3);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_hook_that_blocks_its_thread_stops_no_burial() {
    let site = Site::new("hook-blocks").await;
    // With a single reader, `tracing` asks only the first thread that logs a line whether a reader
    // wants it, and keeps the answer; and the test above reads the same line.
    let _log = Log::read();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    let worker = buries(&site).hook_timeout(ms(100));
    let worker = Running::start(worker.on_dead(move |_| {
        let blocked = blocked.clone();
        async move {
            // Blocks until the test has seen the letter.
            let _ = blocked.lock().unwrap().recv();
        }
    }));
    let key = site.key("a");
    site.client.schedule_bytes(&key, "no").await.unwrap();
    site.reaches(&key, JobState::Dead).await;
    drop(release);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_late_hook_hears_of_starts_beyond_the_limit_of_their_route() {
    let site = Site::new("hook-late").await;
    let kind = |biz: &str| format!("{}:late:{biz}", site.app);
    let pattern = |biz: &str| format!("{}:*", kind(biz));
    for biz in ["strict", "lax", "usual"] {
        let key = format!("{}:1", kind(biz));
        site.client.schedule(key, &1).await.unwrap();
    }
    // All jobs are late by then.
    eventually("late", async || {
        let view = site.view(&format!("{}:1", kind("usual"))).await;
        (view.due() + ms(50) < SystemTime::now()).then_some(())
    })
    .await;
    let (note, mut runs) = recorder();
    let router = Router::new()
        .route(&pattern("strict"), note.done().late_after(ms(20)))
        .route(&pattern("lax"), note.done().late_after(HOUR))
        .route(&pattern("usual"), note.done());
    let (worker, mut told) = hears_late(site.worker(router).late_after(HOUR));
    let worker = Running::start(worker);
    let runs = runs.take(3).await;
    let late = told.next().await;
    assert_eq!(late.key().kind(), kind("strict"));
    assert_eq!(late.limit(), ms(20));
    assert!(late.lag() > ms(50) && late.lag() == late.job().lag());
    let run = runs.iter().find(|run| run.key() == late.key()).unwrap();
    let own = run.idempotency_key();
    assert!(late.idempotency_key().starts_with(&format!("{own}-")));
    assert_eq!(late.untold(), 0);
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_makes_jobs_late_and_only_the_first_start_counts() {
    let site = Site::new("hook-first").await;
    let kind = site.kind();
    site.client.prefix(&kind).pause().await.unwrap();
    site.client.schedule(site.key("a"), &1).await.unwrap();
    let (note, mut runs) = recorder();
    let route = || Router::new().route(&site.pattern(), note.stuck().late_after(Duration::ZERO));
    let (tell, mut first) = told();
    let router = route();
    let (mortal, _) = Mortal::running(&site.url, move |client| {
        let worker = Worker::new(client, router).lease(STEADY);
        worker.on_late(move |job: LateJob| {
            tell.send(job).unwrap();
            async {}
        })
    });
    site.client.prefix(&kind).resume().await.unwrap();
    runs.next().await;
    assert_eq!(first.next().await.key().as_str(), site.key("a"));
    mortal.die();
    site.lapse("a").await;
    // A takeover starts the job again, and the hook does not hear of it.
    let (worker, mut told) = hears_late(site.worker(route()).lease(STEADY));
    let worker = Running::start(worker);
    assert_eq!(runs.next().await.attempt(), 2);
    worker.drop_it().await;
    told.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn late_starts_beyond_the_reported_ones_are_counted() {
    let site = Site::new("hook-crowd").await;
    let (note, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), note.done());
    let gate = Gate::closed();
    let (tell, mut told) = told();
    let hook_gate = gate.clone();
    let worker = site.worker(router).late_after(Duration::ZERO);
    let worker = Running::start(worker.on_late(move |job: LateJob| {
        let (gate, tell) = (hook_gate.clone(), tell.clone());
        async move {
            tell.send(job).unwrap();
            gate.passed().await;
        }
    }));
    for key in site.keys(300) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    // No handler waits for a hook.
    runs.take(300).await;
    site.all_ended().await;
    for _ in 0..256 {
        assert_eq!(told.next().await.untold(), 0);
    }
    told.assert_no_more();
    gate.open();
    let untold = eventually("told again", async || {
        site.client.schedule(site.key("next"), &1).await.unwrap();
        told.0.try_recv().ok().map(|job: LateJob| job.untold())
    })
    .await;
    assert!(untold >= 44, "{untold}");
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_late_limit_without_a_hook_is_refused() {
    let site = Site::new("hook-nobody").await;
    let router = || Router::new().route(&site.pattern(), (async || {}).late_after(SECOND));
    let error = site.worker(router()).run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    let text = error.to_string();
    assert!(
        text.contains("late_after") && text.contains("on_late"),
        "{text}"
    );
    let error = site.worker(Router::new().route(&site.pattern(), async || {}));
    let error = error.hook_timeout(Duration::ZERO).run().await.unwrap_err();
    assert!(error.to_string().contains("hook_timeout"), "{error}");
}

#[tokio::test]
async fn retries_and_jobs_of_the_past_are_late_only_from_their_creation() {
    let site = Site::new("hook-retry").await;
    let (note, mut runs) = recorder();
    let again = note.then(|job| match job.attempt() {
        1 => Outcome::retry_after(ms(20), "not yet"),
        _ => Outcome::Done,
    });
    let router = Router::new().route(&site.pattern(), again.late_after(HOUR));
    let (worker, mut told) = hears_late(site.worker(router));
    let worker = Running::start(worker);
    let past = SystemTime::now() - 2 * HOUR;
    let schedule = site.client.schedule(site.key("new"), &1);
    schedule.at(past).await.unwrap();
    let schedule = site.client.schedule(site.key("moved"), &1);
    schedule.after(HOUR).await.unwrap();
    let reschedule = site.client.reschedule(site.key("moved"));
    reschedule.at(past).await.unwrap();
    assert!(runs.take(4).await.iter().all(|run| run.lag() < HOUR));
    site.all_ended().await;
    worker.stop().await;
    told.assert_no_more();
    site.assert_balanced().await;
}
