//! Calls that are repeated under an id of their own.

use super::site;

#[tokio::test]
async fn a_call_with_an_id_is_answered_again_and_not_done_again() {
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
async fn a_call_is_known_again_after_the_kind_was_given_another_number_of_shards() {
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
            // A call of this number of shards, and those of all before.
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
