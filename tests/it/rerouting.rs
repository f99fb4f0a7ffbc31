//! Routes that are replaced while a worker runs.

use keyfall::target::Pull;
use keyfall::{ErrorKind, Handler, NewJob, Outcome, Router};

use crate::runs::{Gate, PATIENCE, eventually, recorder};
use crate::site::{HOUR, Running, Site, ms};

const ANY: [&str; 0] = [];

#[tokio::test]
async fn routes_come_and_go_and_runs_end_under_their_old_route() {
    let site = Site::new("reroute").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let of = |kind: &str| format!("{}:it:{kind}:*", site.app);
    let worker = site.worker(
        Router::new()
            .route(&of("slow"), log.behind(&gate))
            .route(&of("old"), log.done()),
    );
    let rerouter = worker.rerouter();
    let worker = Running::start(worker.grace(ms(100)));
    let key = |kind: &str| format!("{}:it:{kind}:1", site.app);
    site.client.schedule(key("slow"), "").await.unwrap();
    assert_eq!(runs.next().await.key().as_str(), key("slow"));

    let empty = rerouter.replace(Router::new()).await.unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::InvalidRoute);
    site.client.schedule(key("old"), "").await.unwrap();
    assert_eq!(runs.next().await.key().as_str(), key("old"));

    let next = Router::new().route(&of("new"), log.done());
    rerouter.replace(next).await.unwrap();
    site.client.schedule(key("old"), "").await.unwrap();
    site.client.schedule(key("new"), "").await.unwrap();
    assert_eq!(runs.next().await.key().as_str(), key("new"));
    // It says so with its next heartbeat.
    eventually("it says which routes it has", async || {
        let live = site.client.instances().await.unwrap();
        let routes = live.into_iter().flat_map(|one| one.routes);
        let own = routes.filter(|pattern| pattern.starts_with(&format!("{}:", site.app)));
        own.eq([of("new")]).then_some(())
    })
    .await;

    // Longer than the grace of a stop, which does not apply here.
    tokio::time::sleep(ms(300)).await;
    let stats = async |kind: &str| {
        let kind = format!("{}:it:{kind}", site.app);
        site.client.stats(&kind).await.unwrap()
    };
    assert_eq!(stats("slow").await.leased, 1);
    gate.open();
    eventually("it is done", async || {
        (stats("slow").await.done == 1).then_some(())
    })
    .await;
    let old = stats("old").await;
    assert_eq!((old.done, old.pending), (1, 1));
    worker.stop().await;
    let late = rerouter.replace(Router::new().route(&of("old"), log.done()));
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(runs.rest().is_empty());
    site.assert_balanced().await;
}

#[tokio::test]
async fn pulls_survive_a_change_of_routes_and_limits_hold() {
    let site = Site::new("reroute-pull").await;
    let pull = Pull::new();
    let limited = |jobs| pull.clone().lease(HOUR).concurrency(jobs);
    let router = |jobs| Router::new().route(&site.pattern(), limited(jobs));
    let worker = site.worker(router(2));
    let rerouter = worker.rerouter();
    let worker = Running::start(worker);
    // The consumers wait across the change.
    let waiting = tokio::spawn({
        let pull = pull.clone();
        async move { pull.pull(&ANY, 10, HOUR).await.unwrap() }
    });
    eventually("it waits", async || {
        format!("{pull:?}").contains("waiting: 1").then_some(())
    })
    .await;
    rerouter.replace(router(2)).await.unwrap();
    let jobs = site.keys(5).map(|key| NewJob::new(key, ""));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let mut out: Vec<_> = waiting
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.accept().unwrap().1)
        .collect();
    while out.len() < 2 {
        let got = pull.pull(&ANY, 10, PATIENCE).await.unwrap();
        out.extend(got.into_iter().map(|one| one.accept().unwrap().1));
    }
    assert_eq!(out.len(), 2);

    rerouter.replace(router(2)).await.unwrap();
    assert!(pull.pull(&ANY, 10, ms(300)).await.unwrap().is_empty());
    // Delivered jobs count in the new limit, too.
    rerouter.replace(router(3)).await.unwrap();
    let got = pull.pull(&ANY, 10, PATIENCE).await.unwrap();
    out.extend(got.into_iter().map(|one| one.accept().unwrap().1));
    assert_eq!(out.len(), 3);
    for lease in &out {
        site.client.settle(lease, Outcome::Done).await.unwrap();
    }
    let got = pull.pull(&ANY, 10, PATIENCE).await.unwrap();
    assert!((1..=2).contains(&got.len()));
    drop(got);
    worker.stop().await;
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.pending, stats.leased), (3, 2, 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_claimed_and_unaccepted_job_goes_to_the_new_routes() {
    let site = Site::new("reroute-back").await;
    let pull = Pull::new();
    let router = || Router::new().route(&site.pattern(), pull.clone().lease(HOUR));
    let worker = site.worker(router());
    let rerouter = worker.rerouter();
    let worker = Running::start(worker);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let undecided = pull.pull(&ANY, 1, HOUR).await.unwrap();
    rerouter.replace(router()).await.unwrap();
    // A job on its way to a consumer can still be accepted after its routes are replaced.
    drop(undecided);
    let got = pull.pull(&ANY, 1, HOUR).await.unwrap().pop().unwrap();
    assert_eq!(got.job().attempt(), 1);
    rerouter.replace(router()).await.unwrap();
    let (_, lease) = got.accept().unwrap();
    site.client.settle(&lease, Outcome::Done).await.unwrap();
    worker.stop().await;
    assert_eq!(site.stats().await.done, 1);
    site.assert_balanced().await;
}
