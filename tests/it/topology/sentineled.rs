//! A primary that sentinels watch fails over, and jobs continue.

use keyfall::embedded::Embedded;
use keyfall::{Client, Durable, ErrorKind, Router};
use keyfall_testing::files::repository;
use keyfall_testing::ports::free_port;
use rustix::process::Signal;

use super::sentinels::{SentinelTerms, Sentineled};
use super::stale::stale_sentinel;
use crate::encrypted::Authority;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, ms};

/// Schedules jobs until it is told to stop, and keeps the acknowledged ones.
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
async fn faults_of_sentinels_are_reported_with_the_remedy() {
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
            "watches no primary named other",
        ),
        (
            format!("redis+sentinel://127.0.0.1:{}/main", them.nodes[0].port),
            ErrorKind::InvalidSetting,
            "is not a sentinel",
        ),
        (
            "redis+sentinel://127.0.0.1:1/main".to_owned(),
            ErrorKind::Unavailable,
            "127.0.0.1:1, which the URL names as a sentinel",
        ),
    ] {
        let error = of(url).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let of_sentinel = url.replace("+sentinel", "");
    let first = of_sentinel.split(',').next().unwrap().to_owned();
    let error = of(first).await;
    assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{error}");
    assert!(
        error
            .to_string()
            .contains("is a sentinel: write redis+sentinel://")
    );
    // Sentinels that do not answer do no harm, at any place in the URL.
    let some_away = url.replace("//", "//127.0.0.1:1,");
    Client::connect(&some_away).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_continue_after_a_fail_over() {
    let them = Sentineled::start().await;
    let behind = them.nodes[0].server.url();
    let mut site = Site::found_by(&them.url(), &behind, "sentinels").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    worker.ready().await;
    let first = schedule_some(&site.client, &site.app, 0, 20).await;
    assert_eq!(crate::runs::ids(&runs.take(20).await).len(), first.len());

    // A requested fail-over: the old primary answers all the while.
    let old = them.primary().await;
    them.fail_over().await;
    let new = them.fails_over_from(old).await;
    schedule_some(&site.client, &site.app, 100, 20).await;
    runs.take(20).await;

    // The primary is killed.
    let mut them = them;
    them.nodes[new].server.kill_server().await.unwrap();
    schedule_some(&site.client, &site.app, 200, 20).await;
    runs.take(20).await;
    let newest = them.fails_over_from(new).await;

    // A server that comes back is a replica, and no client uses it.
    them.nodes[new].server.restart().await.unwrap();
    schedule_some(&site.client, &site.app, 300, 20).await;
    runs.take(20).await;
    worker.stop().await;
    runs.assert_no_more();
    site.url = them.nodes[newest].server.url();
    site.reconnect().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_hang_on_the_old_primary_move_to_the_new_one() {
    let them = Sentineled::start().await;
    let client = Client::builder(&them.url())
        .response_timeout(HOUR)
        .call_timeout(ms(60_000));
    let client = client.connect().await.unwrap();
    let old = them.primary().await;
    them.nodes[old].signal(Signal::STOP);
    // The client waits an hour for the primary, unless there is a new one.
    let call = client.schedule("sentinel-hung:it:job:1", "").after(HOUR);
    call.await.unwrap();
    them.nodes[old].signal(Signal::CONT);
}

#[tokio::test]
async fn sentinels_can_have_their_own_password() {
    let password = Some("of-sentinels");
    let them = Sentineled::with(SentinelTerms {
        password,
        ..SentinelTerms::default()
    })
    .await;
    for url in [them.url(), them.url() + "?sentinel_password=wrong"] {
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains("set sentinel_user and sentinel_password"));
        assert!(!text.contains("wrong,"), "{text}");
    }
    let url = them.url() + "?sentinel_password=of-sentinels";
    let client = Client::connect(&url).await.unwrap();
    let old = them.primary().await;
    them.fail_over().await;
    them.fails_over_from(old).await;
    schedule_some(&client, "sentinel-password", 0, 5).await;
}

#[tokio::test]
async fn sentinels_and_servers_can_speak_tls() {
    let authority = Authority::new();
    let identity = authority.signs("127.0.0.1");
    let name = format!("keyfall-tls-{:016x}", rand::random::<u64>());
    let files = std::env::temp_dir().join(name);
    std::fs::create_dir(&files).unwrap();
    for (name, text) in [
        ("ca.pem", authority.pem()),
        ("redis.pem", identity.chain),
        ("redis.key", identity.key),
    ] {
        std::fs::write(files.join(name), text).unwrap();
    }
    let tls = Some(files.clone());
    let mut them = Sentineled::with(SentinelTerms {
        tls,
        ..SentinelTerms::default()
    })
    .await;
    let url = them.url().replace("redis+", "rediss+") + "?sentinel_tls=true";
    let connect = |url: &str| {
        Client::builder(url)
            .ca_certificate(authority.pem())
            .call_timeout(ms(20_000))
    };
    let client = connect(&url).connect().await.unwrap();
    schedule_some(&client, "sentinel-tls", 0, 5).await;
    let old = them.primary().await;
    them.nodes[old].server.kill_server().await.unwrap();
    schedule_some(&client, "sentinel-tls", 5, 5).await;

    // A client that wants TLS from a server without TLS, and the other way round.
    let plain = Sentineled::start().await;
    for (url, part) in [
        (url.replace("?sentinel_tls=true", ""), "TLS"),
        (plain.url().replace("redis+", "rediss+"), "TLS"),
    ] {
        let error = connect(&url).connect().await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    std::fs::remove_dir_all(files).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_sentinel_delays_nothing() {
    let them = Sentineled::start().await;
    them.signal_sentinel(0, Signal::STOP);
    let client = Client::connect(&them.url()).await.unwrap();
    schedule_some(&client, "sentinel-hangs", 0, 5).await;
    let old = them.primary().await;
    them.fail_over().await;
    them.fails_over_from(old).await;
    schedule_some(&client, "sentinel-hangs", 5, 5).await;
    // Now the sentinel names the old primary, until the others tell it the new one.
    them.signal_sentinel(0, Signal::CONT);
    let other = Client::connect(&them.url()).await.unwrap();
    schedule_some(&other, "sentinel-hangs", 10, 5).await;
    let stats = client.stats("sentinel-hangs:it:job").await.unwrap();
    assert!(stats.pending >= 10, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_sentinel_that_names_the_old_primary_is_ignored() {
    let them = Sentineled::start().await;
    let old = them.primary().await;
    let stale = stale_sentinel(them.nodes[old].port).await;
    let url = them.url().replace("//", &format!("//{stale},"));
    let early = Client::connect(&url).await.unwrap();
    them.fail_over().await;
    let new = them.fails_over_from(old).await;
    let late = Client::connect(&url).await.unwrap();
    for (client, from) in [(&early, 0), (&late, 10)] {
        schedule_some(client, "sentinel-stale", from, 10).await;
    }
    let there = Client::connect(&them.nodes[new].server.url())
        .await
        .unwrap();
    let stats = there.stats("sentinel-stale:it:job").await.unwrap();
    assert_eq!(stats.pending, 20);
    // Alone, this sentinel is the only source.
    let alone = format!("redis+sentinel://{stale}/main");
    let told = Client::builder(&alone)
        .call_timeout(ms(1000))
        .connect()
        .await;
    let is_old = |error: keyfall::Error| error.to_string().contains("is still a replica");
    assert!(told.map_or_else(is_old, |_| true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_on_all_replicas_survive_a_requested_fail_over() {
    let them = Sentineled::start().await;
    let client = Client::connect(&them.url()).await.unwrap();
    let wanted = Durable::replicas(2).within(ms(300));
    let old = them.primary().await;
    let (mut met, mut id) = (Vec::new(), 0);
    let mut schedule = async |met: &mut Vec<String>| {
        id += 1;
        let key = format!("sentinel-graceful:it:job:{id}");
        let call = client.schedule(&key, "").after(HOUR).durable(wanted);
        if let Ok(scheduled) = call.await
            && scheduled.reached.unwrap().is_met
        {
            met.push(key);
        }
    };
    for _ in 0..20 {
        schedule(&mut met).await;
    }
    assert!(!met.is_empty(), "both replicas are there");
    // The old primary accepts writes until a sentinel demotes it.
    them.fail_over().await;
    while them.primary().await == old {
        schedule(&mut met).await;
    }
    let before = met.len();
    eventually("both replicas follow the new one", async || {
        schedule(&mut met).await;
        (met.len() > before).then_some(())
    })
    .await;
    let new = them.primary().await;
    let there = Client::connect(&them.nodes[new].server.url())
        .await
        .unwrap();
    for key in met {
        assert!(there.get(&key).await.unwrap().is_some(), "{key} is lost");
    }
}

#[tokio::test]
async fn the_shipped_settings_work_for_a_fail_over() {
    let file = |name: &str| {
        let folder = repository().join("ops/sentinel");
        folder.join(name).display().to_string()
    };
    let port = free_port().to_string();
    let primary = Embedded::options()
        .args(["--include", &file("primary.conf")])
        .args(["--bind", "127.0.0.1", "--port", &port]);
    let primary = primary.start().await.unwrap();
    let refused = Client::connect(&primary.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    let replica = Embedded::options()
        .args(["--include", &file("replica.conf")])
        .args(["--replicaof", "127.0.0.1", &port]);
    let _replica = replica.start().await.unwrap();
    eventually("a replica is near", async || {
        Client::connect(&primary.url()).await.ok()
    })
    .await;
    let site = Site::at(&primary.url(), "shipped").await;
    let call = site.client.schedule(site.key(1), "").after(HOUR);
    call.durable(1).await.unwrap();

    // The text as documented, except for the address of the primary.
    let text = std::fs::read_to_string(file("sentinel.conf")).unwrap();
    let seat = free_port();
    let text = text.replace("port 26379", &format!("port {seat}"));
    let text = text.replace("127.0.0.1 6379 2", &format!("127.0.0.1 {port} 1"));
    let sentinel = super::sentinels::Lone::start(&text);
    let url = format!("redis+sentinel://127.0.0.1:{seat}/main");
    let client = eventually("a sentinel", async || Client::connect(&url).await.ok()).await;
    client.cancel(site.key(1)).await.unwrap();
    drop(sentinel);
    site.assert_balanced().await;
}
