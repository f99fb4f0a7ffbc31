//! A primary that sentinels watch fails over, and jobs run on.

use keyfall::{Client, ErrorKind, Router};

use super::sentinels::Sentineled;
use crate::runs::{eventually, recorder};
use crate::site::{Site, ms};

/// Schedules jobs until it is told to stop, and keeps those that were acknowledged.
async fn schedule_some(client: &Client, app: &str, from: u64, count: u64) -> Vec<String> {
    let mut ids = Vec::new();
    for id in from..from + count {
        let key = format!("{app}:it:job:{id}");
        eventually("scheduled", async || {
            client.schedule(&key, "").after(ms(1500)).await.ok()
        })
        .await;
        ids.push(id.to_string());
    }
    ids
}

#[tokio::test]
async fn what_is_wrong_with_sentinels_is_said_with_the_remedy() {
    let them = Sentineled::start().await;
    let of = |url: String| async move {
        let settings = Client::builder(&url).call_timeout(ms(5_000));
        settings.connect().await.unwrap_err()
    };
    let url = them.url();
    for (url, kind, part) in [
        (
            url.replace("/main", "/other"),
            ErrorKind::InvalidSetting,
            "watches no primary of the name other",
        ),
        (
            format!("redis+sentinel://127.0.0.1:{}/main", them.nodes[0].port),
            ErrorKind::InvalidSetting,
            "is no sentinel",
        ),
        (
            "redis+sentinel://127.0.0.1:1/main".to_owned(),
            ErrorKind::Unavailable,
            "127.0.0.1:1, which is asked as a sentinel",
        ),
    ] {
        let error = of(url).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    // Those that do not answer are no hindrance, wherever they stand.
    let some_away = url.replace("//", "//127.0.0.1:1,");
    Client::connect(&some_away).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_on_after_a_fail_over() {
    let them = Sentineled::start().await;
    let behind = them.nodes[0].server.url();
    let mut site = Site::found_by(&them.url(), &behind, "sentinels").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    worker.ready().await;
    let first = schedule_some(&site.client, &site.app, 0, 20).await;
    assert_eq!(crate::runs::ids(&runs.take(20).await).len(), first.len());

    // Asked for: the old primary answers all the while.
    let old = them.primary().await;
    them.fail_over().await;
    let new = them.fails_over_from(old).await;
    schedule_some(&site.client, &site.app, 100, 20).await;
    runs.take(20).await;

    // Killed.
    let mut them = them;
    them.nodes[new].server.kill_server().await.unwrap();
    schedule_some(&site.client, &site.app, 200, 20).await;
    runs.take(20).await;
    let newest = them.fails_over_from(new).await;

    // One that comes back is a replica, and nobody's.
    them.nodes[new].server.restart().await.unwrap();
    schedule_some(&site.client, &site.app, 300, 20).await;
    runs.take(20).await;
    worker.stop().await;
    runs.assert_no_more();
    site.url = them.nodes[newest].server.url();
    site.reconnect().await;
    site.assert_balanced().await;
}
