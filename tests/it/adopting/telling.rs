//! Reports on adopted jobs: their story, their view, and their counters.

use super::Adopting;

impl Adopting {
    async fn why(&self, id: &str) -> String {
        let ran = self.site.run(&format!("why {}", self.site.key(id))).await;
        ran.out
    }
}

#[tokio::test]
async fn why_lists_the_changes_that_came_through_the_key() {
    let mut it = Adopting::new("adopt-why").await;
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    it.does("k", "EXPIRE 3600").await;
    it.becomes("k", Some(("v", 3600))).await;
    it.does("k", "SET w EX 3600").await;
    it.becomes("k", Some(("w", 3600))).await;
    it.does("k", "PERSIST").await;
    it.becomes("k", None).await;
    it.does("k", "SET w EX 900").await;
    it.becomes("k", Some(("w", 900))).await;
    it.does("k", "DEL").await;
    it.becomes("k", None).await;
    let why = it.why("k").await;
    let told: Vec<&str> = why
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|it| it.1)
        .collect();
    let expected = [
        "its key was set: scheduled, seen by ",
        "its key was given another time, seen by ",
        "its key was set: scheduled anew, replacing the pending job, seen by ",
        "its key has no time to live any more: cancelled, seen by ",
        "its key was set: scheduled, seen by ",
        "its key was deleted: cancelled, seen by ",
    ];
    assert_eq!(told.len(), expected.len(), "{why}");
    for (line, start) in told.iter().zip(expected) {
        assert!(line.starts_with(start), "{line:?} in {why}");
    }
    // Calls of clients are not listed as changes of the key.
    let key = it.site.key("k");
    it.site.client.schedule(&key, "").await.unwrap();
    it.runs.next().await;
    it.site.all_ended().await;
    let why = it.why("k").await;
    assert!(why.contains("  scheduled by "), "{why}");
    it.ends().await;
}

#[tokio::test]
async fn why_says_how_the_key_differs_from_its_waiting_job() {
    let it = Adopting::new("adopt-differs").await;
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    let line = "its key";
    let last = async || {
        let why = it.why("k").await;
        let last = why.lines().find(|text| text.trim_start().starts_with(line));
        last.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(last().await, "");
    let key = it.site.key("k");
    it.site.client.update_payload(&key, "w").await.unwrap();
    assert!(last().await.starts_with("its key holds another value; "));
    it.site
        .client
        .reschedule(&key)
        .after(2 * crate::site::HOUR)
        .await
        .unwrap();
    assert!(last().await.starts_with("its key expires "));
    let job: serde_json::Value =
        serde_json::from_str(&it.site.run(&format!("get {key} --json")).await.out).unwrap();
    assert_eq!(job["adopted"], true);
    assert!(
        it.site
            .run(&format!("get {key}"))
            .await
            .out
            .contains("adopted")
    );
    it.site.client.cancel(&key).await.unwrap();
    it.site
        .client
        .schedule(&key, "")
        .after(crate::site::HOUR)
        .await
        .unwrap();
    let job = it.site.view(&key).await;
    assert!(!job.is_adopted());
    assert_eq!(last().await, "");
    it.site.client.cancel(&key).await.unwrap();
    it.ends().await;
}
