//! The memory of a ledger for its callers, and how long it lasts.

use super::support::{Bench, HOUR, State, after, soon, words};
use crate::embedded::Embedded;
use crate::store::{Lane, Placement};

use State::*;

/// Schedules a job in a lane of its own, and makes the call some minutes old.
async fn call_of_the_past(bench: &Bench, id: &str, minutes: u64) -> (Lane, [Placement; 1]) {
    let mut lane = Lane::new();
    let items = [bench.placement(id, after(HOUR))];
    bench
        .ledger
        .schedule(&mut lane, &items, soon())
        .await
        .unwrap();
    let at = (bench.now().await - minutes * 60_000).to_string();
    let remembered = String::from_utf8(of_lane(bench, &lane).await.unwrap()).unwrap();
    let words: Vec<&str> = remembered.splitn(3, ' ').collect();
    let aged = format!("{} {at} {}", words[0], words[2]);
    let names = bench.names();
    let _: u64 = bench.ask(&["HSET", &names.calls, lane.id(), &aged]).await;
    let _: u64 = bench.ask(&["ZADD", &names.lanes, &at, lane.id()]).await;
    (lane, items)
}

async fn of_lane(bench: &Bench, lane: &Lane) -> Option<Vec<u8>> {
    bench.field(&bench.names().calls, lane.id()).await
}

#[tokio::test]
async fn a_lane_silent_for_an_hour_is_forgotten() {
    let bench = Bench::new().await;
    let (recent, items) = call_of_the_past(&bench, "recent", 59).await;
    let (silent, _) = call_of_the_past(&bench, "silent", 61).await;
    assert!(of_lane(&bench, &silent).await.is_some());
    bench.schedule("other", after(HOUR)).await;
    assert_eq!(of_lane(&bench, &silent).await, None);
    assert_eq!(bench.score(&bench.names().lanes, silent.id()).await, None);
    let mut again = recent.rewound(1);
    let answers = bench
        .ledger
        .schedule(&mut again, &items, soon())
        .await
        .unwrap();
    assert_eq!(words(&answers), ["created"], "the recent one is remembered");
    bench.balanced().await;
}

#[tokio::test]
async fn an_old_lane_that_was_used_since_is_kept() {
    let bench = Bench::new().await;
    let (mut lane, items) = call_of_the_past(&bench, "job", 61).await;
    let names = bench.names();
    let met = bench.score(&names.lanes, lane.id()).await;
    bench
        .ledger
        .schedule(&mut lane, &items, soon())
        .await
        .unwrap();
    // A call in a known lane does not write `lanes`, which saves a write.
    assert_eq!(bench.score(&names.lanes, lane.id()).await, met);
    let used = bench.now().await - 30 * 60_000;
    let call = format!("2 {used} replaced:1");
    let _: u64 = bench.ask(&["HSET", &names.calls, lane.id(), &call]).await;
    bench.schedule("other", after(HOUR)).await;
    assert!(of_lane(&bench, &lane).await.is_some());
    let looked_at = bench.score(&names.lanes, lane.id()).await;
    assert_eq!(
        looked_at,
        Some(used),
        "it comes up again an hour from its last use"
    );
    bench.balanced().await;
}

#[tokio::test]
async fn lanes_are_forgotten_eight_at_a_time() {
    let bench = Bench::new().await;
    for i in 0..20 {
        // Each lane is stored before any of the others is made old.
        let (lane, _) = call_of_the_past(&bench, &format!("job-{i}"), 0).await;
        let _: u64 = bench.ask(&["ZREM", &bench.names().lanes, lane.id()]).await;
    }
    let mut calls: Vec<String> = bench.ask(&["HKEYS", &bench.names().calls]).await;
    let is_lane = |field: &String| !["fence", "unlisted"].contains(&field.as_str());
    calls.retain(is_lane);
    let old = (bench.now().await - 4_000_000).to_string();
    for lane in calls {
        let _: u64 = bench
            .ask(&["HSET", &bench.names().calls, &lane, &format!("1 {old} x")])
            .await;
        let _: u64 = bench
            .ask(&["ZADD", &bench.names().lanes, &old, &lane])
            .await;
    }
    // Each call adds its own new lane, and removes up to eight old ones.
    for left in [20 + 1 - 8, 13 + 1 - 8, 6 + 1 - 4, 4] {
        bench.schedule("other", after(HOUR)).await;
        let remembered: usize = bench.ask(&["HLEN", &bench.names().calls]).await;
        assert_eq!(remembered, left + 2, "the fencing value and the mark stay");
        let lanes: usize = bench.ask(&["ZCARD", &bench.names().lanes]).await;
        assert_eq!(lanes, left);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn the_fencing_value_outlives_every_lane() {
    let bench = Bench::new().await;
    let fence = bench.run("job", HOUR).await.fence;
    let names = bench.names();
    let old = (bench.now().await - 4_000_000).to_string();
    let lanes: Vec<String> = bench.ask(&["ZRANGE", &names.lanes, "0", "-1"]).await;
    for lane in lanes {
        let _: u64 = bench
            .ask(&["HSET", &names.calls, &lane, &format!("1 {old} x")])
            .await;
        let _: u64 = bench.ask(&["ZADD", &names.lanes, &old, &lane]).await;
    }
    bench.schedule("other", after(HOUR)).await;
    let stored: u64 = bench.ask(&["HGET", &names.calls, "fence"]).await;
    assert_eq!(stored, fence);
    bench.balanced().await;
}

#[tokio::test]
async fn lanes_do_not_disturb_each_other() {
    let bench = Bench::new().await;
    let [mut one, mut two] = [Lane::new(), Lane::new()];
    let mut last = 0;
    for (lane, id) in [(&mut one, "a"), (&mut two, "b")] {
        for _ in 0..3 {
            let items = [bench.placement(id, after(HOUR))];
            bench.ledger.schedule(lane, &items, soon()).await.unwrap();
            last += 1;
            assert_eq!(bench.counted("accepted").await, last);
        }
    }
    let items = [bench.placement("a", after(HOUR))];
    let mut again = one.rewound(3);
    let answers = bench
        .ledger
        .schedule(&mut again, &items, soon())
        .await
        .unwrap();
    assert_eq!(words(&answers), ["replaced"]);
    assert_eq!(bench.counted("accepted").await, last);
    bench.balanced().await;
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_gets_them_again() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    for state in State::ALL {
        let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
        bench.bring(&state.id(), state).await;
        assert_eq!(bench.state(&state.id()).await, state);
        let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
        bench.cancel(&state.id()).await;
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_after_a_restart_of_the_server_gets_the_first_answer() {
    // With `everysec`, a server whose disk is busy answers before it writes to the file.
    let options = Embedded::options().args(["--appendfsync", "always"]);
    let mut server = options.start().await.unwrap();
    let mut lane = Lane::new();
    let kind = {
        let bench = Bench::on(&server).await;
        let items = [bench.placement("job", after(HOUR))];
        bench
            .ledger
            .schedule(&mut lane, &items, soon())
            .await
            .unwrap();
        bench.balanced().await;
        bench.ledger.kind().clone()
    };
    server.kill_server().await.unwrap();
    server.restart().await.unwrap();
    let bench = Bench::of(&server.url(), kind).await;
    assert_eq!(bench.state("job").await, Pending);
    let items = [bench.placement("job", after(HOUR))];
    let mut again = lane.rewound(1);
    let answers = bench
        .ledger
        .schedule(&mut again, &items, soon())
        .await
        .unwrap();
    assert_eq!(words(&answers), ["created"]);
    assert_eq!(bench.balanced().await.accepted, 1);
}
