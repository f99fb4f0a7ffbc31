//! Kinds that are dropped, and how many may begin.

use serde_json::{Value, json};

use super::{Daemon, assert_problem};
use crate::site::{HOUR, Site};

#[tokio::test]
async fn an_empty_kind_is_dropped_and_no_other() {
    let site = Site::new("http-drop").await;
    let daemon = Daemon::start(&site);
    let path = format!("/v1/kinds/{}", site.kind());
    let absent = daemon.call("DELETE", &path).await;
    assert_problem(&absent, 404, "kind_absent", Value::Null);
    let wrong = daemon.call("DELETE", "/v1/kinds/a:b").await;
    assert_problem(&wrong, 400, "invalid_key", json!("kind"));
    let key = site.key(1);
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    let in_use = daemon.call("DELETE", &path).await;
    assert_problem(&in_use, 409, "kind_in_use", Value::Null);
    site.client.cancel(&key).await.unwrap();
    let dropped = daemon.call("DELETE", &path).await;
    assert_eq!(dropped, (200, json!({"kind": site.kind()})));
    let absent = daemon.call("GET", &path).await;
    assert_problem(&absent, 404, "kind_absent", Value::Null);
    // And it comes again.
    let job = format!("/v1/jobs/{key}");
    let put = daemon.send("PUT", &job, json!({"after": "1h"})).await;
    assert_eq!(put.0, 201);
    assert_eq!(daemon.get(&path).await["counters"]["accepted"], 1);
}

#[tokio::test]
async fn so_many_kinds_may_begin_and_no_more() {
    let site = Site::new("http-new-kinds").await;
    let daemon = Daemon::with(&site, &["--http-new-kinds", "3"]);
    let path = |kind: usize, id: usize| format!("/v1/jobs/{}:it:kind{kind}:{id}", site.app);
    let put = async |kind, id| {
        let job = json!({"after": "1h"});
        daemon.send("PUT", &path(kind, id), job).await
    };
    for kind in 0..3 {
        for id in 0..20 {
            assert_eq!(put(kind, id).await.0, 201);
        }
    }
    let refused = put(3, 0).await;
    assert_problem(&refused, 429, "too_many_kinds", json!("key"));
    assert!(
        refused.1["detail"]
            .as_str()
            .unwrap()
            .contains("`http.new_kinds`"),
        "{refused:?}"
    );
    assert_eq!(refused.1["retryable"], true);
    // Those that are there go on, also by a batch, and one that others have begun is no new one.
    let begun = format!("{}:it:kind4:1", site.app);
    site.client.schedule(&begun, &1).after(HOUR).await.unwrap();
    assert_eq!(put(4, 2).await.0, 201);
    let line = |key: &str| json!({"call": "schedule", "key": key, "after": "1h"}).to_string();
    let lines = [
        line(&format!("{}:it:kind0:x", site.app)),
        line(&format!("{}:it:kind9:x", site.app)),
    ];
    let batch = daemon.request("POST", "/v1/batch").body(lines.join("\n"));
    let answers = batch.send().await.unwrap().text().await.unwrap();
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers[0]["status"], 201, "{answers:?}");
    assert_eq!(
        answers[1]["problem"]["code"], "too_many_kinds",
        "{answers:?}"
    );
    // What was refused has left nothing.
    for kind in [3, 9] {
        let pattern = format!("*{}:it:kind{kind}*", site.app);
        let keys: Vec<String> = site.command(&["KEYS", &pattern]).await;
        assert!(keys.is_empty(), "{keys:?}");
        let name = format!("{}:it:kind{kind}", site.app);
        let listed: bool = site.command(&["HEXISTS", "keyfall:kinds", &name]).await;
        assert!(!listed, "{name}");
    }
}
