//! `streams/append.lua` and `streams/join.lua`: entries of a stream in which several groups
//! acknowledge.

use redis::aio::MultiplexedConnection;

use crate::embedded::Embedded;
use crate::names::Names;
use crate::settings::ClientSettings;
use crate::store::target_redis::{EntryQuery, EntryStatus, TargetRedis};

const STREAM: &str = "orders";

/// More entries than one node of a stream holds; Redis trims whole nodes.
const ENTRIES: u32 = 300;

async fn ask<T: redis::FromRedisValue>(redis: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query_async(redis).await.unwrap()
}

/// The server lists groups by name, so the test tries both orders.
#[tokio::test]
async fn a_trim_is_noted_for_each_group_of_the_stream() {
    let server = Embedded::start().await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    for (mine, other) in [("a", "b"), ("b", "a")] {
        let () = ask(&mut redis, &["FLUSHALL"]).await;
        let target = || TargetRedis::new(&server.url(), &ClientSettings::default()).unwrap();
        target().make_group(STREAM, other).await.unwrap();
        for _ in 0..ENTRIES {
            let _: String = ask(&mut redis, &["XADD", STREAM, "*", "field", "value"]).await;
        }
        // This process has never seen the other group.
        let target = target();
        let mut length = u64::from(ENTRIES);
        let mut trims = 0;
        for number in 0..4 {
            let lease = format!("lease{number}");
            let fields = [("field", b"value".to_vec())];
            let append = target.append(STREAM, mine, 10, &lease, &fields);
            append.await.unwrap();
            let left: u64 = ask(&mut redis, &["XLEN", STREAM]).await;
            trims += u32::from(left <= length);
            length = left;
            for group in [mine, other] {
                let notes = Names::written(STREAM, group);
                let oldest: Option<String> = ask(&mut redis, &["HGET", &notes, "oldest"]).await;
                let is_noted = oldest.is_some();
                assert_eq!(
                    is_noted,
                    trims > 0,
                    "{group}, after {number}, beside {mine}"
                );
            }
        }
        assert!(trims > 0, "nothing was trimmed");
    }
}

#[tokio::test]
async fn a_group_that_is_made_anew_has_none_of_the_old_notes() {
    let server = Embedded::start().await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let target = || TargetRedis::new(&server.url(), &ClientSettings::default()).unwrap();
    let notes = Names::written(STREAM, "group");
    for lost in [
        vec!["DEL", STREAM],
        vec!["XGROUP", "DESTROY", STREAM, "group"],
    ] {
        let () = ask(&mut redis, &["FLUSHALL"]).await;
        target().make_group(STREAM, "group").await.unwrap();
        let fields = [("lease", b"old".to_vec())];
        let append = target();
        let append = append.append(STREAM, "group", 10, "old", &fields);
        append.await.unwrap();
        let _: u64 = ask(&mut redis, &["HSET", &notes, "1-1", "older"]).await;
        let _: u64 = ask(&mut redis, &lost).await;
        target().make_group(STREAM, "group").await.unwrap();
        let left: Option<String> = ask(&mut redis, &["HGET", &notes, "1-1"]).await;
        assert_eq!(left, None, "after {lost:?}");
    }
}

#[tokio::test]
async fn entries_are_judged_in_the_order_of_their_numbers() {
    let server = Embedded::start().await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let target = TargetRedis::new(&server.url(), &ClientSettings::default()).unwrap();
    // As text, another order.
    let ids = [
        "9-2", "9-9", "9-10", "9-11", "10-1", "10-100", "11-20", "100-3",
    ];
    for id in ids {
        let _: String = ask(&mut redis, &["XADD", STREAM, id, "lease", id]).await;
    }
    target.make_group(STREAM, "group").await.unwrap();
    let queries: Vec<EntryQuery> = ids
        .iter()
        .map(|id| EntryQuery {
            id: id.parse().unwrap(),
            lease: (*id).to_owned(),
            is_sought: true,
        })
        .collect();
    for read in 0..=ids.len() {
        let states = target.look(STREAM, "group", &queries).await.unwrap();
        let unread = |status: &EntryStatus| *status == EntryStatus::Unread;
        let are_unread: Vec<bool> = states.unwrap().iter().map(unread).collect();
        let expected: Vec<bool> = (0..ids.len()).map(|place| place >= read).collect();
        assert_eq!(are_unread, expected, "after {read} of them were read");
        let next = [
            "XREADGROUP",
            "GROUP",
            "group",
            "me",
            "COUNT",
            "1",
            "STREAMS",
            STREAM,
            ">",
        ];
        let _: redis::Value = ask(&mut redis, &next).await;
    }
}

#[tokio::test]
async fn an_entry_needs_looks_until_it_is_acknowledged_and_its_job_has_ended() {
    let server = Embedded::start().await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let target = TargetRedis::new(&server.url(), &ClientSettings::default()).unwrap();
    let ids = ["1-1", "2-1", "3-1", "4-1"];
    for id in ids {
        let _: String = ask(&mut redis, &["XADD", STREAM, id, "lease", id]).await;
    }
    let _: String = ask(&mut redis, &["XADD", STREAM, "5-1", "field", "no lease"]).await;
    target.make_group(STREAM, "group").await.unwrap();
    let read = [
        "XREADGROUP",
        "GROUP",
        "group",
        "me",
        "COUNT",
        "3",
        "STREAMS",
        STREAM,
        ">",
    ];
    let _: redis::Value = ask(&mut redis, &read).await;
    // Two consumers are done; for one of their entries the job has not ended yet. The notes of the
    // entry that is still held are gone.
    let _: u64 = ask(&mut redis, &["XACK", STREAM, "group", "1-1", "2-1"]).await;
    let gone = ["1-1", "3-1"].map(|id| id.parse().unwrap());
    target.forget_written(STREAM, "group", &gone).await.unwrap();
    let entries = target
        .entries(STREAM, "group", "0-0".parse().unwrap(), 9)
        .await;
    let open: Vec<String> = entries
        .unwrap()
        .into_iter()
        .filter_map(|(_, lease)| lease)
        .collect();
    assert_eq!(open, ["2-1", "3-1", "4-1"]);
}
