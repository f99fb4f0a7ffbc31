//! `beat.lua`: the live instances, and the forgotten ones.

use std::time::Duration;

use super::support::{Bench, Ears, soon};
use crate::embedded::Embedded;
use crate::error::ErrorKind;
use crate::store::{Alive, Beat};

/// Longer than a test may take on any machine.
const SILENCE: Duration = Duration::from_secs(60);

async fn beat(bench: &Bench, id: &str, room: &str) -> Vec<(String, String)> {
    let beat = Beat {
        id,
        room,
        description: r#"{"pid": 7}"#,
        silence: SILENCE,
    };
    let seen = bench.ledger.server.beat(&beat, soon()).await.unwrap();
    let mut seen: Vec<_> = seen.into_iter().map(|one| (one.id, one.room)).collect();
    seen.sort();
    seen
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(id, room): &(&str, &str)| ((*id).to_owned(), (*room).to_owned());
    expected.iter().map(owned).collect()
}

/// Gives an instance a last beat that is this old.
async fn age(bench: &Bench, id: &str, ms: u64) {
    let then = bench.now().await - ms;
    let row = format!("{then} 1h {{}}");
    let _: u64 = bench.ask(&["HSET", "keyfall:instances", id, &row]).await;
}

#[tokio::test]
async fn instances_see_each_other_until_one_is_silent_or_leaves() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    let (store, server) = (&bench.ledger.store, &bench.ledger.server);
    assert_eq!(beat(&bench, "a", "1h").await, pairs(&[("a", "1h")]));
    assert_eq!(
        beat(&bench, "b", "0d").await,
        pairs(&[("a", "1h"), ("b", "0d")])
    );
    assert_eq!(
        beat(&bench, "a", "0h").await,
        pairs(&[("a", "0h"), ("b", "0d")])
    );
    let described = server.descriptions(&["b", "nobody"], soon()).await.unwrap();
    assert_eq!(described, [Some(r#"{"pid": 7}"#.to_owned()), None]);
    let live = store.instances(SILENCE, soon()).await.unwrap();
    assert_eq!(live.len(), 2);

    age(&bench, "b", 120_000).await;
    assert_eq!(beat(&bench, "a", "1h").await, pairs(&[("a", "1h")]));
    let live = store.instances(SILENCE, soon()).await.unwrap();
    let ids: Vec<String> = live.into_iter().map(|(Alive { id, .. }, _)| id).collect();
    assert_eq!(ids, ["a"]);
    // The instance was only stopped for a while, and comes back.
    assert_eq!(beat(&bench, "b", "1h").await.len(), 2);

    server.leave("a", soon()).await.unwrap();
    assert_eq!(beat(&bench, "b", "1h").await, pairs(&[("b", "1h")]));
    bench.balanced().await;
}

#[tokio::test]
async fn an_instance_gone_for_long_is_forgotten_and_damage_does_no_harm() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    for number in 0..100 {
        age(&bench, &format!("gone{number}"), 3_600_000).await;
    }
    let rubbish = ["HSET", "keyfall:instances", "rubbish", "what is this"];
    let _: u64 = bench.ask(&rubbish).await;
    // A beat from the future: the clock of the server was set back.
    let then = (bench.now().await + 3_600_000).to_string();
    let future = [
        "HSET",
        "keyfall:instances",
        "future",
        &format!("{then} 1h {{}}"),
    ];
    let _: u64 = bench.ask(&future).await;
    for left in [1 + 38, 1] {
        assert_eq!(beat(&bench, "a", "1h").await, pairs(&[("a", "1h")]));
        let known: u64 = bench.ask(&["HLEN", "keyfall:instances"]).await;
        assert_eq!(known, left);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn new_instances_are_announced_and_present_ones_are_not() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    let mut ears = Ears::of_all(&bench).await;
    beat(&bench, "a", "1h").await;
    assert_eq!(ears.heard(&bench).await, ["instances"]);
    beat(&bench, "a", "0h").await;
    assert_eq!(ears.heard(&bench).await.len(), 0);
    bench.ledger.server.leave("a", soon()).await.unwrap();
    assert_eq!(ears.heard(&bench).await, ["instances"]);
    bench.balanced().await;
}

#[tokio::test]
async fn an_instance_beats_while_redis_is_full_and_is_refused_a_key_of_another_type() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(beat(&bench, "a", "1h").await.len(), 1);
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let _: String = bench.ask(&["SET", "keyfall:instances", "not ours"]).await;
    let beat = Beat {
        id: "a",
        room: "1h",
        description: "{}",
        silence: SILENCE,
    };
    let error = bench.ledger.server.beat(&beat, soon()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    bench.balanced().await;
}
