//! Each call on one job, and each of its errors.

use keyfall::{JobState, Outcome, Router};
use serde_json::{Value, json};

use super::{Daemon, assert_problem, next_year, own_redis};
use crate::runs::{Gate, recorder};
use crate::site::Site;

const NONE: Value = Value::Null;

#[tokio::test]
async fn a_job_is_scheduled_viewed_changed_and_cancelled() {
    let site = Site::new("http-one").await;
    let daemon = Daemon::start(&site);
    // A key whose id must be percent-encoded.
    let key = site.key("a/ü");
    let path = format!("/v1/jobs/{}:a%2F%C3%BC", site.kind());
    let (status, job) = daemon
        .send(
            "PUT",
            &path,
            json!({"payload": {"order": 42}, "after": "1h", "headers": {"tenant": "7"},
                   "retry": "15s 3m", "attempts": 2, "timeout": "5m"}),
        )
        .await;
    assert_eq!((status, &job["placed"]), (201, &json!("created")), "{job}");
    assert_eq!(job["key"], key);
    let view = site.view(&key).await;
    assert_eq!(view.payload(), r#"{"order":42}"#);
    assert_eq!(
        (view.max_attempts(), view.headers().get("tenant")),
        (Some(2), Some("7"))
    );

    let shown = daemon.get(&path).await;
    assert_eq!(shown["payload"], json!({"order": 42}));
    assert_eq!(
        (&shown["state"], &shown["due"]),
        (&json!("pending"), &job["due"])
    );

    let (status, job) = daemon
        .send(
            "PUT",
            &path,
            json!({"payload_base64": "/w==", "at": next_year()}),
        )
        .await;
    assert_eq!((status, &job["placed"]), (200, &json!("replaced")), "{job}");
    assert_eq!(job["due"], next_year());
    assert_eq!(daemon.get(&path).await["payload_base64"], "/w==");

    let moved = daemon
        .post(&format!("{path}/postpone"), json!({"after": "2h"}))
        .await;
    assert_eq!(moved["successor"], false);
    let (status, _) = daemon
        .send("PUT", &format!("{path}/payload"), json!({"payload": null}))
        .await;
    assert_eq!(status, 200);
    assert_eq!(site.view(&key).await.payload(), "null");
    let fired = daemon.post(&format!("{path}/fire"), json!({})).await;
    assert_eq!(fired["key"], key);
    let (status, cancelled) = daemon.call("DELETE", &path).await;
    assert_eq!((status, &cancelled["running"]), (200, &json!(false)));
    // Calls may be repeated: the answer to the second says that nothing is left to do.
    assert_problem(&daemon.call("DELETE", &path).await, 404, "job_absent", NONE);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_wrong_request_is_refused_with_code_and_field() {
    let site = Site::new("http-wrong").await;
    let daemon = Daemon::start(&site);
    let job = format!("/v1/jobs/{}", site.key("a"));
    let headers: Value = (0..200).map(|n| (n.to_string(), json!(""))).collect();
    for (body, code, field) in [
        (
            json!({"after": "1h", "at": "2100-01-01T00:00:00Z"}),
            "invalid_request",
            json!("at"),
        ),
        (json!({"after": "soon"}), "invalid_request", json!("after")),
        (json!({"at": "tomorrow"}), "invalid_request", json!("at")),
        (json!({"unknown": 1}), "invalid_request", json!("unknown")),
        (
            json!({"headers": {"tenant": 7}}),
            "invalid_request",
            json!("headers.tenant"),
        ),
        (
            json!({"payload": 1, "payload_base64": ""}),
            "invalid_request",
            json!("payload_base64"),
        ),
        (
            json!({"payload_base64": "?"}),
            "invalid_request",
            json!("payload_base64"),
        ),
        (
            json!({"retry": "15 parsecs"}),
            "invalid_request",
            json!("retry"),
        ),
        (json!({"attempts": 0}), "invalid_request", json!("attempts")),
        (json!({"after": "11y"}), "invalid_request", json!("after")),
        (json!({"after": "100000h"}), "invalid_time", json!("after")),
        (
            json!({"headers": headers}),
            "invalid_headers",
            json!("headers"),
        ),
    ] {
        let what = body.to_string();
        let what = &what[..what.len().min(80)];
        let (status, problem) = daemon.send("PUT", &job, body).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (400, &json!(code), &field),
            "{what}: {problem}"
        );
        assert_eq!(problem["retryable"], false);
    }
    let torn = daemon
        .request("PUT", &job)
        .body("{\"after\": ")
        .send()
        .await;
    let torn = super::read(torn.unwrap()).await;
    assert_problem(&torn, 400, "invalid_request", "body");

    let absent = |method, path: String, body| {
        let daemon = &daemon;
        async move { daemon.send(method, &path, body).await }
    };
    let bad_key = absent("PUT", "/v1/jobs/a:b:c".into(), json!({})).await;
    assert_problem(&bad_key, 400, "invalid_key", "key");
    for (method, path, body) in [
        ("GET", job.clone(), json!({})),
        ("DELETE", job.clone(), json!({})),
        ("PUT", job.clone(), json!({"if": "present"})),
        ("POST", format!("{job}/postpone"), json!({"after": "1h"})),
        ("POST", format!("{job}/fire"), json!({})),
        ("PUT", format!("{job}/payload"), json!({"payload": 1})),
    ] {
        let answer = absent(method, path, body).await;
        assert_problem(&answer, 404, "job_absent", NONE);
    }
    for (path, field) in [("postpone", "after"), ("payload", "payload")] {
        let method = if path == "payload" { "PUT" } else { "POST" };
        let answer = absent(method, format!("{job}/{path}"), json!({})).await;
        assert_problem(&answer, 400, "invalid_request", field);
    }
    assert_problem(&daemon.call("GET", "/v2").await, 404, "unknown_route", NONE);
    assert_problem(
        &daemon.call("PATCH", &job).await,
        405,
        "unknown_method",
        NONE,
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn existing_and_running_jobs_are_conflicts() {
    let site = Site::new("http-way").await;
    let daemon = Daemon::start(&site);
    let key = site.key("a");
    let job = format!("/v1/jobs/{key}");
    let (recorder, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), recorder.behind(&gate)));
    let _ = daemon.send("PUT", &job, json!({"if": "absent"})).await;
    runs.next().await;
    let there = daemon.send("PUT", &job, json!({"if": "absent"})).await;
    assert_problem(&there, 409, "job_present", NONE);
    let moved = daemon
        .send("POST", &format!("{job}/postpone"), json!({"after": "1h"}))
        .await;
    assert_problem(&moved, 409, "job_running", NONE);
    let changed = daemon
        .send("PUT", &format!("{job}/payload"), json!({"payload": 1}))
        .await;
    assert_eq!(changed, (202, NONE));
    let (_, follows) = daemon.send("PUT", &job, json!({"after": "1h"})).await;
    assert_eq!(follows["placed"], "succeeds");
    let moved = daemon
        .post(&format!("{job}/postpone"), json!({"after": "2h"}))
        .await;
    assert_eq!(moved["successor"], true);
    let (_, cancelled) = daemon.call("DELETE", &job).await;
    assert_eq!(cancelled["running"], true);
    gate.open();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_are_pulled_extended_finished_and_failed() {
    let site = Site::new("http-pull").await;
    let daemon = Daemon::start(&site);
    for id in ["a", "b", "c"] {
        let _ = daemon
            .send(
                "PUT",
                &format!("/v1/jobs/{}", site.key(id)),
                json!({"payload": id}),
            )
            .await;
    }
    let mut leases = Vec::new();
    while leases.len() < 3 {
        let wanted = json!({"prefixes": [site.kind()], "max": 3, "wait": "30s"});
        let pulled = daemon.post("/v1/pull", wanted).await;
        for job in pulled["jobs"].as_array().unwrap() {
            assert_eq!((&job["attempt"], &job["headers"]), (&json!(1), &json!({})));
            leases.push(job["lease"].as_str().unwrap().to_owned());
        }
    }
    let results = |answer: Value| -> Vec<String> {
        let results = answer["results"].as_array().unwrap().iter();
        results
            .map(|one| one["result"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = json!({"leases": leases, "by": "90s"});
    assert_eq!(
        results(daemon.post("/v1/leases/extend", all).await),
        ["extended"; 3]
    );
    let one = json!({"leases": [leases[0], "nonsense"]});
    let finished = daemon.post("/v1/leases/finish", one.clone()).await;
    assert_eq!(finished["results"][1]["problem"]["field"], "leases");
    assert_eq!(results(finished), ["done", "failed"]);
    assert_eq!(
        results(daemon.post("/v1/leases/finish", one).await),
        ["gone", "failed"]
    );
    let later = json!({"leases": [leases[1]], "error": "closed", "after": "1h"});
    assert_eq!(
        results(daemon.post("/v1/leases/fail", later).await),
        ["pending"]
    );
    let never = json!({"leases": [leases[2]], "error": "hopeless", "bury": true});
    let buried = daemon.post("/v1/leases/fail", never).await;
    assert_eq!(buried["results"][0]["letter"], 1);
    assert_eq!(results(buried), ["buried"]);

    for (path, body, field) in [
        ("/v1/pull", json!({"max": 0}), "max"),
        ("/v1/pull", json!({"wait": "181s"}), "wait"),
        (
            "/v1/pull",
            json!({"kinds": ["a:b:c"], "prefixes": vec!["a:"; 256]}),
            "prefixes",
        ),
        ("/v1/leases/finish", json!({"leases": []}), "leases"),
        (
            "/v1/leases/fail",
            json!({"leases": ["x"], "error": "", "after": "1s", "bury": true}),
            "after",
        ),
    ] {
        let answer = daemon.send("POST", path, body).await;
        assert_problem(&answer, 400, "invalid_request", field);
    }
    let answer = daemon
        .send("POST", "/v1/pull", json!({"prefixes": ["a:b:c:id"]}))
        .await;
    assert_problem(&answer, 400, "invalid_key", "prefixes");
    let nothing = daemon
        .post(
            "/v1/pull",
            json!({"prefixes": [site.kind()], "wait": "10ms"}),
        )
        .await;
    assert_eq!(nothing, json!({"jobs": []}));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_that_is_snoozed_comes_again_as_the_same_attempt() {
    let site = Site::new("http-snooze").await;
    let daemon = Daemon::with(&site, &["--worker-lease", "1h"]);
    let path = format!("/v1/jobs/{}", site.key("a"));
    assert_eq!(daemon.send("PUT", &path, json!({})).await.0, 201);
    for _ in 0..2 {
        let [job] = &daemon.pull(1, "30s").await[..] else {
            panic!("it does not come: {:?}", site.stats().await);
        };
        assert_eq!(job["attempt"], 1, "{job}");
        assert_eq!(daemon.settle("snooze", job, json!({})).await, "pending");
        assert_eq!(daemon.settle("snooze", job, json!({})).await, "gone");
    }
    let [job] = &daemon.pull(1, "30s").await[..] else {
        panic!("it does not come: {:?}", site.stats().await);
    };
    let later = json!({"after": "1h"});
    assert_eq!(daemon.settle("snooze", job, later).await, "pending");
    let view = daemon.get(&path).await;
    assert_eq!(
        (&view["state"], &view["attempts"]),
        (&json!("pending"), &json!(0))
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn all_attempts_share_an_idempotency_key_and_the_next_job_has_another() {
    let site = Site::new("http-idem").await;
    let daemon = Daemon::with(&site, &["--worker-lease", "2s"]);
    let key = site.key("a");
    let path = format!("/v1/jobs/{key}");
    let mut told = Vec::new();
    for _ in 0..2 {
        assert_eq!(daemon.send("PUT", &path, json!({})).await.0, 201);
        let mut keys = Vec::new();
        for attempt in 1..=3 {
            let [job] = &daemon.pull(1, "30s").await[..] else {
                panic!("it does not come: {:?}", site.stats().await);
            };
            assert_eq!(job["attempt"], attempt, "{job}");
            keys.push(job["idempotency_key"].as_str().unwrap().to_owned());
            let again = json!({"error": "closed", "after": "0s"});
            match attempt {
                // The consumer does not end the job, and its lease lapses.
                1 => {}
                2 => assert_eq!(daemon.settle("fail", job, again).await, "pending"),
                _ => assert_eq!(daemon.settle("finish", job, json!({})).await, "done"),
            }
        }
        assert!(keys[0].starts_with(&format!("{key}@")), "{keys:?}");
        assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
        told.push(keys.swap_remove(0));
    }
    assert_ne!(told[0], told[1]);
    site.assert_balanced().await;
}

#[tokio::test]
async fn dead_letters_are_shown_requeued_and_deleted() {
    let site = Site::new("http-dead").await;
    let daemon = Daemon::start(&site);
    let worker = site.serve(Router::new().route(&site.pattern(), async || Outcome::bury("no")));
    for id in ["a", "b", "c"] {
        site.client.schedule(site.key(id), id).await.unwrap();
        site.reaches(&site.key(id), JobState::Dead).await;
    }
    worker.stop().await;
    let dead = |id: &str| format!("/v1/dead/{}", site.key(id));
    let letters = daemon.get(&dead("a")).await;
    let letters = letters["letters"].as_array().unwrap();
    assert_eq!(
        (letters.len(), &letters[0]["last_error"]),
        (1, &json!("no"))
    );
    let number = letters[0]["letter"].as_u64().unwrap();
    assert_eq!(daemon.get(&dead("x")).await, json!({"letters": []}));

    let requeue = json!({"letter": number, "after": "1h"});
    let path = format!("{}/requeue", dead("a"));
    let answer = daemon.post(&path, requeue.clone()).await;
    assert_eq!(
        (&answer["letter"], &answer["key"]),
        (&json!(number), &json!(site.key("a")))
    );
    assert_problem(
        &daemon.send("POST", &path, requeue).await,
        404,
        "letter_absent",
        NONE,
    );
    // Without the number of the letter, a repeated call would take another letter.
    let unnumbered = daemon.send("POST", &path, json!({})).await;
    assert_eq!(unnumbered.0, 400, "{unnumbered:?}");

    let letter = daemon.get(&dead("b")).await["letters"][0]["letter"].clone();
    site.client
        .schedule(site.key("b"), "")
        .after(crate::site::HOUR)
        .await
        .unwrap();
    let path = format!("{}/requeue", dead("b"));
    let answer = daemon.send("POST", &path, json!({"letter": letter})).await;
    assert_problem(&answer, 409, "job_present", NONE);
    let path = format!("{}?letter={letter}", dead("b"));
    assert_eq!(daemon.call("DELETE", &path).await.0, 200);
    assert_problem(
        &daemon.call("DELETE", &path).await,
        404,
        "letter_absent",
        NONE,
    );
    assert_problem(
        &daemon.call("DELETE", &dead("b")).await,
        400,
        "invalid_request",
        "query",
    );

    let all = json!({"prefix": format!("{}:", site.kind()), "dry_run": true});
    assert_eq!(daemon.post("/v1/dead/requeue", all).await["matched"], 1);
    let all = json!({"prefix": format!("{}:", site.kind())});
    assert_eq!(daemon.post("/v1/dead/delete", all).await["done"], 1);
    assert_eq!(daemon.get(&dead("c")).await, json!({"letters": []}));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_daemon_without_redis_is_live_but_not_ready() {
    let (redis, site) = own_redis("http-away").await;
    let daemon = Daemon::start(&site);
    daemon.is_ready().await;
    drop(redis);
    let job = format!("/v1/jobs/{}", site.key("a"));
    let (live, ready, put) = tokio::join!(
        daemon.call("GET", "/livez"),
        daemon.call("GET", "/readyz"),
        daemon.send("PUT", &job, json!({})),
    );
    assert_eq!(live, (204, NONE));
    // Calls that were on their way when Redis stopped may have been carried out.
    for (status, problem) in [ready, put] {
        let code = problem["code"].as_str().unwrap();
        assert!(
            ["unavailable", "outcome_unknown"].contains(&code),
            "{problem}"
        );
        assert_eq!((status, &problem["retryable"]), (503, &json!(true)));
    }
    let put = daemon.send("PUT", &job, json!({})).await;
    assert_problem(&put, 503, "unavailable", NONE);
}
