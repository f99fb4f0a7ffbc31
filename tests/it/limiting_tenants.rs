//! Limits that the groups of several kinds, or of the shards of a kind, have together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::{GroupBy, Job, Limit, Router};

use crate::limiting::assert_within;
use crate::limiting_together::{KINDS, all_ended, kind, pattern, prefix};
use crate::runs::{Gate, eventually, recorder};
use crate::site::{Site, ms};
use crate::workers::Mortal;

const SECOND: Duration = Duration::from_secs(1);

const TENANTS: [&str; 3] = ["acme", "zeta", "corp"];

fn each_tenant() -> Limit {
    Limit::new().per(GroupBy::id_part(1))
}

fn tenant_of(job: &Job) -> String {
    job.key().id().split('/').next().unwrap().to_owned()
}

/// Schedules so many jobs of each tenant that are due at once, in each of these kinds.
async fn crowd(site: &Site, kinds: &[String], count: usize) {
    for number in 0..count {
        for kind in kinds {
            for tenant in TENANTS {
                let key = format!("{kind}:{tenant}/{number:03}");
                site.client.schedule(key, "").await.unwrap();
            }
        }
    }
}

/// Checks the claims of each tenant.
fn assert_each_within(jobs: &[Job], burst: u64, gap: Duration) {
    for tenant in TENANTS {
        let own = jobs.iter().filter(|job| tenant_of(job) == tenant);
        let own: Vec<Job> = own.cloned().collect();
        assert!(!own.is_empty(), "{tenant} has started nothing");
        assert_within(&own, burst, gap);
    }
}

/// By tenant: the runs now, and the most at the same time.
#[derive(Clone, Default)]
struct Meter(Arc<Mutex<BTreeMap<String, (usize, usize)>>>);

impl Meter {
    async fn run(&self, tenant: &str, time: Duration) {
        {
            let mut counts = self.0.lock().unwrap();
            let (now, most) = counts.entry(tenant.to_owned()).or_default();
            *now += 1;
            *most = (*most).max(*now);
        }
        tokio::time::sleep(time).await;
        self.0.lock().unwrap().get_mut(tenant).unwrap().0 -= 1;
    }

    fn most(&self) -> Vec<usize> {
        let counts = self.0.lock().unwrap();
        counts.values().map(|(_, most)| *most).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_one_limit_over_several_kinds() {
    let site = Site::new("tenants-kinds").await;
    let (log, mut runs) = recorder();
    let meter = Meter::default();
    let counted = {
        let meter = meter.clone();
        async move |job: Job| {
            log.note(&job);
            meter.run(&tenant_of(&job), ms(10)).await;
        }
    };
    let router = || Router::new().route(&pattern(&site), counted.clone());
    let workers = [(); 2].map(|()| site.serve(router()));
    let limit = each_tenant().rate(40, SECOND).burst(2).concurrency(2);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    let kinds = KINDS.map(|biz| kind(&site, biz));
    crowd(&site, &kinds, 10).await;
    let jobs = runs.take(90).await;
    assert_each_within(&jobs, 2, ms(25));
    assert!(
        meter.most().iter().all(|most| *most <= 2),
        "{meter:?}",
        meter = meter.most()
    );
    all_ended(&site, &KINDS).await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_of_one_kind_has_all_of_its_limit() {
    let site = Site::new("tenants-one").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&pattern(&site), log.behind(&gate)));
    let limit = each_tenant().concurrency(4);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    let kinds = KINDS.map(|biz| kind(&site, biz));
    for (kind, tenant) in kinds.iter().zip(TENANTS) {
        for number in 0..10 {
            let key = format!("{kind}:{tenant}/{number}");
            site.client.schedule(key, "").await.unwrap();
        }
    }
    let jobs = runs.take(12).await;
    for tenant in TENANTS {
        let own = jobs.iter().filter(|job| tenant_of(job) == tenant);
        assert_eq!(own.count(), 4, "{tenant}");
    }
    let state = site.client.get_limit(&prefix(&site)).await.unwrap();
    assert_eq!(state.unwrap().leased, 12);
    runs.assert_no_more();
    gate.open();
    runs.take(18).await;
    all_ended(&site, &KINDS).await;
    worker.stop().await;
    runs.assert_no_more();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_keep_their_limits_while_their_kind_is_resharded() {
    let site = Site::new("tenants-shards").await;
    let (log, mut runs) = recorder();
    let router = || Router::new().route(&site.pattern(), log.done());
    let workers = [(); 2].map(|()| site.serve(router()));
    let limit = each_tenant().rate(100, SECOND).burst(2).concurrency(2);
    site.client.limit(&site.kind(), limit).await.unwrap();
    let mut all = Vec::new();
    for (round, shards) in [4, 1, 8].into_iter().enumerate() {
        for number in 0..20 {
            for tenant in TENANTS {
                let key = site.key(format_args!("{tenant}/{round}-{number}"));
                site.client.schedule(key, "").await.unwrap();
            }
        }
        site.client.reshard(&site.kind(), shards).await.unwrap();
        all.extend(runs.take(60).await);
        assert_each_within(&all, 2, ms(10));
    }
    site.all_ended().await;
    for worker in workers {
        worker.stop().await;
    }
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_takes_no_share_of_a_tenant_along() {
    let site = Site::new("tenants-killed").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&pattern(&site), log.stuck());
    let doomed = Mortal::start(&site.url, stuck, SECOND);
    let limit = each_tenant().rate(40, SECOND).burst(3).concurrency(3);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    let kinds = KINDS.map(|biz| kind(&site, biz));
    crowd(&site, &kinds, 5).await;
    let mut all = runs.take(9).await;
    doomed.die();
    let workers = [(); 2].map(|()| site.serve(Router::new().route(&pattern(&site), log.done())));
    all_ended(&site, &KINDS).await;
    // Also those that the dead worker held, which have started once more.
    all.extend(runs.rest());
    assert!(all.len() >= 54, "{}", all.len());
    assert_each_within(&all, 3, ms(25));
    for worker in workers {
        worker.stop().await;
    }
}

/// A total over all kinds holds beside the limit of each group, and no kind keeps of it what another
/// one needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_of_several_kinds_have_a_total() {
    let site = Site::new("tenants-total").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&pattern(&site), log.behind(&gate)));
    let limit = each_tenant().concurrency(3).total_concurrency(5);
    site.client.limit(&prefix(&site), limit).await.unwrap();
    let kinds = KINDS.map(|biz| kind(&site, biz));
    // One tenant in one kind cannot use more than three.
    for number in 0..10 {
        let key = format!("{}:acme/{number}", kinds[0]);
        site.client.schedule(key, "").await.unwrap();
    }
    runs.take(3).await;
    crowd(&site, &kinds[1..], 3).await;
    runs.take(2).await;
    eventually("five run", async || {
        let state = site.client.get_limit(&prefix(&site)).await.unwrap();
        (state.unwrap().leased == 5).then_some(())
    })
    .await;
    gate.open();
    runs.take(23).await;
    all_ended(&site, &KINDS).await;
    worker.stop().await;
    runs.assert_no_more();
}
