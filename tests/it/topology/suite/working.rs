//! Jobs with workers.

use std::collections::BTreeSet;
use std::time::SystemTime;

use futures_util::future::join_all;
use keyfall::{
    ArchiveTerms, Cancelled, Client, ErrorKind, Handler, Job, JobEnd, JobState, Kind, MissingKey,
    NewJob, Outcome, Placed, Requeued, RetryPolicy, Router, Shards, Worker,
};

use super::place::{Place, app_of, site};
use crate::runs::{Gate, Recorder, Runs, eventually, recorder};
use crate::site::{HOUR, Running, Site, assert_about, command, connect, ms};

/// A handler that notes the job, and fails if it is not due.
fn punctual(log: &Recorder) -> impl Handler<(Job,), ()> {
    log.then(|job| {
        if job.due() <= SystemTime::now() {
            Outcome::Done
        } else {
            Outcome::bury("it is not due")
        }
    })
}

/// The keys of this number of runs, each of another job.
async fn keys_of(runs: &mut Runs, count: usize) -> BTreeSet<String> {
    let jobs = runs.take(count).await;
    let keys: BTreeSet<String> = jobs.iter().map(|job| job.key().to_string()).collect();
    assert_eq!(keys.len(), count, "none runs twice");
    keys
}

/// Waits until each of these has run; the job of a repeated call may run twice.
async fn all_run(runs: &mut Runs, keys: &BTreeSet<String>) {
    let mut seen = BTreeSet::new();
    while !keys.is_subset(&seen) {
        seen.insert(runs.next().await.key().to_string());
    }
}

/// This number of jobs of each of some kinds, which are on different servers if there are several.
fn of_some_kinds(site: &Site, count: usize) -> BTreeSet<String> {
    let all = (0..6).flat_map(|kind| (0..count).map(move |id| (kind, id)));
    let all = all.map(|(kind, id)| format!("{}:it:job{kind}:{id}", site.app));
    all.collect()
}

fn pattern_of(site: &Site) -> String {
    format!("{}:it:*:{{id}}", site.app)
}

pub(super) async fn jobs_run_once_and_not_before_they_are_due<P: Place>() {
    let site = site::<P>("due").await;
    let (log, mut runs) = recorder();
    let workers: Vec<Running> = (0..2)
        .map(|_| site.serve(Router::new().route(&pattern_of(&site), punctual(&log))))
        .collect();
    for worker in &workers {
        worker.ready().await;
    }
    let keys = of_some_kinds(&site, 30);
    let jobs = keys.iter().zip(0..).map(|(key, number)| {
        // Some jobs are due at once, the others within a second.
        NewJob::new(key, &number).after(ms(number * 37 % 1000))
    });
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    assert_eq!(keys_of(&mut runs, keys.len()).await, keys);
    let app = format!("{}:", site.app);
    eventually("all are settled", async || {
        let counts = site.client.count(&app).await.ok()?;
        (counts.pending + counts.running == 0).then_some(())
    })
    .await;
    let counts = site.client.count(&app).await.unwrap();
    assert_eq!(counts.dead, 0, "{counts:?}");
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    site.assert_balanced().await;
}

pub(super) async fn failures_are_retried_and_end_as_dead_letters<P: Place>() {
    let site = site::<P>("dead").await;
    let (log, mut runs) = recorder();
    let policy = RetryPolicy::fixed(ms(100)).unwrap().attempts(3);
    let handler = log.then(|_| Outcome::retry("not yet")).retry(policy);
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, &1).await.unwrap();
    let attempts: Vec<u32> = runs.take(3).await.iter().map(Job::attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    site.reaches(&key, JobState::Dead).await;
    let letters = site.client.dead_letters(&key).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert!(letters[0].last_error().unwrap().contains("not yet"));
    let requeued = site.client.requeue(&key).await.unwrap();
    assert!(matches!(requeued, Requeued::Requeued(_)), "{requeued:?}");
    runs.take(3).await;
    eventually("it is dead again", async || {
        (site.stats().await.buried == 2).then_some(())
    })
    .await;
    assert!(site.client.delete_dead_letter(&key).await.unwrap());
    worker.stop().await;
    runs.assert_no_more();
    let stats = site.stats().await;
    assert_eq!((stats.dead, stats.requeued, stats.deleted), (0, 1, 1));
    assert!(site.client.audit(&site.kind()).await.unwrap().is_clean());
    site.assert_balanced().await;
}

pub(super) async fn successors_follow_and_cancelled_runs_are_told_to_stop<P: Place>() {
    let site = site::<P>("meanwhile").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let kind = format!("{}:it:stops", site.app);
    let router = Router::new()
        .route(&site.pattern(), log.behind(&gate))
        .route(
            &format!("{kind}:{{id}}"),
            log.until_stopped(|| Outcome::Done),
        );
    let worker = site.serve(router);
    let (follows, stops) = (site.key(1), format!("{kind}:1"));
    site.client.schedule(&follows, &1).await.unwrap();
    site.client.schedule(&stops, &1).await.unwrap();
    runs.take(2).await;
    let next = site.client.schedule(&follows, &2).await.unwrap();
    assert_eq!(next.placed, Placed::Succeeds);
    let cancelled = site.client.cancel(&stops).await.unwrap();
    assert_eq!(cancelled, Cancelled::Running);
    gate.open();
    let second = runs.next().await;
    assert_eq!(second.key().as_str(), follows);
    assert_eq!(second.payload()[..], *b"2");
    site.all_ended().await;
    eventually("it has stopped", async || {
        let stats = site.client.stats(&kind).await.ok()?;
        (stats.leased == 0).then_some(())
    })
    .await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

pub(super) async fn paused_jobs_wait<P: Place>() {
    let site = site::<P>("paused").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&pattern_of(&site), log.done()));
    worker.ready().await;
    let app = format!("{}:", site.app);
    site.client.prefix(&app).pause().await.unwrap();
    let keys = of_some_kinds(&site, 3);
    for key in &keys {
        site.client.schedule(key, &1).await.unwrap();
    }
    // A job of another kind, which is not paused, runs; by then these jobs would have run, too.
    let beside = format!("{}x:it:job:1", site.app);
    let others = format!("{}x:it:*:{{id}}", site.app);
    let (other_log, mut other_runs) = recorder();
    let other = site.serve(Router::new().route(&others, other_log.done()));
    site.client.schedule(&beside, &1).await.unwrap();
    other_runs.next().await;
    runs.assert_no_more();
    site.client.prefix(&app).resume().await.unwrap();
    assert_eq!(keys_of(&mut runs, keys.len()).await, keys);
    worker.stop().await;
    other.stop().await;
    site.assert_balanced().await;
}

pub(super) async fn jobs_of_a_gone_worker_are_taken_over<P: Place>() {
    let site = site::<P>("left").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    // With connections of its own.
    let client = Client::connect(&site.url).await.unwrap();
    let dying = Running::start(Worker::new(client, stuck).lease(ms(2_000)));
    site.client.schedule(site.key(1), &1).await.unwrap();
    let first = runs.next().await;
    dying.drop_it().await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let second = runs.next().await;
    assert_eq!(second.key(), first.key());
    assert!(second.fence() > first.fence());
    let stats = site.all_ended().await;
    assert_eq!(stats.done, 1, "{stats:?}");
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

pub(super) async fn a_kind_gets_more_shards_under_load<P: Place>() {
    let site = site::<P>("shards").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), punctual(&log)));
    worker.ready().await;
    let waiting: BTreeSet<String> = (0..50).map(|id| site.key(format!("late{id}"))).collect();
    for key in &waiting {
        site.client.schedule(key, &1).after(HOUR).await.unwrap();
    }
    let mut seen = BTreeSet::new();
    for (round, shards) in [6, 2].into_iter().enumerate() {
        let keys: BTreeSet<String> = (0..60)
            .map(|id| site.key(format!("{round}-{id}")))
            .collect();
        let schedule = join_all(keys.iter().zip(0..).map(async |(key, number)| {
            let call = site.client.schedule(key, &number);
            call.after(ms(number * 17 % 700)).await.unwrap();
        }));
        let kind = site.kind();
        let (resharded, _) = tokio::join!(site.client.reshard(&kind, shards), schedule);
        assert_eq!(resharded.unwrap().to, shards);
        assert_eq!(keys_of(&mut runs, keys.len()).await, keys);
        seen.extend(keys);
        for key in &waiting {
            assert!(site.client.get(key).await.unwrap().is_some(), "{key}");
        }
    }
    for key in &waiting {
        site.client.fire_now(key).await.unwrap();
    }
    assert_eq!(keys_of(&mut runs, waiting.len()).await, waiting);
    let stats = site.all_ended().await;
    let all = (seen.len() + waiting.len()) as u64;
    assert_eq!((stats.accepted, stats.done, stats.dead), (all, all, 0));
    worker.stop().await;
    runs.assert_no_more();
    assert!(site.client.audit(&site.kind()).await.unwrap().is_clean());
    site.assert_balanced().await;
}

pub(super) async fn each_ended_job_leaves_one_record<P: Place>() {
    let site = site::<P>("records").await;
    let kind = Kind::parse(&site.kind()).unwrap();
    let terms = ArchiveTerms::new().payload(100);
    let archive = site.client.prefix(kind.as_str()).archive(terms);
    archive.await.unwrap();
    let (log, _runs) = recorder();
    let handler = log.then(|job| match job.attempt() {
        _ if job.key().id().starts_with("dead") => Outcome::bury("no"),
        _ => Outcome::Done,
    });
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    worker.ready().await;
    let schedule = async |id: String, delay| {
        let call = site.client.schedule(site.key(&id), &id).after(delay);
        call.await.unwrap();
    };
    for number in 0..20 {
        schedule(format!("done{number}"), ms(number * 13 % 200)).await;
        schedule(format!("dead{number}"), ms(number * 17 % 200)).await;
        schedule(format!("cancelled{number}"), HOUR).await;
        schedule(format!("cancelled{number}"), HOUR).await;
    }
    let prefix = site.key("cancelled");
    let cancelled = site.client.prefix(&prefix).cancel().await.unwrap();
    assert_eq!(cancelled.done, 20);
    let stats = site.all_ended().await;
    worker.stop().await;
    assert_eq!((stats.done, stats.buried, stats.replaced), (20, 20, 20));
    let ended = site.client.ended(&kind, Shards::All, 1000).await.unwrap();
    let count = |end| ended.jobs.iter().filter(|it| it.end == end).count();
    for end in [
        JobEnd::Done,
        JobEnd::Buried,
        JobEnd::Cancelled,
        JobEnd::Replaced,
    ] {
        assert_eq!(count(end), 20, "{end:?}");
    }
    for job in &ended.jobs {
        let id = format!("{:?}", job.key.id());
        assert_eq!(job.payload.as_deref(), Some(id.as_bytes()));
        assert_eq!(job.letter.is_some(), job.end == JobEnd::Buried);
    }
    assert_eq!(site.client.forget_ended(&kind, &ended).await.unwrap(), 80);
    assert_eq!(
        site.client
            .ended(&kind, Shards::All, 1000)
            .await
            .unwrap()
            .waiting,
        0
    );
    site.assert_balanced().await;
}

pub(super) async fn plain_keys_schedule_postpone_cancel_and_run<P: Place>() {
    let site = site::<P>("plain").await;
    let (log, mut runs) = recorder();
    let route = log.done().adopt(MissingKey::Cancel);
    let worker = site.serve(Router::new().route(&pattern_of(&site), route));
    if !P::ADOPTS {
        let error = worker.ended().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        return;
    }
    worker.ready().await;
    // Jobs of some kinds, which are on different servers if there are several.
    let keys = of_some_kinds(&site, 2);
    let does = async |key: &str, words: &str| {
        let mut redis = connect(&P::server_of(&site.url, key).await).await;
        let mut words = words.split(' ');
        let first = words.next().unwrap();
        let all: Vec<&str> = [first, key].into_iter().chain(words).collect();
        let _: redis::Value = command(&mut redis, &all).await;
    };
    for key in &keys {
        does(key, "SET first EX 900").await;
    }
    for key in &keys {
        let view = site.reaches(key, JobState::Pending).await;
        assert_eq!(&view.payload()[..], b"first");
        assert_about(view.due(), ms(900_000));
        does(key, "SET second EX 3600").await;
    }
    let is_deleted = |key: &str| key.ends_with(":0");
    for key in &keys {
        eventually("it is replaced and postponed", async || {
            let view = site.client.get(key).await.ok()??;
            (view.payload()[..] == b"second"[..]).then_some(())
        })
        .await;
        assert_about(site.view(key).await.due(), HOUR);
        does(
            key,
            if is_deleted(key) {
                "DEL"
            } else {
                "PEXPIRE 100"
            },
        )
        .await;
    }
    let (deleted, run): (BTreeSet<_>, BTreeSet<_>) =
        keys.iter().cloned().partition(|key| is_deleted(key));
    assert_eq!(keys_of(&mut runs, run.len()).await, run);
    for key in &deleted {
        eventually("it is cancelled", async || {
            site.client.get(key).await.ok()?.is_none().then_some(())
        })
        .await;
    }
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

pub(super) async fn a_restarted_node_loses_nothing<P: Place>() {
    let mut place = P::start().await;
    let site = Site::on(&place.url(), &app_of::<P>("again")).await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&pattern_of(&site), punctual(&log)));
    worker.ready().await;
    let keys = of_some_kinds(&site, 10);
    for key in &keys {
        site.client.schedule(key, &1).after(HOUR).await.unwrap();
    }
    place.start_again(&format!("{}:it:job0", site.app)).await;
    for key in &keys {
        eventually("it can be asked for", async || {
            let there = site.client.get(key).await.ok()?;
            assert!(there.is_some(), "{key} is lost");
            Some(())
        })
        .await;
    }
    for key in &keys {
        eventually("it is there, and made due", async || {
            let made = site.client.fire_now(key).await.ok()?;
            // If the answer to this call was lost, the job runs, or has run.
            Some(made)
        })
        .await;
    }
    all_run(&mut runs, &keys).await;
    let late: BTreeSet<String> = keys.iter().map(|key| format!("{key}-after")).collect();
    for key in &late {
        eventually("scheduled", async || {
            site.client.schedule(key, &1).after(ms(200)).await.ok()
        })
        .await;
    }
    all_run(&mut runs, &late).await;
    eventually("all are settled", async || {
        let counts = site.client.count(&format!("{}:", site.app)).await.ok()?;
        (counts.pending + counts.running == 0).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}
