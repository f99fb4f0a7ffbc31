//! Durable writes: their answers wait for replicas or disks.

use futures_util::future::join_all;
use keyfall::{Cancelled, Durable, Handler, NewJob, Outcome, Router, Settled};
use keyfall_testing::proxies::FreezingProxy;
use rustix::process::Signal;

use super::nodes::Node;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, ms};
use crate::version::ServerVersion;

/// Long enough for any machine, since only a failure takes that long.
fn patiently(replicas: u32) -> Durable {
    Durable::replicas(replicas).within(ms(10_000))
}

/// A short time, for goals that are not reached.
fn in_vain(replicas: u32) -> Durable {
    Durable::replicas(replicas).within(ms(50))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_counts_the_replicas_that_have_the_write() {
    let primary = Node::start(None).await;
    let replica = Node::start(Some(primary.port)).await;
    primary.is_followed_by(1).await;
    let site = Site::at(&primary.server.url(), "durable").await;

    let call = site.client.schedule(site.key(1), "").after(HOUR);
    let scheduled = call.durable(patiently(1)).await.unwrap();
    let reached = scheduled.reached.unwrap();
    assert_eq!((reached.is_met, reached.replicas), (true, 1));
    let behind = Site::at(&primary.server.url(), "durable-other").await;
    let there: bool = crate::site::command(
        &mut crate::site::connect(&replica.server.url()).await,
        &["HEXISTS", "keyfall:{durable:it:job/0}:shadow", "1"],
    )
    .await;
    assert!(there, "it is on the replica by the time of the answer");

    // A stopped replica acknowledges nothing, although its connection stays open.
    replica.signal(Signal::STOP);
    let call = site.client.schedule(site.key(2), "").after(HOUR);
    let scheduled = call.durable(in_vain(1)).await.unwrap();
    let reached = scheduled.reached.unwrap();
    assert_eq!((reached.is_met, reached.replicas), (false, 0));
    let (cancelled, reached) = site
        .client
        .cancel(site.key(1))
        .durable(in_vain(1))
        .await
        .unwrap();
    assert_eq!((cancelled, reached.replicas), (Cancelled::Cancelled, 0));
    // Calls that are not durable do not wait, and calls that ask for less are not held up.
    let plain = site.client.schedule(site.key(3), "").after(HOUR).await;
    assert_eq!(plain.unwrap().reached, None);
    let jobs = [
        NewJob::new(site.key(4), "").after(HOUR).durable(in_vain(1)),
        NewJob::new(site.key(5), "").after(HOUR),
    ];
    let answers = site.client.schedule_many(jobs).await;
    let reached: Vec<Option<bool>> = answers
        .into_iter()
        .map(|it| Some(it.unwrap().unwrap().reached?.is_met))
        .collect();
    assert_eq!(reached, [Some(false), None]);

    replica.signal(Signal::CONT);
    let (cancelled, reached) = site
        .client
        .cancel(site.key(2))
        .durable(patiently(1))
        .await
        .unwrap();
    assert_eq!((cancelled, reached.replicas), (Cancelled::Cancelled, 1));
    // More replicas than there are.
    let (_, reached) = site
        .client
        .cancel(site.key(3))
        .durable(in_vain(2))
        .await
        .unwrap();
    assert_eq!((reached.is_met, reached.replicas <= 1), (false, true));
    behind.assert_balanced().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_durable_calls_share_a_wait() {
    let primary = Node::start(None).await;
    let _replica = Node::start(Some(primary.port)).await;
    primary.is_followed_by(1).await;
    let site = Site::at(&primary.server.url(), "together").await;
    let calls = site.keys(400).map(|key| {
        let call = site.client.schedule(key, "").after(HOUR);
        async move { call.durable(patiently(1)).await.unwrap().reached.unwrap() }
    });
    assert!(join_all(calls).await.iter().all(|reached| reached.is_met));
    let stats: String = site.command(&["INFO", "commandstats"]).await;
    let of_wait = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    let waits: u64 = of_wait.unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(waits < 100, "{waits} for 400 calls");
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_on_disk_are_reported_where_the_server_can_tell() {
    let log = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let primary = Node::with(None, &log).await;
    let _replica = Node::with(Some(primary.port), &log).await;
    primary.is_followed_by(1).await;
    let site = Site::at(&primary.server.url(), "on-disk").await;
    let tells = ServerVersion::of(&mut site.redis()).await >= ServerVersion::Redis(7, 2);
    let call = site.client.schedule(site.key(1), "").after(HOUR);
    let scheduled = call.durable(patiently(1).fsynced()).await.unwrap();
    let reached = scheduled.reached.unwrap();
    assert_eq!(reached.replicas, 1);
    assert_eq!(reached.is_met, tells, "{reached:?}");
    assert_eq!(reached.on_disk, tells.then_some(true));
    assert_eq!(reached.replicas_on_disk, tells.then_some(1));

    // Without a log of its own, the primary can only report other servers.
    let () = site.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    let call = site.client.schedule(site.key(2), "").after(HOUR);
    let scheduled = call.durable(patiently(1).fsynced()).await.unwrap();
    let reached = scheduled.reached.unwrap();
    assert_eq!((reached.is_met, reached.replicas), (false, 1));
    assert_eq!(reached.on_disk, tells.then_some(false));
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_the_server_forgot_is_repeated() {
    let primary = Node::start(None).await;
    let proxy = FreezingProxy::to(&primary.server).await;
    let site = Site::found_by(&proxy.url, &primary.server.url(), "forgotten").await;
    let aside = Site::at(&primary.server.url(), "forgotten").await;
    proxy.freeze_before("WAIT");
    let (client, key) = (site.client.clone(), site.key(1));
    let call = tokio::spawn(async move {
        let call = client.schedule(key, "").after(HOUR);
        call.durable(in_vain(0)).await
    });
    eventually("it waits", async || proxy.is_frozen().then_some(())).await;
    assert_eq!(aside.stats().await.pending, 1, "it was made");
    // As after a fail-over to a replica without the write.
    let () = site.command(&["FLUSHALL"]).await;
    proxy.thaw();
    assert!(call.await.unwrap().unwrap().reached.unwrap().is_met);
    assert_eq!(site.stats().await.pending, 1, "and made again");
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ends_of_runs_on_durable_routes_are_durable() {
    let primary = Node::start(None).await;
    let proxy = FreezingProxy::to(&primary.server).await;
    let replica = Node::start(Some(primary.port)).await;
    primary.is_followed_by(1).await;
    let site = Site::found_by(&proxy.url, &primary.server.url(), "durable-runs").await;
    let (log, mut runs) = recorder();
    let route = log.done().durable(patiently(1));
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    worker.ready().await;
    for id in 0..20 {
        site.client.schedule(site.key(id), "").await.unwrap();
    }
    runs.take(20).await;
    assert_eq!(site.all_ended().await.done, 20);
    // The end of a job is visible before its worker has waited for the replicas.
    worker.stop().await;
    let stats: String = site.command(&["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_wait:"), "it waits");

    // Another client ends a lease.
    let (log, mut runs) = recorder();
    let handed = log.then(|_| Outcome::HandedOver);
    let worker = site.serve(Router::new().route(&site.pattern(), handed));
    site.client.schedule(site.key("x"), "").await.unwrap();
    let lease = runs.next().await.lease().clone();
    replica.signal(Signal::STOP);
    let settle = site.client.settle(&lease, Outcome::Done);
    let (settled, reached) = settle.durable(in_vain(1)).await.unwrap();
    assert_eq!(settled, Settled::Done);
    assert!(!reached.unwrap().is_met);
    let again = site.client.settle(&lease, Outcome::Done).durable(1).await;
    assert_eq!(again.unwrap(), (Settled::Gone, None));
    replica.signal(Signal::CONT);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_and_the_http_api_can_make_durable_calls() {
    let primary = Node::start(None).await;
    let _replica = Node::start(Some(primary.port)).await;
    primary.is_followed_by(1).await;
    let site = Site::at(&primary.server.url(), "durable-cli").await;
    for (id, site) in [
        (1, &site),
        (
            2,
            &Site::at(&site.url, "durable-cli").await.through_a_daemon(),
        ),
    ] {
        let key = site.key(id);
        let ran = site
            .run(&format!("schedule {key} --after 1h --durable 1 --json"))
            .await;
        assert_eq!(ran.value()["reached"]["replicas"], 1, "{ran:?}");
        let ran = site.run(&format!("cancel {key} --durable 1")).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("; 1 replica had it in time"), "{ran:?}");
    }
    let ran = site.run("cancel --all --durable 1 --yes").await;
    ran.fails(2, "name one job");
    site.assert_balanced().await;
}
