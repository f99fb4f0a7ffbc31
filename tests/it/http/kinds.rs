//! Dropped kinds, and the limit of new kinds.

use serde_json::{Value, json};

use super::revoking::Token;
use super::{Daemon, assert_problem, read};
use crate::site::{HOUR, Site};

#[tokio::test]
async fn only_an_empty_kind_is_dropped() {
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
    // A schedule creates the kind again.
    let job = format!("/v1/jobs/{key}");
    let put = daemon.send("PUT", &job, json!({"after": "1h"})).await;
    assert_eq!(put.0, 201);
    assert_eq!(daemon.get(&path).await["counters"]["accepted"], 1);
}

#[tokio::test]
async fn a_limit_is_set_listed_and_removed() {
    let site = Site::new("http-limit").await;
    let daemon = Daemon::start(&site);
    let path = format!("/v1/kinds/{}/limit", site.kind());
    let limit = json!({"rate": "10/m", "burst": 2, "concurrency": 5});
    let set = daemon.send("PUT", &path, limit.clone()).await;
    assert_eq!(set.0, 200, "{set:?}");
    for (field, value) in limit.as_object().unwrap() {
        assert_eq!(set.1[field], *value);
    }
    assert_eq!((&set.1["held"], &set.1["leased"]), (&json!(0), &json!(0)));
    for id in 0..3 {
        site.client.schedule(site.key(id), "").await.unwrap();
    }
    let limits = daemon.get("/v1/limits").await;
    let limits = limits["limits"].as_array().unwrap();
    let of_kind = |it: &&Value| it["kind"] == json!(site.kind());
    let one = limits.iter().find(of_kind).unwrap();
    assert_eq!((&one["room"], &one["held"]), (&json!(2), &json!(1)));
    assert!(one["by"].as_str().is_some_and(|by| !by.is_empty()));
    for (body, field) in [
        (json!({"rate": "ten"}), "rate"),
        (json!({"rate": "0/s"}), "rate"),
        (json!({"rate": "1/s", "burst": 0}), "burst"),
        (json!({"burst": 2}), "burst"),
        (json!({"concurrency": 0}), "concurrency"),
        (json!({"concurency": 1}), "concurency"),
        (json!({"per": "tenant"}), "per"),
        (json!({"total_rate": "1/s"}), "total_rate"),
        (json!({"per": "id/1", "total_rate": "ten"}), "total_rate"),
        (
            json!({"per": "id/1", "total_concurrency": 0}),
            "total_concurrency",
        ),
        (json!({"per": "id/1", "weights": {"acme": -1}}), "weights"),
    ] {
        let (status, problem) = daemon.send("PUT", &path, body.clone()).await;
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{body}");
    }
    let (status, problem) = daemon.send("PUT", &path, json!({})).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid_request")));
    let limit = json!({
        "per": "header:tenant", "concurrency": 5, "total_rate": "100/s", "total_burst": 10,
        "weights": {"acme": 2.5},
    });
    let set = daemon.send("PUT", &path, limit.clone()).await;
    assert_eq!(set.0, 200, "{set:?}");
    for (field, value) in limit.as_object().unwrap() {
        assert_eq!(set.1[field], *value);
    }
    let removed = daemon.call("DELETE", &path).await;
    assert_eq!(
        removed,
        (200, json!({"kind": site.kind(), "removed": true}))
    );
    let again = daemon.call("DELETE", &path).await;
    assert_eq!(again.1["removed"], false);
    let prefix = site.kind().strip_suffix("job").unwrap().to_owned();
    let of_all = format!("/v1/kinds/{prefix}/limit");
    let set = daemon.send("PUT", &of_all, json!({"concurrency": 5})).await;
    assert_eq!((set.0, &set.1["kind"]), (200, &json!(prefix)));
    let groups = json!({"per": "id/1"});
    let set = daemon.send("PUT", &of_all, groups).await;
    assert_eq!((set.0, &set.1["per"]), (200, &json!("id/1")));
    let removed = daemon.call("DELETE", &of_all).await;
    assert_eq!(removed, (200, json!({"kind": prefix, "removed": true})));
    let (status, problem) = daemon.call("DELETE", "/v1/kinds/app1:mail/limit").await;
    assert_eq!((status, &problem["field"]), (400, &json!("kind")));
    let actions = daemon
        .get(&format!("/v1/actions?prefix={}", site.kind()))
        .await;
    let did = actions["actions"].as_array().unwrap().iter();
    let did = did.filter(|it| it["on"] == json!(site.kind()));
    let did: Vec<&str> = did.filter_map(|it| it["what"].as_str()).collect();
    assert_eq!(did, ["unlimit", "limit", "limit"]);
}

#[tokio::test]
async fn calls_for_one_key_are_gathered() {
    let site = Site::new("http-gather").await;
    let daemon = Daemon::start(&site);
    let path = format!("/v1/jobs/{}", site.key(1));
    let debounce = json!({"payload": 1, "debounce": "1h", "at_most": "2h"});
    let put = daemon.send("PUT", &path, debounce.clone()).await;
    assert_eq!((put.0, &put.1["placed"]), (201, &json!("created")));
    let put = daemon.send("PUT", &path, debounce).await;
    assert_eq!((put.0, &put.1["placed"]), (200, &json!("replaced")));
    let throttle = json!({"payload": 2, "throttle": "1h"});
    assert_eq!(daemon.send("PUT", &path, throttle).await.0, 200);
    for (body, field) in [
        (json!({"debounce": "1h"}), "at_most"),
        (json!({"at_most": "1h"}), "at_most"),
        (
            json!({"debounce": "1h", "at_most": "1h", "throttle": "1h"}),
            "throttle",
        ),
        (json!({"throttle": "1h", "after": "1h"}), "after"),
        (json!({"throttle": "0s"}), "throttle"),
        (json!({"debounce": "0s", "at_most": "1h"}), "debounce"),
        (json!({"throttle": "1h", "if": "absent"}), "throttle"),
    ] {
        let (status, problem) = daemon.send("PUT", &path, body.clone()).await;
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{body}");
    }
}

#[tokio::test]
async fn the_number_of_new_kinds_is_limited() {
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
    // Existing kinds continue, also in a batch, and a kind that another client has begun is not
    // new.
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
    // The refused calls have left no key.
    for kind in [3, 9] {
        let pattern = format!("*{}:it:kind{kind}*", site.app);
        let keys: Vec<String> = site.command(&["KEYS", &pattern]).await;
        assert!(keys.is_empty(), "{keys:?}");
        let name = format!("{}:it:kind{kind}", site.app);
        let listed: bool = site.command(&["HEXISTS", "keyfall:kinds", &name]).await;
        assert!(!listed, "{name}");
    }
}

#[tokio::test]
async fn the_number_of_new_kinds_is_limited_for_each_token() {
    let site = Site::new("http-kinds-each").await;
    let token = Token::make("http-kinds-each", "schedule", &[]);
    let other = token.another("schedule");
    let (one, other) = (token.bearer.as_str(), other.as_str());
    let daemon = token.daemon_with(&site, &["--http-new-kinds-per-token", "3"]);
    let put = async |bearer: &str, kind: usize, id: usize| {
        let path = format!("/v1/jobs/{}:it:kind{kind}:{id}", site.app);
        let call = daemon.request("PUT", &path).bearer_auth(bearer);
        read(call.json(&json!({"after": "1h"})).send().await.unwrap()).await
    };
    for kind in 0..3 {
        assert_eq!(put(one, kind, 1).await.0, 201);
    }
    for _ in 0..2 {
        let refused = put(one, 3, 1).await;
        assert_problem(&refused, 429, "too_many_kinds", json!("key"));
        let detail = refused.1["detail"].as_str().unwrap();
        assert!(detail.contains("`http.new_kinds_per_token`"), "{detail}");
        assert_eq!(refused.1["retryable"], true);
    }
    // The refused calls have left no key.
    let pattern = format!("*{}:it:kind3*", site.app);
    let keys: Vec<String> = site.command(&["KEYS", &pattern]).await;
    assert!(keys.is_empty(), "{keys:?}");
    // Existing kinds continue.
    assert_eq!(put(one, 0, 2).await.0, 201);
    // Another token has its own allowance, and its kinds are not new for the first token.
    for kind in 3..6 {
        assert_eq!(put(other, kind, 1).await.0, 201);
    }
    assert_eq!(put(one, 3, 2).await.0, 201);
    for bearer in [one, other] {
        let refused = put(bearer, 6, 1).await;
        assert_problem(&refused, 429, "too_many_kinds", json!("key"));
    }
    site.assert_balanced().await;
}
