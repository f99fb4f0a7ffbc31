//! Calls that are repeated under an id of their own.

use keyfall::shard_of;

use super::site;

#[tokio::test]
async fn a_repeated_call_gets_the_first_answer_and_changes_nothing() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let call = ["x", "EX", "3600", "CALL", "c1"];
    let first = site.placed("1", &call).await;
    site.client.cancel(site.key("1")).await.unwrap();
    assert_eq!(site.placed("1", &call).await, first);
    assert!(site.client.get(site.key("1")).await.unwrap().is_none());
    // The same id for another job, or for another function, is another call.
    assert_eq!(site.placed("2", &call).await.0, "created");
    for _ in 0..2 {
        let word: String = site.fcall("cancel", "2", &["CALL", "c1"]).await;
        assert_eq!(word, "cancelled");
    }
    // Without an id nothing is remembered.
    let kept = async || -> u64 {
        let key = format!("keyfall:{{{}/0}}:calls", site.kind());
        site.command(&["HLEN", &key]).await
    };
    let before = kept().await;
    site.placed("3", &["x", "EX", "3600"]).await;
    site.fcall::<String>("cancel", "3", &[]).await;
    assert_eq!(kept().await, before);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_repeated_call_is_recognised_after_a_reshard() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let ids: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    let call = ["x", "EX", "3600", "CALL", "c1"];
    let mut first = Vec::new();
    for id in &ids {
        first.push(site.placed(id, &call).await);
        site.client.cancel(site.key(id)).await.unwrap();
    }
    for shards in [4, 2, 1, 3] {
        site.client.reshard(&site.kind(), shards).await.unwrap();
        for (id, first) in ids.iter().zip(&first) {
            assert_eq!(site.placed(id, &call).await, *first, "{id} of {shards}");
            // A call under this number of shards, and then the calls under all numbers before.
            let number = format!("n{shards}");
            site.placed(id, &["x", "EX", "3600"]).await;
            for _ in 0..2 {
                let word: String = site.fcall("cancel", id, &["CALL", &number]).await;
                assert_eq!(word, "cancelled", "{id} of {shards}");
            }
            let word: String = site.fcall("cancel", id, &[]).await;
            assert_eq!(word, "absent", "{id} of {shards}");
        }
    }
    for number in ["n4", "n2", "n1", "n3"] {
        let word: String = site.fcall("cancel", "0", &["CALL", number]).await;
        assert_eq!(word, "cancelled", "{number}");
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn while_a_kind_is_resharded_calls_of_before_are_known_and_refused_ones_forgotten() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let mut ids = (0..).map(|id: u32| id.to_string());
    let id = ids.find(|id| shard_of(id, 4) != 0).unwrap();
    let (first, next) = (
        ["x", "EX", "60", "CALL", "c1"],
        ["y", "EX", "90", "CALL", "c2"],
    );
    let done = site.placed(&id, &first).await;
    let begun = ["HSET", "keyfall:kinds", &site.kind(), "4 1 1"];
    let _: u64 = site.command(&begun).await;
    let calls = format!("keyfall:{{{}/0}}:calls", site.kind());
    let _: u64 = site.command(&["HSET", &calls, "layout", "4 1 1"]).await;
    assert_eq!(site.placed(&id, &first).await, done);
    let told = site.refused("schedule", &site.key(&id), &next).await;
    assert!(told.starts_with("RESHARDING"), "{told}");
    site.client.reshard(&site.kind(), 4).await.unwrap();
    let replaced = site.placed(&id, &next).await;
    assert_eq!(replaced.0, "replaced");
    for (call, answer) in [(first, done), (next, replaced)] {
        assert_eq!(site.placed(&id, &call).await, answer);
    }
    site.assert_balanced().await;
}
