//! A full Redis, names that are taken, and databases that do not fit.

use std::collections::HashMap;

use keyfall::{LibraryState, Router};
use redis::Value;

use super::site;
use crate::monitor::Monitor;
use crate::runs::recorder;
use crate::site::Site;

#[tokio::test]
async fn a_full_redis_refuses_new_jobs_and_can_cancel_and_look_up() {
    let Some((_server, site)) = site().await else {
        return;
    };
    site.placed("1", &["x", "EX", "3600"]).await;
    let () = site.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let told = site
        .refused("schedule", &site.key("2"), &["x", "EX", "1"])
        .await;
    assert!(told.starts_with("OOM"), "{told}");
    let told: HashMap<String, Value> = site.fcall("get", "1", &[]).await;
    assert_eq!(told["state"], Value::BulkString(b"pending".to_vec()));
    let word: String = site.fcall("cancel", "1", &[]).await;
    assert_eq!(word, "cancelled");
    let () = site.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(site.client.get(site.key("2")).await.unwrap().is_none());
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_taken_trigger_name_is_left_alone_and_reported() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let () = site.command(&["SET", &site.key("1"), "foreign"]).await;
    let answer: Vec<Value> = site.fcall("schedule", "1", &["x", "EX", "3600"]).await;
    assert_eq!(answer[2], Value::BulkString(b"unarmed".to_vec()));
    let value: String = site.command(&["GET", &site.key("1")]).await;
    assert_eq!(value, "foreign");
    // A call on a ledger with a foreign key writes all or nothing.
    let stats = "keyfall:{fcall:it:job/0}:stats";
    let () = site.command(&["RENAME", stats, "kept"]).await;
    let () = site.command(&["SET", stats, "x"]).await;
    let told = site
        .refused("schedule", &site.key("2"), &["x", "EX", "1"])
        .await;
    assert!(told.starts_with("WRONGTYPE"), "{told}");
    let () = site.command(&["RENAME", "kept", stats]).await;
    assert!(site.client.get(site.key("2")).await.unwrap().is_none());
    site.assert_balanced().await;
}

#[tokio::test]
async fn one_of_several_servers_is_refused() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let server = ["HSET", "keyfall:meta", "server", "1 of 2"];
    let _: u64 = site.command(&server).await;
    for (name, args) in [("schedule", "x EX 1"), ("cancel", ""), ("get", "")] {
        let args: Vec<&str> = args.split_whitespace().collect();
        let told = site.refused(name, &site.key("1"), &args).await;
        assert!(told.starts_with("INCOMPATIBLE"), "{told}");
        assert!(
            told.contains("server \"1 of 2\"") && told.contains("by HTTP"),
            "{told}"
        );
    }
    let keys: u64 = site.command(&["DBSIZE"]).await;
    assert_eq!(keys, 1, "but for keyfall:meta");
}

#[tokio::test]
async fn an_unprepared_database_and_another_schema_are_refused() {
    let Some((server, site)) = site().await else {
        return;
    };
    let url = format!("{}?db=3", server.url());
    let other = Site::at(&url, "fcall").await;
    assert_eq!(
        other.client.functions().state().await.unwrap(),
        LibraryState::Unprepared
    );
    for (name, args) in [("schedule", "x EX 1"), ("cancel", ""), ("get", "")] {
        let args: Vec<&str> = args.split_whitespace().collect();
        let told = other.refused(name, &other.key("1"), &args).await;
        assert!(
            told.contains("`keyfall functions install --redis-url"),
            "{told}"
        );
        let meta = ["HSET", "keyfall:meta", "schema", "2"];
        let _: u64 = site.command(&meta).await;
        let told = site.refused(name, &site.key("1"), &args).await;
        assert!(told.starts_with("INCOMPATIBLE schema \"2\""), "{told}");
        let _: u64 = site.command(&["HSET", "keyfall:meta", "schema", "1"]).await;
    }
    let keys: u64 = other.command(&["DBSIZE"]).await;
    assert_eq!(keys, 1, "but for keyfall:meta");
    let before = other.client.functions().install().await.unwrap();
    assert_eq!(before, LibraryState::Unprepared);
    let (log, mut runs) = recorder();
    let worker = other.serve(Router::new().route("fcall:*:*:{id}", log.done()));
    worker.ready().await;
    // The hints go where the workers of this database listen.
    let mut commands = Monitor::of(&site.url).await;
    other.placed("1", &["x", "PX", "0"]).await;
    other.is_heard(&mut commands, &mut runs, "1").await;
    other.all_ended().await;
    worker.stop().await;
    assert!(site.client.get(site.key("1")).await.unwrap().is_none());
    other.assert_balanced().await;
}
