//! Data of a newer version: every part of this one refuses them with the reason, and changes
//! nothing; also if they become newer while it runs.

use std::collections::BTreeMap;

use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, Router};

use crate::runs::{PATIENCE, eventually, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Site};
use crate::version::ServerVersion;

const NEWER: [&str; 4] = ["HSET", "keyfall:meta", "schema", "99"];
const OURS: [&str; 4] = ["HSET", "keyfall:meta", "schema", "1"];

/// Both versions are named, and the remedy.
const REASON: [&str; 3] = ["schema 99", "writes 1", "use the version that wrote it"];

impl Site {
    /// Each key with its contents, as Redis dumps it.
    async fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let mut contents = BTreeMap::new();
        for key in self.command::<Vec<String>>(&["KEYS", "*"]).await {
            let dumped: Option<Vec<u8>> = self.command(&["DUMP", &key]).await;
            contents.extend(dumped.map(|dumped| (key, dumped)));
        }
        contents
    }

    async fn connections(&self) -> u64 {
        let stats: String = self.command(&["INFO", "stats"]).await;
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().parse().unwrap()
    }

    /// Closes the connections of all processes but that of this site.
    async fn cuts_all_connections(&self) {
        for sort in ["normal", "pubsub"] {
            let kill = ["CLIENT", "KILL", "TYPE", sort, "SKIPME", "yes"];
            let _: u64 = self.command(&kill).await;
        }
    }
}

#[tokio::test]
async fn newer_data_are_refused_by_each_part_before_anything_changes() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "newer").await;
    let has_functions = ServerVersion::of(&mut site.redis()).await >= ServerVersion::Redis(7, 0);
    if has_functions {
        site.client.functions().install().await.unwrap();
    }
    for key in site.keys(3) {
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    let () = site.command(&NEWER).await;
    let before = site.contents().await;

    let told = Client::connect(&site.url).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Incompatible);
    for part in REASON {
        assert!(told.to_string().contains(part), "{told}");
    }
    let key = site.key("new");
    for command in [
        &["schedule", &key, "--after", "1h"][..],
        &["cancel", &key],
        &["list", "newer:"],
        &["count"],
        &["kinds", "list"],
        &["pause", "newer:"],
        &["audit", "--repair"],
        &["export", "newer:"],
        &[
            "serve",
            "--http-listen",
            "127.0.0.1:0",
            "--pull",
            "newer:*:*:*",
        ],
    ] {
        let mut command = keyfall(command);
        command.env("KEYFALL_REDIS_URL", &site.url);
        let ran = tokio::time::timeout(PATIENCE, Ran::of(command)).await;
        let ran = ran.expect("it ends by itself");
        for part in REASON {
            assert!(ran.code != 0 && ran.err.contains(part), "{ran:?}");
        }
    }
    if has_functions {
        let call = ["FCALL", "keyfall_cancel", "1", &key];
        let refused: redis::RedisResult<redis::Value> = redis::Cmd::new()
            .arg(&call)
            .query_async(&mut site.redis())
            .await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("schema \"99\""), "{refused}");
    }
    // The doctor looks at such a server, and says what is wrong.
    let looked = site.run("doctor").await;
    assert!(
        looked.code != 0 && looked.out.contains("schema 99"),
        "{looked:?}"
    );
    assert!(site.contents().await == before, "something has changed");
}

#[tokio::test]
async fn processes_that_run_change_nothing_once_the_data_are_newer() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "raised").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    worker.ready().await;
    site.client.schedule(site.key("first"), "").await.unwrap();
    runs.next().await;
    site.all_ended().await;
    site.client
        .schedule(site.key("later"), "")
        .after(HOUR)
        .await
        .unwrap();

    let daemon = site.daemon(&[]);
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let readyz = async || {
        let answer = reqwest::get(format!("{}/readyz", daemon.url)).await;
        answer.unwrap()
    };
    eventually("the daemon is ready", async || {
        readyz().await.status().is_success().then_some(())
    })
    .await;

    // As the newer version raises it: then nobody writes any more who does not know it.
    let () = site.command(&NEWER).await;
    site.cuts_all_connections().await;
    let due = format!("keyfall:{{{}/0}}:due", site.kind());
    let _: u64 = site.command(&["ZADD", &due, "1", "later"]).await;
    let before = site.contents().await;
    let opened = site.connections().await;
    let told = site
        .client
        .schedule(site.key("late"), "")
        .await
        .unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Incompatible, "{told}");
    for part in REASON {
        assert!(told.to_string().contains(part), "{told}");
    }
    eventually("the worker tries again and again", async || {
        (site.connections().await > opened + 10).then_some(())
    })
    .await;
    let ready = readyz().await;
    assert!(!ready.status().is_success());
    let told = ready.text().await.unwrap();
    assert!(
        told.contains("incompatible") && told.contains("schema 99"),
        "{told}"
    );
    assert!(site.contents().await == before, "something has changed");
    runs.assert_no_more();

    // A rollback of the data lets all go on.
    let () = site.command(&OURS).await;
    assert_eq!(runs.next().await.key().id(), "later");
    site.client.schedule(site.key("late"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "late");
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_of_a_newer_version_waits_for_newer_workers() {
    let site = Site::new("newer-record").await;
    let key = site.key("1");
    site.client.schedule(&key, "").after(HOUR).await.unwrap();
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let newer = "{\"v\":9,\"form\":\"unknown\"}\n1763712345678\npayload";
    let _: u64 = site.command(&["HSET", &shadow, "1", newer]).await;
    let ran = site.run(&format!("get {key}")).await;
    assert!(
        ran.code != 0 && ran.err.contains("version 9, and this program knows 3"),
        "{ran:?}"
    );

    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    site.client.fire_now(&key).await.unwrap();
    eventually("a worker gives it back", async || {
        (site.stats().await.returned > 0).then_some(())
    })
    .await;
    worker.stop().await;
    runs.assert_no_more();
    let kept: String = site.command(&["HGET", &shadow, "1"]).await;
    let lines: Vec<&str> = kept.lines().collect();
    assert_eq!(
        (lines[0], lines[2]),
        ("{\"v\":9,\"form\":\"unknown\"}", "payload")
    );
    let told = site.client.get(&key).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Incompatible, "{told}");
}

#[tokio::test]
async fn a_ledger_of_an_unknown_layout_is_left_alone() {
    let site = Site::new("newer-layout").await;
    let key = site.key("1");
    site.client.schedule(&key, "").after(HOUR).await.unwrap();
    let kind = site.kind();
    let calls = format!("keyfall:{{{kind}/0}}:calls");
    let due = format!("keyfall:{{{kind}/0}}:due");
    for (hash, field) in [("keyfall:kinds", &*kind), (&*calls, "layout")] {
        let _: u64 = site.command(&["HSET", hash, field, "1 7 1 wide"]).await;
    }
    let told = site.client.schedule(site.key("2"), "").after(HOUR).await;
    let told = told.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Incompatible, "{told}");
    assert!(told.to_string().contains("1 7 1 wide"), "{told}");
    let there: Vec<String> = site.command(&["ZRANGE", &due, "0", "-1"]).await;
    assert_eq!(there, ["1"]);
    let told = site.client.cancel(&key).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Incompatible, "{told}");
    for (hash, field) in [("keyfall:kinds", &*kind), (&*calls, "layout")] {
        let _: u64 = site.command(&["HDEL", hash, field]).await;
    }
}
