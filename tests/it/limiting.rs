//! Limits that all workers share: rates, numbers of leases, and what waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::future::join_all;
use keyfall::embedded::Embedded;
use keyfall::{ErrorKind, GroupBy, Job, JobState, Limit, Router, Wait, What};

use crate::limits::assert_refused;
use crate::runs::{Gate, eventually, recorder};
use crate::site::{HOUR, Site, ms};
use crate::workers::Mortal;

const SECOND: Duration = Duration::from_secs(1);

/// Schedules so many jobs that are due at once.
async fn crowd(site: &Site, count: usize) {
    let jobs: Vec<_> = site.keys(count).collect();
    for key in jobs {
        site.client.schedule(key, "").await.unwrap();
    }
}

/// Checks the claims of these jobs: in any span at most `burst`, and one more for each gap. The
/// fencing value is the time of the claim, Unix µs, and the jobs of one claim share it.
pub(crate) fn assert_within(jobs: &[Job], burst: u64, gap: Duration) {
    let mut starts: Vec<u64> = jobs.iter().map(|job| job.fence()).collect();
    starts.sort_unstable();
    for (first, begin) in starts.iter().enumerate() {
        for (last, end) in starts.iter().enumerate().skip(first) {
            let most = burst + (end - begin) / gap.as_micros() as u64;
            let started = (last - first + 1) as u64;
            assert!(started <= most, "{started} starts in {} µs", end - begin);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_share_a_rate() {
    let site = Site::new("limit-rate").await;
    let (log, mut runs) = recorder();
    let router = || Router::new().route(&site.pattern(), log.done());
    let workers = [(); 3].map(|()| site.serve(router()));
    let limit = Limit::new().rate(50, SECOND).burst(3);
    assert!(!site.client.limit(&site.kind(), limit).await.unwrap());
    crowd(&site, 80).await;
    let jobs = runs.take(80).await;
    assert_within(&jobs, 3, ms(20));
    site.all_ended().await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_share_a_number_of_leases() {
    let site = Site::new("limit-leases").await;
    let (log, mut runs) = recorder();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = {
        let most = most.clone();
        async move |job: Job| {
            log.note(&job);
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(ms(5)).await;
            running.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let router = || Router::new().route(&site.pattern(), counted.clone());
    let workers = [(); 2].map(|()| site.serve(router()));
    let limit = Limit::new().concurrency(3);
    site.client.limit(&site.kind(), limit).await.unwrap();
    crowd(&site, 90).await;
    runs.take(90).await;
    site.all_ended().await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_limit_is_shown_changed_and_removed_at_run_time() {
    let site = Site::new("limit-shown").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let router = Router::new().route(&site.pattern(), log.behind(&gate));
    let worker = site.serve(router);
    let kind = site.kind();
    let one = Limit::new().concurrency(1);
    site.client
        .limit(&kind, one.clone())
        .by("anna")
        .await
        .unwrap();
    crowd(&site, 4).await;
    runs.next().await;
    let waits = async || {
        let stats = site.stats().await;
        (stats.held == 3).then_some(())
    };
    eventually("three jobs wait for the limit", waits).await;
    let held = site.client.get_limit(&kind).await.unwrap().unwrap();
    assert_eq!((&held.limit, held.by.as_str()), (&one, "anna"));
    assert_eq!((held.leased, held.room, held.held()), (1, 0, 3));
    assert_eq!(held.next_start, None, "it waits for the end of a run");
    let all = format!("{kind}:");
    let page = site.client.list(&all, JobState::Pending).held().await;
    let waiting: Vec<_> = page
        .unwrap()
        .jobs
        .iter()
        .map(|job| job.key().clone())
        .collect();
    assert_eq!(waiting.len(), 3);
    let ahead = site.client.schedule(site.key("later"), "").after(HOUR);
    ahead.await.unwrap();
    let page = site.client.list(&all, JobState::Pending).held().limit(2);
    let next = page.await.unwrap().next.unwrap();
    let page = site.client.list(&all, JobState::Pending).held().after(next);
    assert_eq!(
        page.await.unwrap().jobs.len(),
        1,
        "the job ahead waits for its time"
    );
    site.client.cancel(site.key("later")).await.unwrap();
    let story = site.client.story(site.key("00003")).await.unwrap();
    let told = story.waits.iter().find_map(|wait| match wait {
        Wait::Limited { by, waiting, .. } => Some((by.as_str(), *waiting)),
        _ => None,
    });
    assert_eq!(told, Some(("anna", 3)), "{story:?}");

    let two = Limit::new().concurrency(2);
    assert!(site.client.limit(&kind, two).await.unwrap());
    runs.next().await;
    assert!(site.client.unlimit(&kind).await.unwrap());
    runs.take(2).await;
    assert_eq!(site.client.get_limit(&kind).await.unwrap(), None);
    assert!(!site.client.unlimit(&kind).await.unwrap());
    gate.open();
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_tells_whose_turn_it_waits_for() {
    let site = Site::new("limit-turn").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let tenants = Limit::new().per(GroupBy::header("tenant")).concurrency(1);
    site.client.limit(&site.kind(), tenants).await.unwrap();
    for number in 0..2 {
        let call = site.client.schedule(site.key(number), "");
        call.header("tenant", "acme & co").await.unwrap();
    }
    let started = runs.next().await.key().clone();
    let waiting = site.key(if started.id() == "0" { 1 } else { 0 });
    let told = eventually("it tells why it waits", async || {
        let story = site.client.story(&waiting).await.unwrap();
        story.waits.into_iter().find_map(|wait| match &wait {
            Wait::Limited { group, .. } => Some((group.clone(), wait.sentence(|_| "then".into()))),
            _ => None,
        })
    });
    let (group, sentence) = told.await;
    assert_eq!(group.as_deref(), Some("acme & co"));
    assert!(
        sentence.contains("the turn of its group, \"acme & co\", by the limit of its kind, 1 at"),
        "{sentence}"
    );
    let listed = site.client.list(&site.kind(), JobState::Pending).held();
    assert_eq!(listed.await.unwrap().jobs.len(), 1);
    assert_eq!(site.stats().await.held, 1);
    gate.open();
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_asked_while_jobs_wait() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "limit-idle").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let router = || Router::new().route(&site.pattern(), log.behind(&gate));
    let workers = [(); 2].map(|()| site.serve(router()));
    for worker in &workers {
        worker.ready().await;
    }
    let one = Limit::new().concurrency(1);
    site.client.limit(&site.kind(), one).await.unwrap();
    crowd(&site, 300).await;
    runs.next().await;
    eventually("the others wait", async || {
        (site.stats().await.held == 299).then_some(())
    })
    .await;
    let scripts = async || {
        let info: String = site.command(&["INFO", "commandstats"]).await;
        let count = |line: &str| line.split(['=', ',']).nth(1)?.parse::<u64>().ok();
        let calls = info
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"));
        calls.and_then(count).unwrap_or(0)
    };
    // What is under way ends: the checks whether announced jobs were claimed.
    site.passes(SECOND).await;
    let before = scripts().await;
    site.passes(3 * SECOND).await;
    let calls = scripts().await - before;
    // Two heartbeats a second, the renewals of one lease, and a sweep now and then.
    assert!(calls <= 30, "{calls} calls in three seconds");
    runs.assert_no_more();
    site.client.unlimit(&site.kind()).await.unwrap();
    gate.open();
    site.all_ended().await;
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_next_job_starts_when_a_rate_allows_it() {
    let site = Site::new("limit-next").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let kind = site.kind();
    let limit = Limit::new().rate(2, SECOND);
    site.client.limit(&kind, limit).await.unwrap();
    // The second one is found while it waits, and no event announces it any more.
    crowd(&site, 3).await;
    let jobs = runs.take(3).await;
    assert_within(&jobs, 1, ms(500));
    site.all_ended().await;
    let state = site.client.get_limit(&kind).await.unwrap().unwrap();
    assert_eq!((state.held(), state.next_start), (0, None));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_next_job_starts_when_a_hold_is_over() {
    let rate = Limit::new().rate(1000, SECOND).burst(50);
    for (name, limit) in [
        ("hold-leases", Limit::new().concurrency(2)),
        ("hold-rate", rate),
    ] {
        let site = Site::new(name).await;
        let (log, mut runs) = recorder();
        let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
        let kind = site.kind();
        assert!(!site.client.hold(&kind, SECOND).await.unwrap(), "no limit");
        // The first job makes the kind known.
        site.client.schedule(site.key("first"), "").await.unwrap();
        runs.next().await;
        site.client.limit(&kind, limit).await.unwrap();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(site.client.hold(&kind, SECOND).await.unwrap());
        crowd(&site, 5).await;
        for job in runs.take(5).await {
            assert!(Duration::from_micros(job.fence()) >= before + SECOND);
        }
        site.all_ended().await;
        worker.stop().await;
        site.assert_balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_worker_that_dies_are_taken_over_within_the_limit() {
    let site = Site::new("limit-killed").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    let doomed = Mortal::start(&site.url, stuck, Duration::from_secs(1));
    let limit = Limit::new().rate(20, SECOND).burst(2).concurrency(2);
    site.client.limit(&site.kind(), limit).await.unwrap();
    crowd(&site, 10).await;
    let mut all = runs.take(2).await;
    doomed.die();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    all.extend(runs.take(10).await);
    assert_within(&all, 2, ms(50));
    site.all_ended().await;
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.lapsed), (10, 2));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_kind_with_several_routes_shares_its_limit() {
    let site = Site::new("limit-routes").await;
    let (log, mut runs) = recorder();
    let of = |ids: &str| format!("{}:{ids}", site.kind());
    let router = Router::new()
        .route(&of("{id:[0-9]*[0-4]}"), log.done())
        .route(&of("{id:[0-9]*[5-9]}"), log.done());
    let worker = site.serve(router);
    let limit = Limit::new().rate(40, SECOND);
    site.client.limit(&site.kind(), limit).await.unwrap();
    crowd(&site, 10).await;
    let jobs = runs.take(10).await;
    assert_within(&jobs, 1, ms(25));
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

/// A tenant with a backlog, and one whose jobs come now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_one_tenant_does_not_hold_up_another() {
    const BACKLOG: usize = 1200;
    let site = Site::new("limit-tenants").await;
    let (log, mut runs) = recorder();
    let busy = async move |job: Job| {
        log.note(&job);
        tokio::time::sleep(ms(10)).await;
    };
    let router = || Router::new().route(&site.pattern(), busy.clone());
    let workers = [(); 2].map(|()| site.serve(router()));
    let tenants = Limit::new().per(GroupBy::header("tenant"));
    let limit = tenants.concurrency(3).total_concurrency(4);
    site.client.limit(&site.kind(), limit).await.unwrap();
    let keys: Vec<_> = site.keys(BACKLOG + 10).collect();
    let (backlog, others) = keys.split_at(BACKLOG);
    let of_tenant = async |key: &str, tenant: &str| {
        let call = site.client.schedule(key, "").header("tenant", tenant);
        call.await.unwrap();
    };
    for some in backlog.chunks(64) {
        join_all(some.iter().map(|key| of_tenant(key, "big"))).await;
    }
    let mut order: Vec<String> = Vec::new();
    for key in others {
        of_tenant(key, "small").await;
        // The next one comes when this one has run.
        while order.last() != Some(key) {
            order.push(runs.next().await.key().to_string());
        }
    }
    let before = order.len() - others.len();
    // In the order of due times, the first of them would wait for all of the backlog.
    assert!(
        before < BACKLOG,
        "all jobs of the backlog ran before ten of the other tenant"
    );
    runs.take(BACKLOG + others.len() - order.len()).await;
    site.all_ended().await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tenant_has_a_rate_over_all_workers_and_takeovers() {
    let site = Site::new("limit-tenant-rate").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    let doomed = Mortal::start(&site.url, stuck, Duration::from_secs(1));
    let limit = Limit::new()
        .per(GroupBy::id_part(1))
        .rate(20, SECOND)
        .burst(2);
    site.client.limit(&site.kind(), limit).await.unwrap();
    let jobs = (0..8).flat_map(|job| ["a", "b", "c"].map(|tenant| format!("{tenant}/{job}")));
    for id in jobs {
        let key = format!("{}:{id}", site.kind());
        site.client.schedule(key, "").await.unwrap();
    }
    let mut all = runs.take(6).await;
    doomed.die();
    let workers = [(); 2].map(|()| site.serve(Router::new().route(&site.pattern(), log.done())));
    site.all_ended().await;
    // Also those that the dead worker held, which have started once more.
    all.extend(runs.rest());
    assert!(site.stats().await.lapsed >= 6 && all.len() >= 30);
    for tenant in ["a/", "b/", "c/"] {
        let own: Vec<Job> = all
            .iter()
            .filter(|job| job.key().id().starts_with(tenant))
            .cloned()
            .collect();
        assert!(own.len() >= 8);
        assert_within(&own, 2, ms(50));
    }
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_limit_outlives_the_drop_of_its_kind() {
    let site = Site::new("limit-drop").await;
    let (kind, one) = (site.kind(), Limit::new().concurrency(1));
    // Also of a kind that was never used.
    site.client.limit(&kind, one.clone()).await.unwrap();
    for _ in 0..2 {
        let (log, mut runs) = recorder();
        let gate = Gate::closed();
        let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
        crowd(&site, 2).await;
        runs.next().await;
        eventually("the other one waits", async || {
            (site.stats().await.held == 1).then_some(())
        })
        .await;
        runs.assert_no_more();
        gate.open();
        site.all_ended().await;
        worker.stop().await;
        site.client.drop_kind(&kind).await.unwrap();
        let listed = site.client.limits().await.unwrap().kinds;
        assert!(
            listed
                .iter()
                .any(|it| it.scope.as_str() == kind && it.limit == one)
        );
    }
}

#[tokio::test]
async fn wrong_limits_are_refused_and_change_nothing() {
    let site = Site::new("limit-wrong").await;
    let kind = site.kind();
    let set = |limit| site.client.limit(&kind, limit);
    for (limit, named) in [
        (Limit::new(), "a rate"),
        (Limit::new().concurrency(0), "`concurrency`"),
        (Limit::new().rate(0, SECOND), "`rate`"),
        (Limit::new().rate(1, SECOND).burst(0), "`burst`"),
    ] {
        let refused = set(limit).await;
        assert_refused(refused, ErrorKind::InvalidSetting, &[named]);
    }
    let refused = site.client.limit("app1:mail", Limit::new().concurrency(1));
    assert_refused(refused.await, ErrorKind::InvalidKey, &["app1:mail"]);
    assert_eq!(site.client.get_limit(&kind).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debounced_and_throttled_calls_are_gathered_in_few_runs() {
    let site = Site::new("limit-gather").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let (quiet, throttled) = (site.key("quiet"), site.key("throttled"));
    for number in 0..20 {
        let call = site.client.schedule(&quiet, &number);
        call.debounce(ms(400), 60 * SECOND).await.unwrap();
    }
    let job = runs.next().await;
    assert_eq!(
        (job.key().as_str(), &job.payload()[..]),
        (&*quiet, &b"19"[..])
    );
    let first = site.client.schedule(&throttled, &0).throttle(SECOND);
    let first = first.await.unwrap().due;
    assert_eq!(&runs.next().await.payload()[..], b"0");
    for number in 1..20 {
        let call = site.client.schedule(&throttled, &number);
        call.throttle(SECOND).await.unwrap();
    }
    let job = runs.next().await;
    let apart = job.due().duration_since(first).unwrap();
    assert_eq!(apart.as_millis() % 1000, 0, "{apart:?}");
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn only_one_thing_decides_when_a_gathered_job_is_due() {
    let site = Site::new("limit-gather-wrong").await;
    let call = || site.client.schedule(site.key(1), "");
    let rule = keyfall::Rule::every(60 * SECOND).unwrap();
    let refused = [
        (call().debounce(Duration::ZERO, SECOND).await, "silence"),
        (
            call().debounce(SECOND, Duration::ZERO).await,
            "longest wait",
        ),
        (call().throttle(Duration::ZERO).await, "`throttle`"),
        (call().throttle(SECOND).after(SECOND).await, "leave out"),
        (call().throttle(SECOND).recurring(rule).await, "recurs"),
    ];
    for (refused, named) in refused {
        assert_refused(refused, ErrorKind::InvalidTime, &[named]);
    }
    let refused = call().debounce(SECOND, SECOND).if_absent().await;
    assert_refused(refused, ErrorKind::InvalidTime, &["under a condition"]);
    assert!(site.client.get(site.key(1)).await.unwrap().is_none());
}

#[tokio::test]
async fn a_declared_limit_yields_to_an_operator_until_it_changes() {
    let site = Site::new("limit-declared").await;
    let kind = site.kind();
    let of = async || {
        let limit = site.client.get_limit(&kind).await.unwrap();
        limit.map(|it| it.limit)
    };
    let [first, operator, second] = [1, 2, 3].map(|jobs| Limit::new().concurrency(jobs));
    let declare = async |limit: &Limit| {
        site.client
            .limit(&kind, limit.clone())
            .declared()
            .await
            .unwrap()
    };
    assert!(!declare(&first).await);
    assert_eq!(of().await, Some(first.clone()));
    site.client.limit(&kind, operator.clone()).await.unwrap();
    // Another worker starts.
    assert!(declare(&first).await);
    assert_eq!(of().await, Some(operator));
    assert!(declare(&second).await);
    assert_eq!(of().await, Some(second.clone()));
    site.client.unlimit(&kind).await.unwrap();
    assert!(!declare(&second).await);
    assert_eq!(of().await, None, "an operator has removed it");
    assert!(!declare(&first).await);
    assert_eq!(of().await, Some(first.clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_a_limit_holds_back_are_not_passed_on_to_other_instances() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "limit-passed").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let router = || Router::new().route(&site.pattern(), log.behind(&gate));
    let workers = [(); 2].map(|()| site.serve(router()));
    for worker in &workers {
        worker.ready().await;
    }
    let one = Limit::new().concurrency(1);
    site.client.limit(&site.kind(), one).await.unwrap();
    site.client.schedule(site.key("first"), "").await.unwrap();
    runs.next().await;
    let redis = redis::Client::open(server.url().as_str()).unwrap();
    let mut told = redis.get_async_pubsub().await.unwrap();
    told.subscribe("keyfall:wake:0").await.unwrap();
    let mut told = told.into_on_message();
    let mut round = 0;
    // On a busy machine the pacer looks for a job before it hears that the job is held back.
    eventually("a round in which no job was passed on", async || {
        round += 1;
        for id in 0..10 {
            let key = site.key(format_args!("{round}-{id}"));
            let call = site.client.schedule(key, "").after(ms(100 + 40 * id));
            call.await.unwrap();
        }
        let held = round * 10;
        eventually("they are due, and held back", async || {
            (site.stats().await.held == held).then_some(())
        })
        .await;
        site.passes(ms(200)).await;
        let mut passed_on = 0;
        while let Ok(Some(message)) = tokio::time::timeout(ms(1), told.next()).await {
            let text: String = message.get_payload().unwrap();
            let word = text.split(' ').next().unwrap();
            passed_on += usize::from(["late", "left"].contains(&word));
        }
        (passed_on == 0).then_some(())
    })
    .await;
    site.client.unlimit(&site.kind()).await.unwrap();
    gate.open();
    site.all_ended().await;
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_ledger_that_has_lost_its_limit_gets_it_again() {
    let site = Site::new("limit-lost").await;
    let (kind, one) = (site.kind(), Limit::new().concurrency(1));
    site.client
        .schedule(site.key("later"), "")
        .after(HOUR)
        .await
        .unwrap();
    site.client.limit(&kind, one).await.unwrap();
    let calls = format!("keyfall:{{{kind}/0}}:calls");
    let field = async || -> Option<String> { site.command(&["HGET", &calls, "limit"]).await };
    let before = field().await;
    let _: u64 = site.command(&["HDEL", &calls, "limit"]).await;
    let worker = site.serve(Router::new().route(&site.pattern(), async |_: Job| {}));
    let words = |text: Option<String>| {
        let text = text?;
        text.split_once(' ').map(|(_, rest)| rest.to_owned())
    };
    eventually("the limit is there again", async || {
        let after = field().await;
        (after.is_some() && words(after) == words(before.clone())).then_some(())
    })
    .await;
    worker.stop().await;
    // It is told of once: what holds already is not set again.
    let story = site.client.story(site.key("later")).await.unwrap();
    let told = story
        .happenings
        .iter()
        .filter(|it| it.what == What::Limited);
    assert_eq!(told.count(), 2, "when it was set, and when it was lost");
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_carried_out_by_the_next_one() {
    let site = Site::new("limit-cut-off").await;
    let (kind, one) = (site.kind(), Limit::new().concurrency(1));
    site.client.schedule(site.key(1), "").await.unwrap();
    let calls = format!("keyfall:{{{kind}/0}}:calls");
    let aside = format!("{calls}:aside");
    let is_held = async || {
        let limits = site.client.limits().await.unwrap().kinds;
        limits.iter().any(|it| it.scope.as_str() == kind)
    };
    // The ledger refuses its part of the limit.
    let break_off = async || {
        let _: String = site.command(&["RENAME", &calls, &aside]).await;
        let _: String = site.command(&["SET", &calls, "not ours"]).await;
    };
    let mend = async || {
        let _: String = site.command(&["RENAME", &aside, &calls]).await;
    };
    let declare = async || site.client.limit(&kind, one.clone()).declared().await;
    break_off().await;
    declare().await.unwrap_err();
    mend().await;
    declare().await.unwrap();
    let limit: String = site.command(&["HGET", &calls, "limit"]).await;
    assert!(limit.contains(" 0 1 1 "), "the ledger has it: {limit}");
    break_off().await;
    site.client.unlimit(&kind).await.unwrap_err();
    mend().await;
    assert!(is_held().await, "it holds, and so is listed");
    assert!(site.client.unlimit(&kind).await.unwrap());
    assert!(!is_held().await);
}
