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
