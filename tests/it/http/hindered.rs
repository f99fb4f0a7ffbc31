//! A Redis that answers but refuses work, and the errors of the HTTP API for it.

use serde_json::{Value, json};

use super::{Daemon, assert_problem, own_redis};
use crate::runs::eventually;
use crate::site::Site;

const NONE: Value = Value::Null;

/// A daemon with a running worker: a daemon that starts now would refuse this Redis, and end.
async fn at_work(site: &Site) -> Daemon {
    let daemon = Daemon::start(site);
    eventually("the worker hears", async || {
        let seen = daemon.get("/v1/instances").await;
        (seen["instances"][0]["hears_events"] == true).then_some(())
    })
    .await;
    daemon
}

/// Waits until the daemon refuses a schedule with this code.
async fn refused(daemon: &Daemon, site: &Site, code: &str) {
    let path = format!("/v1/jobs/{}", site.key("new"));
    let answer = eventually(code, async || {
        let answer = daemon.send("PUT", &path, json!({"after": "1h"})).await;
        (answer.1["code"] == code).then_some(answer)
    })
    .await;
    assert_problem(&answer, 503, code, NONE);
    assert_eq!(answer.1["retryable"], true, "{}", answer.1);
}

async fn accepted(daemon: &Daemon, site: &Site) {
    let path = format!("/v1/jobs/{}", site.key("new"));
    eventually("it is well again", async || {
        let (status, _) = daemon.send("PUT", &path, json!({"after": "1h"})).await;
        [200, 201].contains(&status).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_redis_refuses_new_jobs_and_lets_others_end() {
    let (_redis, site) = own_redis("http-full-redis").await;
    let daemon = at_work(&site).await;
    site.client.schedule(site.key("a"), "").await.unwrap();
    let pulled = daemon.post("/v1/pull", json!({"wait": "40s"})).await;
    let () = site.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    refused(&daemon, &site, "redis_full").await;
    let leases = json!({"leases": [pulled["jobs"][0]["lease"]]});
    let finished = daemon.post("/v1/leases/finish", leases).await;
    assert_eq!(finished["results"][0]["result"], "done");
    let () = site.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    accepted(&daemon, &site).await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_redis_that_became_a_replica_takes_no_writes() {
    let (_redis, site) = own_redis("http-replica").await;
    let daemon = at_work(&site).await;
    let replica = ["CONFIG", "SET", "replica-serve-stale-data", "yes"];
    let () = site.command(&replica).await;
    let () = site.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    refused(&daemon, &site, "redis_read_only").await;
    let () = site.command(&["REPLICAOF", "NO", "ONE"]).await;
    accepted(&daemon, &site).await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_user_without_the_right_is_refused() {
    let (_redis, site) = own_redis("http-denied").await;
    let daemon = at_work(&site).await;
    let () = site
        .command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"])
        .await;
    refused(&daemon, &site, "redis_denied").await;
    let () = site
        .command(&["ACL", "SETUSER", "default", "+evalsha", "+eval"])
        .await;
    accepted(&daemon, &site).await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_and_schemas_of_newer_versions_are_left_alone() {
    let (_redis, site) = own_redis("http-newer").await;
    let daemon = at_work(&site).await;
    let key = site.key("a");
    let later = site.client.schedule(&key, "x").after(crate::site::HOUR);
    later.await.unwrap();
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let ours: String = site.command(&["HGET", &shadow, "a"]).await;
    let newer = "{\"v\":99}\n1763712345678\nx";
    let _: u64 = site.command(&["HSET", &shadow, "a", newer]).await;
    let shown = daemon.call("GET", &format!("/v1/jobs/{key}")).await;
    assert_problem(&shown, 500, "incompatible", NONE);
    assert_eq!(shown.1["retryable"], false);
    let detail = shown.1["detail"].as_str().unwrap();
    assert!(
        detail.contains("version 99") && detail.contains("use the version"),
        "{detail}"
    );
    let _: u64 = site.command(&["HSET", &shadow, "a", &ours]).await;
    site.client.cancel(&key).await.unwrap();

    let _: u64 = site
        .command(&["HSET", "keyfall:meta", "schema", "99"])
        .await;
    let refused = Daemon::command(&site, &[]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said.contains("schema 99") && said.contains("another namespace"),
        "{said}"
    );
    site.assert_balanced().await;
}
