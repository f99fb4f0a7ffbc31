//! The log of actions: who did what to which jobs.

use keyfall::KeptJob;
use serde_json::{Value, json};

use super::revoking::Token;
use super::{Daemon, assert_problem, own_redis, read};
use crate::site::{HOUR, Site};

/// The last actions on jobs of the app, the oldest first: what, on what and how many.
fn told(answer: &Value) -> Vec<(String, String, Value)> {
    let actions = answer["actions"].as_array().unwrap().iter().rev();
    let text = |action: &Value, name: &str| action[name].as_str().unwrap().to_owned();
    let told = |it: &Value| (text(it, "what"), text(it, "on"), it["count"].clone());
    actions.map(told).collect()
}

/// Brings back a dead letter.
async fn bury(site: &Site, id: &str) {
    let died = std::time::SystemTime::now();
    let kept = KeptJob::dead(site.key(id), died, "1").error("no");
    site.client.restore(kept).await.unwrap();
}

#[tokio::test]
async fn every_action_on_many_jobs_is_logged_and_no_call_of_a_service_is() {
    // Others act on everything, and so on these jobs as well.
    let (_redis, site) = own_redis("http-actions").await;
    let daemon = Daemon::start(&site);
    let (kind, prefix) = (site.kind(), format!("{}:", site.kind()));
    for id in ["1", "2", "3"] {
        let path = format!("/v1/jobs/{}", site.key(id));
        daemon.send("PUT", &path, json!({"after": "1h"})).await;
        bury(&site, id).await;
    }
    // Calls of a service.
    let one = |id: &str, call: &str| format!("/v1/jobs/{}{call}", site.key(id));
    daemon
        .post(&one("1", "/postpone"), json!({"after": "2h"}))
        .await;
    daemon.call("DELETE", &one("1", "")).await;

    let all = json!({"prefix": prefix});
    for call in ["jobs/cancel", "jobs/fire", "dead/requeue", "pause"] {
        let dry = json!({"prefix": prefix, "dry_run": true});
        daemon.post(&format!("/v1/{call}"), dry).await;
    }
    daemon.post("/v1/pause", all.clone()).await;
    daemon
        .post(
            "/v1/jobs/postpone",
            json!({"prefix": prefix, "after": "3h"}),
        )
        .await;
    daemon.post("/v1/jobs/fire", all.clone()).await;
    daemon.post("/v1/jobs/cancel", all.clone()).await;
    let letter =
        daemon.get(&format!("/v1/dead/{}", site.key("3"))).await["letters"][0]["letter"].clone();
    daemon
        .call(
            "DELETE",
            &format!("/v1/dead/{}?letter={letter}", site.key("3")),
        )
        .await;
    daemon.post("/v1/dead/requeue", all.clone()).await;
    daemon.post("/v1/dead/delete", all.clone()).await;
    daemon
        .post("/v1/history", json!({"prefix": prefix, "entries": 100}))
        .await;
    daemon.post("/v1/resume", all.clone()).await;
    daemon
        .post("/v1/audit", json!({"prefix": prefix, "repair": true}))
        .await;
    daemon.post("/v1/jobs/cancel", all).await;
    daemon.call("DELETE", &format!("/v1/kinds/{kind}")).await;
    let log = daemon.get(&format!("/v1/actions?prefix={prefix}")).await;
    let did = |what: &str, on: &str, count: Value| (what.to_owned(), on.to_owned(), count);
    assert_eq!(
        told(&log),
        [
            did("pause", &prefix, json!(1)),
            did("postpone", &prefix, json!(2)),
            did("fire", &prefix, json!(2)),
            did("cancel", &prefix, json!(2)),
            did("delete", &site.key("3"), json!(1)),
            did("requeue", &prefix, json!(2)),
            did("delete", &prefix, json!(0)),
            did("history", &prefix, json!(1)),
            did("resume", &prefix, json!(1)),
            did("repair", &prefix, Value::Null),
            did("cancel", &prefix, json!(2)),
            did("drop", &kind, Value::Null),
        ]
    );
    let first = &log["actions"][11];
    assert_eq!(first["who"], "127.0.0.1");
    assert!(
        first["by"]
            .as_str()
            .unwrap()
            .ends_with(&format!(":{}", daemon.process.child.id()))
    );
    assert_eq!(log["actions"][10]["note"], "after 3h");
    let last = daemon
        .get(&format!("/v1/actions?prefix={prefix}&last=1"))
        .await;
    assert_eq!(told(&last), [did("drop", &kind, Value::Null)]);
    // An action on a whole app is one on its kinds.
    let app = format!("{}:", site.app);
    daemon.post("/v1/jobs/fire", json!({"prefix": app})).await;
    let log = daemon
        .get(&format!("/v1/actions?prefix={prefix}&last=1"))
        .await;
    assert_eq!(told(&log), [did("fire", &app, json!(0))]);
}

#[tokio::test]
async fn calls_on_one_job_are_logged_if_the_caller_asks_for_it() {
    let (_redis, site) = own_redis("http-actions-one").await;
    let daemon = Daemon::start(&site);
    let key = site.key(1);
    site.client.schedule(&key, "1").after(HOUR).await.unwrap();
    let send = async |method: &str, call: &str, body: Value| {
        let request = daemon.request(method, &format!("/v1/jobs/{key}{call}"));
        let request = request.header("x-keyfall-action", "1").json(&body);
        assert_eq!(read(request.send().await.unwrap()).await.0, 200);
    };
    send("POST", "/postpone", json!({"after": "2h"})).await;
    send("PUT", "/payload", json!({"payload": 2})).await;
    send("DELETE", "", json!({})).await;
    // The letters of a batch are logged together.
    bury(&site, "12").await;
    bury(&site, "13").await;
    let line = |id: &str| json!({"call": "requeue", "key": site.key(id), "letter": 1}).to_string();
    let other = json!({"call": "requeue", "key": site.key("13"), "letter": 2}).to_string();
    let lines = [line("12"), line("13"), other].join("\n");
    let batch = daemon.request("POST", "/v1/batch").body(lines);
    let answers = batch.send().await.unwrap().text().await.unwrap();
    let done = answers.matches("\"status\":200").count();
    let log = daemon
        .get(&format!("/v1/actions?prefix={}:", site.kind()))
        .await;
    let did = |what: &str, on: String, count: usize| (what.to_owned(), on, json!(count));
    assert_eq!(
        told(&log),
        [
            did("postpone", key.clone(), 1),
            did("payload", key.clone(), 1),
            did("cancel", key.clone(), 1),
            did("requeue", site.key("1"), done),
        ],
        "{answers}"
    );
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_token_sees_who_did_what_to_its_jobs() {
    let (_redis, site) = own_redis("http-actions-token").await;
    let token = Token::make(
        "http-actions-token",
        "read,operate",
        &["--prefix", "http-actions-token:", "--note", "billing"],
    );
    let other = token.another("read,operate");
    let of_a_kind = token.another_of("read,operate", "http-actions-token:it:job:");
    let daemon = token.daemon_with(&site, &[]);
    let send = async |bearer: &str, method: &str, path: &str, body: Value| {
        let call = daemon.request(method, path).bearer_auth(bearer);
        read(call.json(&body).send().await.unwrap()).await
    };
    let limit = "/v1/kinds/http-actions-token:it:job/limit";
    for prefix in ["http-actions-token:", "http-actions-else:"] {
        let body = json!({"prefix": prefix});
        assert_eq!(send(&other, "POST", "/v1/jobs/fire", body).await.0, 200);
    }
    let body = json!({"prefix": "http-actions-token:it:"});
    assert_eq!(
        send(&token.bearer, "POST", "/v1/pause", body.clone())
            .await
            .0,
        200
    );
    let (_, log) = send(&token.bearer, "GET", "/v1/actions", json!({})).await;
    let on: Vec<String> = told(&log).into_iter().map(|(_, on, _)| on).collect();
    assert_eq!(on, ["http-actions-token:", "http-actions-token:it:"]);
    let who = log["actions"][0]["who"].as_str().unwrap();
    assert!(who.ends_with(" (billing)"), "{who}");
    let denied = send(
        &token.bearer,
        "GET",
        "/v1/actions?prefix=http-actions-else:",
        json!({}),
    )
    .await;
    assert_problem(&denied, 403, "forbidden", Value::Null);
    assert_eq!(
        send(&of_a_kind, "PUT", limit, json!({"concurrency": 1}))
            .await
            .0,
        200
    );
    for path in [
        "/v1/actions",
        "/v1/actions?prefix=http-actions-token:it:job:",
    ] {
        let (_, log) = send(&of_a_kind, "GET", path, json!({})).await;
        let on: Vec<String> = told(&log).into_iter().map(|(_, on, _)| on).collect();
        assert_eq!(on, ["http-actions-token:it:job"]);
    }
    assert_eq!(send(&of_a_kind, "DELETE", limit, json!({})).await.0, 200);
    // The pause names the token as well, until it ends.
    let (_, paused) = send(&token.bearer, "GET", "/v1/paused", json!({})).await;
    assert_eq!(paused["prefixes"][0]["by"], who, "{paused}");
    assert_eq!(send(&token.bearer, "POST", "/v1/resume", body).await.0, 200);
    let field = "paused-by http-actions-token:it:";
    let left: bool = site.command(&["HEXISTS", "keyfall:meta", field]).await;
    assert!(!left);
    for (query, field) in [
        ("last=0", "last"),
        ("last=1001", "last"),
        ("first=1", "first"),
    ] {
        let path = format!("/v1/actions?{query}");
        let answer = send(&token.bearer, "GET", &path, json!({})).await;
        assert_problem(&answer, 400, "invalid_request", field);
    }
}

#[tokio::test]
async fn the_doctor_repairs_chosen_settings_and_logs_each_repair() {
    let (_redis, site) = own_redis("http-fix").await;
    let daemon = Daemon::start(&site);
    daemon.is_ready().await;
    let set = |name: &'static str, value: &'static str| {
        let site = &site;
        async move {
            let () = site.command(&["CONFIG", "SET", name, value]).await;
        }
    };
    let limit = "client-output-buffer-limit";
    set("notify-keyspace-events", "g").await;
    set(limit, "pubsub 33554432 8388608 60").await;
    let finding = |answer: &Value, id: &str| {
        let mut all = answer["findings"].as_array().unwrap().iter();
        all.find(|it| it["id"] == id).unwrap().clone()
    };
    let seen = daemon.get("/v1/doctor").await;
    for id in ["notify-flags", "pubsub-buffer"] {
        assert_eq!(finding(&seen, id)["fixable"], true, "{seen}");
    }
    assert_eq!(finding(&seen, "server-hz")["fixable"], false);

    let only = json!({"only": ["pubsub-buffer"]});
    let fixed = daemon.post("/v1/doctor/fix", only.clone()).await;
    assert_eq!(fixed["findings"].as_array().unwrap().len(), 1, "{fixed}");
    let buffer = finding(&fixed, "pubsub-buffer");
    assert_eq!(
        (&buffer["repaired"], &buffer["severity"]),
        (&json!(true), &json!("ok"))
    );
    assert_eq!(buffer["fixable"], false);
    // Nothing is left to do, so nothing is logged.
    let again = daemon.post("/v1/doctor/fix", only).await;
    assert_eq!(finding(&again, "pubsub-buffer")["repaired"], false);
    let all = daemon.post("/v1/doctor/fix", json!({})).await;
    assert_eq!(finding(&all, "notify-flags")["repaired"], true, "{all}");
    assert!(all["findings"].as_array().unwrap().len() > 40);

    let log = daemon.get("/v1/actions").await;
    let did = ("fix".to_owned(), String::new(), json!(1));
    assert_eq!(told(&log), [did.clone(), did]);
    assert_eq!(log["actions"][0]["who"], "127.0.0.1");
    let note = log["actions"][1]["note"].as_str().unwrap();
    assert!(note.starts_with("pubsub-buffer: raised to"), "{note}");

    let wrong = daemon.request("POST", "/v1/doctor/fix");
    let wrong = wrong.json(&json!({"only": ["nothing"]}));
    let wrong = read(wrong.send().await.unwrap()).await;
    assert_problem(&wrong, 400, "invalid_request", "only");
}
