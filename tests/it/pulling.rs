//! Consumers that pull: jobs wait in the ledger until a consumer pulls them, and then belong to it.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use keyfall::target::{Pull, Pulled};
use keyfall::{
    ErrorKind, Extended, Handler, Job, JobState, Lease, NewJob, Outcome, RetryPolicy, Router,
    Settled,
};

use crate::runs::{PATIENCE, eventually, recorder};
use crate::site::{HOUR, Running, Site, ms, redis_time};
use crate::workers::{Mortal, SECOND, STEADY};

/// A worker whose jobs of the usual kind are pulled.
fn pulled(site: &Site, pull: &Pull) -> Running {
    site.serve(Router::new().route(&site.pattern(), pull.clone()))
}

/// Waits for jobs of any kind.
async fn next(pull: &Pull, most: usize) -> Vec<Pulled> {
    pull.pull(&[""; 0], most, PATIENCE).await.unwrap()
}

/// The one job that is due.
async fn one(pull: &Pull) -> (Job, Lease) {
    let mut all = next(pull, 1).await;
    assert_eq!(all.len(), 1);
    all.pop().unwrap().accept().unwrap()
}

#[tokio::test]
async fn a_job_waits_until_it_is_pulled_and_is_settled_by_its_lease() {
    let site = Site::new("pull-one").await;
    let pull = Pull::new();
    let worker = pulled(&site, &pull);
    let key = site.key("a");
    let headers = site.client.schedule(&key, "hello").header("tenant", "7");
    headers.await.unwrap();
    // A consumer that waits would have got the job by now.
    site.client
        .schedule(site.key("b"), "")
        .after(HOUR)
        .await
        .unwrap();
    assert_eq!(site.view(&key).await.state(), JobState::Pending);

    let (job, lease) = one(&pull).await;
    assert_eq!(job.key().to_string(), key);
    assert_eq!((&job.payload()[..], job.attempt()), (&b"\"hello\""[..], 1));
    assert_eq!(job.headers().get("tenant"), Some("7"));
    assert_eq!(site.view(&key).await.state(), JobState::Running);

    // The lease is a text, which any process can present.
    let lease: Lease = lease.to_string().parse().unwrap();
    let other = Site::at(&site.url, "pull-one").await;
    assert_eq!(
        other.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Gone
    );
    assert_eq!(
        site.client.extend(&lease, SECOND).await.unwrap(),
        Extended::Gone
    );
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.pending, stats.leased), (1, 1, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_waiting_pull_is_served_when_a_job_falls_due() {
    let site = Site::new("pull-wait").await;
    let pull = Pull::new();
    let worker = pulled(&site, &pull);
    let waiting = tokio::spawn({
        let pull = pull.clone();
        async move { one(&pull).await }
    });
    site.client
        .schedule(site.key("a"), "")
        .after(ms(300))
        .await
        .unwrap();
    let (job, lease) = waiting.await.unwrap();
    assert_eq!(job.key().id(), "a");
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    // No consumer waits, and no job comes.
    assert!(pull.pull(&[""; 0], 5, ms(50)).await.unwrap().is_empty());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_pull_gets_only_the_requested_kinds_and_number() {
    let site = Site::new("pull-kinds").await;
    let pull = Pull::new();
    let worker = site.serve(Router::new().route(&format!("{}:*:*:*", site.app), pull.clone()));
    let key = |module: &str, id: usize| format!("{}:{module}:job:{id}", site.app);
    let jobs = (0..20).map(|id| NewJob::new(key(if id % 2 == 0 { "even" } else { "odd" }, id), ""));
    assert!(
        site.client
            .schedule_many(jobs)
            .await
            .iter()
            .all(Result::is_ok)
    );

    let wanted = [format!("{}:odd", site.app)];
    let mut odd = Vec::new();
    while odd.len() < 10 {
        let got = pull.pull(&wanted, 4, PATIENCE).await.unwrap();
        assert!((1..=4).contains(&got.len()), "{got:?}");
        odd.extend(got.into_iter().map(|pulled| pulled.accept().unwrap()));
    }
    assert!(
        odd.iter()
            .all(|(job, _)| job.key().as_str().contains(":odd:"))
    );
    assert!(pull.pull(&wanted, 4, ms(50)).await.unwrap().is_empty());
    let even = pull
        .pull(&[format!("{}:even:job", site.app)], 100, PATIENCE)
        .await
        .unwrap();
    assert_eq!(even.len(), 10);
    let leases = odd
        .into_iter()
        .chain(even.into_iter().map(|pulled| pulled.accept().unwrap()));
    for (_, lease) in leases {
        assert_eq!(
            site.client.settle(&lease, Outcome::Done).await.unwrap(),
            Settled::Done
        );
    }
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_unaccepted_job_goes_back_at_once_and_uses_no_attempt() {
    let site = Site::new("pull-back").await;
    let pull = Pull::new();
    let router = Router::new().route(&site.pattern(), pull.clone().lease(HOUR));
    let worker = site.serve(router);
    site.client.schedule(site.key("a"), "").await.unwrap();
    for _ in 0..3 {
        let dropped = next(&pull, 1).await;
        assert_eq!(dropped[0].job().attempt(), 1);
        assert_eq!(dropped[0].lease_length(), HOUR);
    }
    // A consumer that goes away while it waits costs no attempt either.
    for _ in 0..50 {
        let waiting = tokio::spawn({
            let pull = pull.clone();
            async move { drop(next(&pull, 1).await) }
        });
        tokio::task::yield_now().await;
        waiting.abort();
    }
    let (job, lease) = one(&pull).await;
    assert_eq!(job.attempt(), 1);
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_lapsed_lease_delivers_again_and_its_late_holder_is_refused() {
    let site = Site::new("pull-lapse").await;
    let pull = Pull::new();
    let router = Router::new().route(&site.pattern(), pull.clone().lease(STEADY));
    let worker = site.serve(router);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let (first, lapsed) = one(&pull).await;
    site.lapse("a").await;
    site.sweep().await;
    let (second, lease) = one(&pull).await;
    assert_eq!((first.attempt(), second.attempt()), (1, 2));
    assert!(second.fence() > first.fence());
    let late = site.client.settle(&lapsed, Outcome::Done).await.unwrap();
    assert_eq!(late, Settled::Taken);
    let late = site
        .client
        .settle(&lapsed, Outcome::retry("no"))
        .await
        .unwrap();
    assert_eq!(late, Settled::Taken);
    assert_eq!(
        site.client.extend(&lapsed, SECOND).await.unwrap(),
        Extended::Taken
    );
    assert_eq!(
        site.client.extend(&lease, HOUR).await.unwrap(),
        Extended::Extended
    );
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_lapsed_lease_can_be_settled_until_another_consumer_has_it() {
    let site = Site::new("pull-late").await;
    let pull = Pull::new();
    let router = Router::new().route(&site.pattern(), pull.clone().lease(HOUR));
    let worker = site.serve(router);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let (_, lease) = one(&pull).await;
    site.lapse("a").await;
    site.reaches(&site.key("a"), JobState::Lapsed).await;
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_failure_climbs_the_ladder_and_ends_as_a_dead_letter() {
    let site = Site::new("pull-fail").await;
    let pull = Pull::new();
    let policy = RetryPolicy::ladder([HOUR]).unwrap();
    let router = Router::new().route(&site.pattern(), pull.clone().retry(policy.clone()));
    let worker = site.serve(router);
    let key = site.key("a");
    site.client.schedule(&key, "").await.unwrap();
    let (_, lease) = one(&pull).await;
    let failed = site
        .client
        .settle(&lease, Outcome::retry("the shop is closed"));
    let answer = failed.retry(policy.clone()).await.unwrap();
    assert!(matches!(answer, Settled::Pending(_)), "{answer:?}");
    let view = site.view(&key).await;
    assert_eq!(view.state(), JobState::Retrying);
    assert_eq!(view.last_error(), Some("the shop is closed"));

    site.client.fire_now(&key).await.unwrap();
    let (job, lease) = one(&pull).await;
    assert_eq!((job.attempt(), job.max_attempts()), (2, 2));
    let failed = site.client.settle(&lease, Outcome::retry("still"));
    let answer = failed.retry(policy).await.unwrap();
    assert!(matches!(answer, Settled::Buried(_)), "{answer:?}");
    assert_eq!(site.view(&key).await.last_error(), Some("still"));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_that_consumers_never_settle_is_buried_after_its_attempts() {
    let site = Site::new("pull-poison").await;
    let pull = Pull::new();
    let route = pull
        .clone()
        .lease(STEADY)
        .retry(RetryPolicy::ladder([HOUR]).unwrap());
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let key = site.key("a");
    site.client.schedule(&key, "").await.unwrap();
    for attempt in 1..=2 {
        assert_eq!(one(&pull).await.0.attempt(), attempt);
        site.lapse("a").await;
        site.sweep().await;
    }
    // Only a waiting consumer shows that there is no further job.
    let waiting = tokio::spawn({
        let pull = pull.clone();
        async move { next(&pull, 1).await.len() }
    });
    let view = site.reaches(&key, JobState::Dead).await;
    assert!(view.last_error().unwrap().contains("lapsed in attempt 2"));
    waiting.abort();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn extending_the_lease_of_a_cancelled_job_reports_the_cancel() {
    let site = Site::new("pull-cancel").await;
    let pull = Pull::new();
    let worker = pulled(&site, &pull);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let (_, lease) = one(&pull).await;
    site.client.cancel(site.key("a")).await.unwrap();
    assert_eq!(
        site.client.extend(&lease, HOUR).await.unwrap(),
        Extended::Cancelled
    );
    let failed = site
        .client
        .settle(&lease, Outcome::retry("no"))
        .await
        .unwrap();
    assert_eq!(failed, Settled::Cancelled);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_of_two_workers_get_each_job_of_a_backlog_once() {
    const JOBS: usize = 5000;
    let here = Site::new("pull-many").await;
    let there = Site::at(&here.url, "pull-many").await;
    let jobs = here.keys(JOBS).map(|key| NewJob::new(key, ""));
    assert!(
        here.client
            .schedule_many(jobs)
            .await
            .iter()
            .all(Result::is_ok)
    );
    let pulls = [Pull::new(), Pull::new()];
    let workers = [pulled(&here, &pulls[0]), pulled(&there, &pulls[1])];
    let consumers = (0..40).map(|number| {
        let (pull, client) = (pulls[number % 2].clone(), here.client.clone());
        let kind = here.kind();
        tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                let got = pull.pull(&[""; 0], 1 + number, ms(500)).await.unwrap();
                if got.is_empty() && client.stats(&kind).await.unwrap().done as usize == JOBS {
                    return seen;
                }
                let taken: Vec<_> = got.into_iter().filter_map(Pulled::accept).collect();
                let settles = taken
                    .iter()
                    .map(|(_, lease)| async { client.settle(lease, Outcome::Done).await.unwrap() });
                assert!(
                    join_all(settles)
                        .await
                        .iter()
                        .all(|it| *it == Settled::Done)
                );
                seen.extend(taken.into_iter().map(|(job, _)| job.key().to_string()));
            }
        })
    });
    let seen: Vec<String> = join_all(consumers)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), JOBS);
    assert_eq!(here.stats().await.done as usize, JOBS);
    for worker in workers {
        worker.stop().await;
    }
    here.assert_balanced().await;
}

#[tokio::test]
async fn undelivered_jobs_go_back_when_their_worker_stops() {
    let site = Site::new("pull-stop").await;
    let pull = Pull::new();
    let router = Router::new().route(&site.pattern(), pull.clone().lease(HOUR));
    let worker = Running::start(site.worker(router).grace(Duration::ZERO));
    site.client.schedule(site.key("a"), "").await.unwrap();
    site.client.schedule(site.key("b"), "").await.unwrap();
    let (kept, lease) = one(&pull).await;
    let mut undecided = next(&pull, 1).await;
    worker.stop().await;
    assert!(undecided.pop().unwrap().accept().is_none());
    // An accepted job belongs to its consumer, even after its worker dies.
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.leased), (1, 1), "{kept:?}");
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_starting_worker_waits_no_longer_than_the_leases_of_its_routes() {
    let site = Site::new("pull-hold").await;
    let pull = Pull::new();
    let start = || {
        let router = Router::new().route(&site.pattern(), pull.clone().lease(STEADY));
        Running::start(site.worker(router).lease(HOUR))
    };
    let worker = start();
    site.client.schedule(site.key("a"), "").await.unwrap();
    one(&pull).await;
    worker.stop().await;
    site.lapse("a").await;
    let worker = start();
    let (job, lease) = one(&pull).await;
    assert_eq!(job.attempt(), 2);
    site.client.settle(&lease, Outcome::Done).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn leases_outlive_the_process_that_claimed_them() {
    let site = Site::new("pull-mortal").await;
    let pull = Pull::new();
    let router = Router::new().route(&site.pattern(), pull.clone().lease(HOUR));
    let mortal = Mortal::start(&site.url, router, SECOND);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let (_, lease) = one(&pull).await;
    mortal.die();
    assert_eq!(
        site.client.settle(&lease, Outcome::Done).await.unwrap(),
        Settled::Done
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn pulled_and_running_routes_can_share_a_kind() {
    let site = Site::new("pull-mixed").await;
    let (log, mut runs) = recorder();
    let pull = Pull::new();
    let router = Router::new()
        .route(&format!("{}:{{id:[0-9]+}}", site.kind()), log.done())
        .route(&site.pattern(), pull.clone().lease(HOUR));
    let worker = site.serve(router);
    for id in ["1", "a", "2", "b", "3"] {
        site.client.schedule(site.key(id), "").await.unwrap();
    }
    let ran: HashSet<String> = [runs.next().await, runs.next().await, runs.next().await]
        .map(|job| job.key().id().to_owned())
        .into();
    assert_eq!(ran, ["1", "2", "3"].map(String::from).into());
    let mut leases = Vec::new();
    while leases.len() < 2 {
        let got = next(&pull, 10).await.into_iter();
        leases.extend(got.map(|pulled| pulled.accept().unwrap()));
    }
    for (job, lease) in leases {
        assert!(["a", "b"].contains(&job.key().id()));
        assert_eq!(
            site.client.settle(&lease, Outcome::Done).await.unwrap(),
            Settled::Done
        );
    }
    eventually("all done", async || {
        (site.stats().await.done == 5).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_route_hands_out_jobs_up_to_its_limit_until_leases_end() {
    let site = Site::new("pull-limit").await;
    let pull = Pull::new();
    let route = pull.clone().concurrency(3).lease(HOUR);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let jobs = site.keys(10).map(|key| NewJob::new(key, ""));
    assert!(
        site.client
            .schedule_many(jobs)
            .await
            .iter()
            .all(Result::is_ok)
    );
    let mut out = Vec::new();
    while out.len() < 3 {
        out.extend(
            next(&pull, 10)
                .await
                .into_iter()
                .map(|pulled| pulled.accept().unwrap().1),
        );
    }
    assert_eq!(out.len(), 3);
    assert!(pull.pull(&[""; 0], 10, ms(300)).await.unwrap().is_empty());
    for ended in 1..=7 {
        let lease = out.remove(0);
        site.client.settle(&lease, Outcome::Done).await.unwrap();
        let got = next(&pull, 10).await;
        assert_eq!(got.len(), 1, "after {ended}");
        out.extend(got.into_iter().map(|pulled| pulled.accept().unwrap().1));
    }
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.leased, stats.pending), (7, 3, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_route_starts_no_more_jobs_than_its_rate() {
    let site = Site::new("pull-rate").await;
    let (log, mut runs) = recorder();
    let route = log.done().rate(5, HOUR);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let jobs = site.keys(20).map(|key| NewJob::new(key, ""));
    assert!(
        site.client
            .schedule_many(jobs)
            .await
            .iter()
            .all(Result::is_ok)
    );
    for _ in 0..5 {
        runs.next().await;
    }
    let stats = eventually("five done", async || {
        let stats = site.stats().await;
        (stats.done == 5).then_some(stats)
    })
    .await;
    assert_eq!((stats.pending, stats.leased), (15, 0));
    worker.stop().await;
    assert!(runs.rest().is_empty());

    // With a faster rate, all jobs come.
    let route = log.done().rate(20, SECOND);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    assert_eq!(site.all_ended().await.done, 20);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_pull_or_extension_is_refused_with_the_rule() {
    let site = Site::new("pull-refused").await;
    let pull = Pull::new();
    let error = pull.pull(&["a:b:c:d"], 1, SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    assert!(error.to_string().contains("only whole kinds can be pulled"));
    let error = pull.pull(&["a"], 0, SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    let lease: Lease = format!("{}@ab-1", site.key("a")).parse().unwrap();
    let error = site.client.extend(&lease, ms(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTime);
    assert_eq!(
        site.client
            .settle(&lease, Outcome::retry("no"))
            .await
            .unwrap(),
        Settled::Gone
    );
}

/// From its acceptance on, a lease lasts as long as its consumer asks, whatever the lease of the
/// route, and belongs to that consumer alone.
#[tokio::test]
async fn a_consumer_can_accept_a_job_with_its_own_lease() {
    let site = Site::new("pull-own-lease").await;
    let pull = Pull::new();
    let route = pull.clone().lease(30 * SECOND).concurrency(2);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let leased = format!("keyfall:{{{}/0}}:leased", site.kind());
    let mut claimed = 0;
    for (id, length, least) in [("longer", HOUR, 3500 * SECOND), ("shorter", SECOND, ms(0))] {
        site.client.schedule(site.key(id), "").await.unwrap();
        let pulled = next(&pull, 1).await.pop().unwrap();
        let (job, lease) = pulled.accept_for(length).unwrap();
        claimed = job.fence();
        eventually("Redis was told", async || {
            let now = redis_time(&mut site.redis()).await / 1000;
            let until: f64 = site.command(&["ZSCORE", &leased, id]).await;
            let left = Duration::from_millis((until as u64).saturating_sub(now as u64));
            (least..=length).contains(&left).then_some(())
        })
        .await;
        assert_eq!(site.view(job.key().as_str()).await.lease(), Some(&lease));
    }
    // The worker does not renew the lease, and its slot is free again.
    let again = next(&pull, 1).await.pop().unwrap();
    assert_eq!(
        (again.job().key().id(), again.job().attempt()),
        ("shorter", 2)
    );
    // The worker looked for the lease at its real end, and not at the end of the old lease, by
    // Redis' clock.
    let after = Duration::from_micros(again.job().fence() - claimed);
    assert!(after < 25 * SECOND, "{after:?}");
    let (job, lease) = again.accept_for(Duration::ZERO).unwrap();
    let settled = site.client.settle(&lease, Outcome::Done).await.unwrap();
    assert_eq!(settled, Settled::Done);
    assert!(site.client.get(job.key()).await.unwrap().is_none());
    site.client.cancel(site.key("longer")).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}
