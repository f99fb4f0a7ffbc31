//! Lists, bulk calls, batches, kinds: many jobs in one request.

use futures_util::{StreamExt, stream};
use keyfall::{JobState, NewJob};
use reqwest::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Daemon, assert_problem, next_year};
use crate::runs::eventually;
use crate::site::{HOUR, Site};

/// Jobs that are due in an hour.
async fn pending(site: &Site, count: usize) {
    let jobs = site.keys(count).map(|key| NewJob::new(key, "").after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
}

/// The answers to a batch.
async fn batch(daemon: &Daemon, body: impl Into<Body>) -> Vec<Value> {
    let sent = daemon.request("POST", "/v1/batch").body(body).send().await;
    let answer = sent.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

fn brief(answers: &[Value]) -> Vec<(u64, u64)> {
    let brief = |one: &Value| {
        (
            one["line"].as_u64().unwrap(),
            one["status"].as_u64().unwrap(),
        )
    };
    answers.iter().map(brief).collect()
}

#[tokio::test]
async fn a_list_has_pages_and_names_damaged_records_beside_them() {
    let site = Site::new("http-list").await;
    let daemon = Daemon::start(&site);
    pending(&site, 25).await;
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let broken = site.keys(1).next().unwrap();
    let id = broken.rsplit(':').next().unwrap();
    let record: Vec<u8> = site.command(&["HGET", &shadow, id]).await;
    let () = site.command(&["HSET", &shadow, id, "no record"]).await;

    let (mut jobs, mut damaged, mut cursor) = (Vec::new(), Vec::new(), String::new());
    loop {
        let path = format!("/v1/jobs?prefix={}:&limit=10&cursor={cursor}", site.kind());
        let page = daemon.get(&path).await;
        let named = |list: &Value, name: &str| -> Vec<String> {
            let list = list.as_array().unwrap().iter();
            list.map(|one| one[name].as_str().unwrap().to_owned())
                .collect()
        };
        jobs.extend(named(&page["jobs"], "key"));
        damaged.extend(named(&page["damaged"], "name"));
        match page["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(damaged, [broken.as_str()]);
    assert_eq!(jobs, site.keys(25).skip(1).collect::<Vec<_>>());
    let broken = daemon
        .call("GET", &format!("/v1/jobs/{}", damaged[0]))
        .await;
    assert_problem(&broken, 500, "damaged", Value::Null);
    let mut restore = redis::cmd("HSET");
    let () = restore
        .arg(&shadow)
        .arg(id)
        .arg(record)
        .query_async(&mut site.redis())
        .await
        .unwrap();

    let dead = daemon
        .get(&format!("/v1/jobs?prefix={}:&state=dead", site.kind()))
        .await;
    assert_eq!(dead, json!({"jobs": [], "damaged": [], "scanned": 0}));
    for (query, code, field) in [
        ("state=asleep", "invalid_request", "state"),
        ("limit=0", "invalid_request", "limit"),
        ("limit=1001", "invalid_request", "limit"),
        ("cursor=nonsense", "invalid_request", "cursor"),
        (
            "state=dead&prefix=other:&cursor=pending:a:b:c::",
            "invalid_request",
            "cursor",
        ),
        ("prefix=a*", "invalid_key", "prefix"),
        ("page=2", "invalid_request", "page"),
    ] {
        let answer = daemon.call("GET", &format!("/v1/jobs?{query}")).await;
        assert_problem(&answer, 400, code, field);
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn many_jobs_are_postponed_fired_and_cancelled_after_a_dry_run() {
    let site = Site::new("http-bulk").await;
    let daemon = Daemon::start(&site);
    pending(&site, 300).await;
    let prefix = format!("{}:", site.kind());
    let call = |path: &'static str, more: Value| {
        let mut body = json!({"prefix": prefix});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        daemon.post(path, body)
    };
    for path in ["/v1/jobs/cancel", "/v1/jobs/fire"] {
        let report = call(path, json!({"dry_run": true})).await;
        let expected =
            json!({"matched": 300, "done": 0, "running": 0, "skipped": 0, "dry_run": true});
        assert_eq!(report, expected);
    }
    let report = call("/v1/jobs/postpone", json!({"after": "2h", "dry_run": true})).await;
    assert_eq!(
        (&report["matched"], &report["done"]),
        (&json!(300), &json!(0))
    );
    for when in [
        json!({"after": "2h"}),
        json!({"by": "1h"}),
        json!({"at": next_year()}),
    ] {
        assert_eq!(call("/v1/jobs/postpone", when).await["done"], 300);
    }
    let key = site.keys(1).next().unwrap();
    assert_eq!(
        daemon.get(&format!("/v1/jobs/{key}")).await["due"],
        next_year()
    );
    assert_eq!(call("/v1/jobs/fire", json!({})).await["done"], 300);
    assert_eq!(site.stats().await.overdue, 300);
    assert_eq!(call("/v1/jobs/cancel", json!({})).await["done"], 300);

    for (path, body, field) in [
        ("/v1/jobs/cancel", json!({}), "prefix"),
        ("/v1/jobs/cancel", json!({"prefix": ""}), "prefix"),
        (
            "/v1/jobs/fire",
            json!({"prefix": "a", "everything": true}),
            "prefix",
        ),
        ("/v1/jobs/postpone", json!({"prefix": "a"}), "after"),
        (
            "/v1/jobs/postpone",
            json!({"prefix": "a", "after": "1h", "by": "1h"}),
            "after",
        ),
        ("/v1/dead/delete", json!({"dry_run": true}), "prefix"),
    ] {
        assert_problem(
            &daemon.send("POST", path, body).await,
            400,
            "invalid_request",
            field,
        );
    }
    let answer = daemon
        .send("POST", "/v1/jobs/cancel", json!({"prefix": "a b"}))
        .await;
    assert_problem(&answer, 400, "invalid_key", "prefix");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_batch_is_answered_line_by_line_and_a_bad_line_fails_alone() {
    let site = Site::new("http-batch").await;
    let daemon = Daemon::with(&site, &["--http-body-limit", "2000B"]);
    let key = site.key("a");
    let lines = [
        json!({"call": "schedule", "key": key, "after": "1h", "payload": {"n": 1}}).to_string(),
        json!({"call": "postpone", "key": key, "after": "2h"}).to_string(),
        "nonsense".into(),
        json!({"call": "dance", "key": key}).to_string(),
        String::new(),
        json!({"call": "payload", "key": key, "payload": {"n": 2}}).to_string(),
        json!({"call": "schedule", "key": key, "if": "absent"}).to_string(),
        json!({"call": "schedule", "key": "a:b", "payload": 1}).to_string(),
        json!({"call": "cancel", "key": key, "reason": "none"}).to_string(),
        json!({"call": "cancel", "key": key, "x": "x".repeat(2000)}).to_string(),
        json!({"call": "cancel", "key": site.key("b")}).to_string(),
        json!({"call": "fire", "key": key}).to_string(),
        json!({"call": "delete", "key": key, "letter": 7}).to_string(),
    ];
    let answers = batch(&daemon, lines.join("\n")).await;
    let expected = [
        (1, 201),
        (2, 200),
        (3, 400),
        (4, 400),
        (6, 200),
        (7, 409),
        (8, 400),
        (9, 400),
        (10, 413),
        (11, 404),
        (12, 200),
        (13, 404),
    ];
    assert_eq!(brief(&answers), expected);
    assert_eq!(answers[0]["result"]["placed"], "created");
    let problems: Vec<_> = answers
        .iter()
        .filter_map(|one| one["problem"]["code"].as_str())
        .collect();
    let codes = [
        "invalid_request",
        "invalid_request",
        "job_present",
        "invalid_key",
        "invalid_request",
        "payload_too_large",
        "job_absent",
        "letter_absent",
    ];
    assert_eq!(problems, codes);
    assert_eq!(answers[7]["problem"]["field"], "reason");
    assert_eq!(
        daemon.get(&format!("/v1/jobs/{key}")).await["payload"],
        json!({"n": 2})
    );
    assert_eq!(batch(&daemon, "").await, [json!(null); 0]);
    assert_eq!(
        site.client.cancel(&key).await.unwrap(),
        keyfall::Cancelled::Cancelled
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_batch_is_answered_while_it_is_being_sent() {
    let site = Site::new("http-stream").await;
    let daemon = Daemon::start(&site);
    let (send, lines) = mpsc::unbounded_channel::<String>();
    let lines = stream::unfold(lines, async |mut lines| {
        let line = lines.recv().await?;
        Some((Ok::<_, std::io::Error>(line), lines))
    });
    let request = daemon
        .request("POST", "/v1/batch")
        .body(Body::wrap_stream(lines));
    let line = |id| {
        format!(
            "{}\n",
            json!({"call": "schedule", "key": site.key(id), "after": "1h"})
        )
    };
    send.send(line(1)).unwrap();
    let mut answers = request.send().await.unwrap().bytes_stream();
    for id in 1..4 {
        let answer = answers.next().await.unwrap().unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(
            (&answer["line"], &answer["status"]),
            (&json!(id), &json!(201))
        );
        send.send(line(id + 1)).unwrap();
    }
    drop(send);
    assert_eq!(answers.count().await, 1);
    site.assert_balanced().await;
}

#[tokio::test]
async fn lines_about_one_job_take_effect_in_their_order() {
    let site = Site::new("http-lines").await;
    let daemon = Daemon::start(&site);
    let key = site.key(1);
    let schedule = json!({"call": "schedule", "key": key, "after": "1h"});
    let cancel = json!({"call": "cancel", "key": key});
    let answers = batch(&daemon, format!("{schedule}\n{cancel}\n").repeat(150)).await;
    let statuses: Vec<u64> = brief(&answers).into_iter().map(|one| one.1).collect();
    assert_eq!(statuses, [201, 200].repeat(150));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_large_batch_arrives_whole_and_in_order() {
    const JOBS: usize = 20_000;
    let site = Site::new("http-crowd").await;
    let daemon = Daemon::start(&site);
    let line = |key| {
        format!(
            "{}\n",
            json!({"call": "schedule", "key": key, "after": "1h"})
        )
    };
    let lines: String = site.keys(JOBS).map(line).collect();
    let answers = batch(&daemon, lines).await;
    let expected: Vec<_> = (1..=JOBS as u64).map(|number| (number, 201)).collect();
    assert_eq!(brief(&answers), expected);
    let keys = answers
        .iter()
        .map(|one| one["result"]["key"].as_str().unwrap());
    assert!(keys.eq(site.keys(JOBS)));
    assert_eq!(site.stats().await.pending, JOBS as u64);
    site.assert_balanced().await;
}

#[tokio::test]
async fn kinds_are_counted_paused_and_resumed() {
    let site = Site::new("http-kinds").await;
    let daemon = Daemon::start(&site);
    pending(&site, 3).await;
    let kind = site.kind();
    let path = format!("/v1/kinds/{kind}");
    let one = daemon.get(&path).await;
    assert_eq!(
        (&one["pending"], &one["paused"]),
        (&json!(3), &json!(false))
    );
    assert_eq!(one["counters"]["accepted"], 3);
    let kinds = daemon.get("/v1/kinds").await;
    let of_ours = |list: &Value, name| {
        let list = list.as_array().unwrap().iter();
        list.filter(|one| one[name] == kind).count()
    };
    assert_eq!(of_ours(&kinds["kinds"], "kind"), 1);
    let absent = daemon
        .call("GET", &format!("/v1/kinds/{}:no:no", site.app))
        .await;
    assert_problem(&absent, 404, "kind_absent", Value::Null);
    assert_problem(
        &daemon.call("GET", "/v1/kinds/a:b").await,
        400,
        "invalid_key",
        "kind",
    );

    let prefix = json!({"prefix": format!("{kind}:"), "dry_run": true});
    let expected = json!({"kinds": [kind], "dry_run": true});
    assert_eq!(daemon.post("/v1/pause", prefix).await, expected);
    assert_eq!(daemon.get(&path).await["paused"], false);
    let prefix = json!({"prefix": format!("{kind}:")});
    assert_eq!(
        daemon.post("/v1/pause", prefix.clone()).await["kinds"],
        json!([kind])
    );
    let paused = daemon.get("/v1/paused").await;
    assert_eq!(of_ours(&paused["kinds"], "name"), 1);
    assert_eq!(daemon.get(&path).await["paused"], true);
    assert_eq!(
        daemon.post("/v1/resume", prefix).await["kinds"],
        json!([kind])
    );
    assert_eq!(of_ours(&daemon.get("/v1/paused").await["kinds"], "name"), 0);
    let id = json!({"prefix": site.key("a")});
    assert_problem(
        &daemon.send("POST", "/v1/pause", id).await,
        400,
        "invalid_key",
        "prefix",
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn instances_and_unrouted_kinds_are_listed() {
    // A daemon of another test that has a route for every name would hide the job without a route.
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "http-routes").await;
    let daemon = Daemon::start(&site);
    let pattern = format!("{}:*:*:*", site.app);
    let instance = eventually("it lives", async || {
        let instances = daemon.get("/v1/instances").await;
        let mut instances = instances["instances"].as_array().unwrap().clone();
        instances.retain(|one| one["routes"] == json!([pattern]));
        instances.pop()
    })
    .await;
    assert_eq!(instance["pid"], daemon.process.child.id());
    // On a busy machine, a live instance may be missing for a while.
    let route = eventually("its route is there", async || {
        let routes = daemon.get("/v1/routes").await;
        let mut routes = routes["routes"].as_array().unwrap().clone();
        routes.retain(|one| one["pattern"] == pattern);
        routes.pop()
    })
    .await;
    assert_eq!(route["instances"], 1);

    let nobody = format!("{}-nobody:it:job:a", site.app);
    site.client.schedule(&nobody, "").after(HOUR).await.unwrap();
    let unrouted = daemon.get("/v1/routes").await["unrouted"].clone();
    let expected = json!({"kind": nobody.strip_suffix(":a").unwrap(), "jobs": 1});
    assert!(
        unrouted.as_array().unwrap().contains(&expected),
        "{unrouted}"
    );
    site.client.cancel(&nobody).await.unwrap();
    assert!(
        site.client
            .list(&site.app, JobState::Pending)
            .await
            .unwrap()
            .jobs
            .is_empty()
    );
    site.assert_balanced().await;
}
