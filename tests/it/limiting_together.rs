//! Limits that several kinds, or the shards of a kind, have together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keyfall::{ErrorKind, Handler, Job, Limit, Router, Wait};

use crate::limiting::assert_within;
use crate::limits::assert_refused;
use crate::runs::{Gate, eventually, recorder};
use crate::site::{Site, ms};
use crate::workers::Mortal;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) const KINDS: [&str; 3] = ["send", "digest", "alarm"];

/// The prefix of all kinds of the site.
pub(crate) fn prefix(site: &Site) -> String {
    let kind = site.kind();
    let (prefix, _) = kind.rsplit_once(':').unwrap();
    format!("{prefix}:")
}

pub(crate) fn kind(site: &Site, biz: &str) -> String {
    format!("{}{biz}", prefix(site))
}

/// The pattern of all jobs of all kinds.
pub(crate) fn pattern(site: &Site) -> String {
    format!("{}{{biz}}:{{id}}", prefix(site))
}

/// Schedules so many jobs that are due at once, of each of these kinds in turn.
async fn crowd(site: &Site, kinds: &[&str], count: usize) {
    for number in 0..count {
        for biz in kinds {
            let key = format!("{}:{number:03}", kind(site, biz));
            site.client.schedule(key, "").await.unwrap();
        }
    }
}

pub(crate) async fn all_ended(site: &Site, kinds: &[&str]) {
    for biz in kinds {
        let kind = kind(site, biz);
        eventually("all jobs have ended", async || {
            let stats = site.client.stats(&kind).await.unwrap();
            (stats.pending + stats.leased == 0).then_some(())
        })
        .await;
    }
}

/// A handler's count of the runs at the same time, and the highest.
#[derive(Clone, Default)]
struct Meter(Arc<(AtomicUsize, AtomicUsize)>);

impl Meter {
    async fn run(&self, time: Duration) {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(time).await;
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

fn by_kind(jobs: &[Job]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        *counts.entry(job.key().kind().to_string()).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_kinds_share_a_rate_of_one_at_a_time() {
    let site = Site::new("together-rate").await;
    let (log, mut runs) = recorder();
    let router = || Router::new().route(&pattern(&site), log.done());
    let workers = [(); 2].map(|()| site.serve(router()));
    let limit = Limit::new().rate(50, SECOND);
    // One of the kinds is used before, the others begin under the limit.
    crowd(&site, &KINDS[..1], 1).await;
    runs.next().await;
    let set = site.client.limit(&prefix(&site), limit.clone()).await;
    assert!(!set.unwrap());
    crowd(&site, &KINDS, 41).await;
    let jobs = runs.take(3 * 41).await;
    assert_within(&jobs, 1, ms(20));
    // They took turns: none had to wait for the others to end.
    let half = by_kind(&jobs[..jobs.len() / 2 + 25]);
    assert_eq!(half.len(), 3, "{half:?}");
    all_ended(&site, &KINDS).await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    let listed = site
        .client
        .get_limit(&prefix(&site))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((listed.limit, listed.leased, listed.due), (limit, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_kinds_share_a_number_of_leases() {
    let site = Site::new("together-leases").await;
    let (log, mut runs) = recorder();
    let meter = Meter::default();
    let counted = {
        let meter = meter.clone();
        async move |job: Job| {
            log.note(&job);
            meter.run(ms(10)).await;
        }
    };
    let router = || Router::new().route(&pattern(&site), counted.clone());
    let workers = [(); 2].map(|()| site.serve(router()));
    let limit = Limit::new().concurrency(4);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    crowd(&site, &KINDS, 120).await;
    let jobs = runs.take(360).await;
    all_ended(&site, &KINDS).await;
    assert_eq!(meter.most(), 4, "all leases are used, and no more");
    let half = by_kind(&jobs[..180]);
    assert!(
        half.len() == 3 && half.values().all(|runs| *runs > 20),
        "{half:?}"
    );
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_others_do_not_use_go_to_the_kind_whose_jobs_wait() {
    let site = Site::new("together-idle").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&pattern(&site), log.behind(&gate)));
    crowd(&site, &KINDS, 1).await;
    let limit = Limit::new().concurrency(7);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    runs.take(3).await;
    // The first kind gets all that is left, for its backlog.
    let more = ["send"];
    for number in 1..9 {
        let key = format!("{}:{number}", kind(&site, more[0]));
        site.client.schedule(key, "").await.unwrap();
    }
    runs.take(4).await;
    let state = async || {
        let state = site.client.get_limit(&prefix(&site)).await.unwrap();
        state.unwrap()
    };
    eventually("seven jobs run, and four wait", async || {
        let state = state().await;
        (state.leased == 7 && state.held() == 4).then_some(())
    })
    .await;
    let waiting = format!("{}:8", kind(&site, more[0]));
    let story = site.client.story(&waiting).await.unwrap();
    let sentence = story.waits[0].sentence(|_| String::new());
    assert!(
        matches!(&story.waits[0], Wait::Limited { scope, .. } if scope.is_prefix())
            && sentence.contains(&format!("all kinds below {}", prefix(&site))),
        "{sentence}"
    );
    gate.open();
    all_ended(&site, &KINDS).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_narrowest_limit_of_a_kind_holds() {
    let site = Site::new("together-narrow").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&pattern(&site), log.behind(&gate)));
    let (all, send) = (prefix(&site), kind(&site, "send"));
    let of = |jobs| Limit::new().concurrency(jobs);
    site.client.limit(&all, of(2)).await.unwrap();
    site.client.limit(&send, of(5)).await.unwrap();
    crowd(&site, &KINDS, 6).await;
    runs.take(7).await;
    let held = async |limit: &str| {
        let state = site.client.get_limit(limit).await.unwrap().unwrap();
        (state.leased, state.held())
    };
    eventually("each limit counts its own kinds", async || {
        (held(&all).await == (2, 10) && held(&send).await == (5, 1)).then_some(())
    })
    .await;
    // Without its own limit, the kind is under that of the prefix, and its running jobs count.
    assert!(site.client.unlimit(&send).await.unwrap());
    assert_eq!(site.client.get_limit(&send).await.unwrap(), None);
    assert_eq!(held(&all).await, (7, 11));
    // A wider one does not matter.
    let (wider, _) = all.split_once(':').unwrap();
    site.client
        .limit(&format!("{wider}:"), of(99))
        .await
        .unwrap();
    assert_eq!(held(&all).await, (7, 11));
    runs.assert_no_more();
    assert!(site.client.unlimit(&all).await.unwrap());
    runs.take(11).await;
    gate.open();
    all_ended(&site, &KINDS).await;
    worker.stop().await;
    site.client.unlimit(&format!("{wider}:")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_takes_no_share_along() {
    let site = Site::new("together-killed").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&pattern(&site), log.stuck());
    let doomed = Mortal::start(&site.url, stuck, SECOND);
    let limit = Limit::new().rate(40, SECOND).burst(3).concurrency(3);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    crowd(&site, &KINDS, 10).await;
    let mut all = runs.take(3).await;
    doomed.die();
    let workers = [(); 2].map(|()| site.serve(Router::new().route(&pattern(&site), log.done())));
    all.extend(runs.take(30).await);
    assert_within(&all, 3, ms(25));
    all_ended(&site, &KINDS).await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shards_of_a_kind_share_its_limit_while_it_is_resharded() {
    let site = Site::new("together-shards").await;
    let (log, mut runs) = recorder();
    let meter = Meter::default();
    let counted = {
        let meter = meter.clone();
        async move |job: Job| {
            log.note(&job);
            meter.run(ms(5)).await;
        }
    };
    let router = || Router::new().route(&site.pattern(), counted.clone());
    let workers = [(); 2].map(|()| site.serve(router()));
    let limit = Limit::new().rate(100, SECOND).burst(2).concurrency(2);
    site.client.limit(&site.kind(), limit).await.unwrap();
    let mut all = Vec::new();
    for (round, shards) in [4, 1, 8].into_iter().enumerate() {
        for number in 0..40 {
            let key = site.key(format_args!("{round}-{number}"));
            site.client.schedule(key, "").await.unwrap();
        }
        site.client.reshard(&site.kind(), shards).await.unwrap();
        all.extend(runs.take(40).await);
        assert_within(&all, 2, ms(10));
    }
    assert_eq!(meter.most(), 2);
    site.all_ended().await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    site.assert_balanced().await;
}

/// The unit of a shard that is given up belongs to nobody until a look gives it out, with what was
/// used of it.
#[tokio::test]
async fn the_unit_of_a_shard_that_was_given_up_stays_used() {
    let site = Site::new("together-given-up").await;
    let (log, mut runs) = recorder();
    let first = site.key("first");
    site.client.schedule(&first, "").await.unwrap();
    site.client.cancel(&first).await.unwrap();
    site.client.reshard(&site.kind(), 2).await.unwrap();
    let minute = Duration::from_secs(60);
    let limit = Limit::new().rate(1, minute).burst(2);
    site.client.limit(&site.kind(), limit).await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for number in 0..20 {
        site.client.schedule(site.key(number), "").await.unwrap();
    }
    // Each shard has started a job; the others wait.
    runs.take(2).await;
    site.client.reshard(&site.kind(), 1).await.unwrap();
    let calls = format!("keyfall:{{{}/0}}:calls", site.kind());
    let stored = eventually("the only shard has both units", async || {
        let stored: String = site.command(&["HGET", &calls, "limit"]).await;
        let (_, share) = stored.split_once('\n')?;
        let of_units = share.split(' ').nth(7)?;
        (of_units == "2").then_some(stored)
    })
    .await;
    let numbers: Vec<u64> = stored
        .split(' ')
        .take(2)
        .map(|it| it.parse().unwrap())
        .collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = u64::try_from(now.unwrap().as_micros()).unwrap();
    let used = numbers[0].saturating_sub(now) as f64 / numbers[1] as f64;
    assert!(used > 1.5, "of two units {used} are used");
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_kind_that_is_dropped_gives_its_share_back() {
    let site = Site::new("together-dropped").await;
    let (log, mut runs) = recorder();
    crowd(&site, &KINDS[..2], 1).await;
    let limit = Limit::new().concurrency(2);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&pattern(&site), log.done()));
    runs.take(2).await;
    all_ended(&site, &KINDS[..2]).await;
    worker.stop().await;
    eventually("the kind is dropped", async || {
        site.client.drop_kind(&kind(&site, "digest")).await.ok()
    })
    .await;
    let worker = site.serve(Router::new().route(&pattern(&site), log.behind(&gate)));
    crowd(&site, &KINDS[..1], 5).await;
    runs.take(2).await;
    // It begins anew, without the share that it had.
    crowd(&site, &KINDS[1..2], 5).await;
    eventually("no more than two run", async || {
        let state = site
            .client
            .get_limit(&prefix(&site))
            .await
            .unwrap()
            .unwrap();
        (state.leased == 2 && state.held() == 8).then_some(())
    })
    .await;
    runs.assert_no_more();
    gate.open();
    all_ended(&site, &KINDS[..2]).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_a_route_holds_from_the_first_job_on() {
    let site = Site::new("together-route").await;
    let (log, mut runs) = recorder();
    let meter = Meter::default();
    let counted = {
        let meter = meter.clone();
        async move |job: Job| {
            log.note(&job);
            meter.run(ms(5)).await;
        }
    };
    crowd(&site, &KINDS, 20).await;
    let two = Limit::new().concurrency(2);
    let router = || Router::new().route(&pattern(&site), counted.clone().limit(two.clone()));
    let workers = [(); 2].map(|()| site.serve(router()));
    runs.take(60).await;
    assert_eq!(meter.most(), 2);
    let limit = site
        .client
        .get_limit(&prefix(&site))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(limit.limit, two);
    // An operator's limit outlives a worker that declares the same as before.
    let five = Limit::new().concurrency(5);
    site.client
        .limit(&prefix(&site), five.clone())
        .await
        .unwrap();
    let third = site.serve(router());
    third.ready().await;
    let limit = site
        .client
        .get_limit(&prefix(&site))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(limit.limit, five);
    all_ended(&site, &KINDS).await;
    for worker in workers.into_iter().chain([third]) {
        worker.stop().await;
    }
    // Limits that contradict each other keep a worker from starting.
    let ids = |ids: &str| format!("{}:{ids}", site.kind());
    let router = Router::new()
        .route(&ids("{id:[0-9]+}"), counted.clone().limit(two))
        .route(&ids("{id}"), counted.limit(five));
    let ended = site.serve(router).ended().await;
    assert_refused(ended, ErrorKind::InvalidRoute, &["different limits"]);
}
