//! Dead letters by kind and reason.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use keyfall::{JobState, KeptJob};
use serde_json::{Value, json};

use super::{Daemon, assert_problem};
use crate::site::Site;

/// Brings back dead letters with these reasons, each a second younger than the one before.
async fn bury(site: &Site, kind: &str, reasons: &[String]) {
    let begin = SystemTime::now() - Duration::from_secs(3600);
    let letters = reasons.iter().zip(0u32..).map(|(reason, number)| {
        let key = format!("{}:it:{kind}:{number:04}", site.app);
        let died = begin + Duration::from_secs(1) * number;
        site.client
            .restore(KeptJob::dead(key, died, "1").error(reason))
    });
    for restored in join_all(letters).await {
        restored.unwrap();
    }
}

/// The sizes of all groups, by kind and reason, over all answers.
async fn sizes(daemon: &Daemon, prefix: &str) -> BTreeMap<(String, String), u64> {
    let (mut all, mut cursor) = (BTreeMap::new(), String::new());
    loop {
        let path = format!("/v1/dead/groups?prefix={prefix}&cursor={cursor}");
        let answer = daemon.get(&path).await;
        for group in answer["groups"].as_array().unwrap() {
            let text = |name: &str| group[name].as_str().unwrap().to_owned();
            let name = (
                text("kind").rsplit_once(':').unwrap().1.to_owned(),
                text("reason"),
            );
            *all.entry(name).or_default() += group["count"].as_u64().unwrap();
        }
        match answer["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return all,
        }
    }
}

fn group(kind: &str, reason: &str, count: u64) -> ((String, String), u64) {
    ((kind.to_owned(), reason.to_owned()), count)
}

#[tokio::test]
async fn dead_letters_are_grouped_and_a_group_is_requeued_or_deleted() {
    let site = Site::new("http-groups").await;
    let daemon = Daemon::start(&site);
    let all = format!("{}:", site.app);
    let of_a = |number: u32| match number % 3 {
        0 => format!("order {number} not found"),
        1 => format!("order {number} not found: 7f3a9c{number}"),
        _ => "refused".to_owned(),
    };
    bury(&site, "a", &Vec::from_iter((0..900).map(of_a))).await;
    let of_b = |number: u32| format!("order {number} not found");
    bury(&site, "b", &Vec::from_iter((0..5).map(of_b))).await;
    let found = sizes(&daemon, &all).await;
    let (plain, long) = ("order # not found", "order # not found: #");
    let expected = [
        group("a", plain, 300),
        group("a", long, 300),
        group("a", "refused", 300),
        group("b", plain, 5),
    ];
    assert_eq!(found, BTreeMap::from(expected.clone()));
    let answer = daemon
        .get(&format!("/v1/dead/groups?prefix={all}it:b:"))
        .await;
    let only = &answer["groups"][0];
    assert_eq!(
        (&only["count"], &only["example"]),
        (&json!(5), &json!(format!("{all}it:b:0004")))
    );
    let letter = daemon.get(&format!("/v1/dead/{all}it:b:0004")).await["letters"][0].clone();
    assert_eq!(
        (&only["letter"], &only["last"]),
        (&letter["letter"], &letter["due"])
    );
    let oldest = daemon.get(&format!("/v1/dead/{all}it:b:0000")).await["letters"][0].clone();
    assert_eq!(only["first"], oldest["due"]);

    // A group is exactly the letters of its kind with its reason.
    let a = format!("{all}it:a:");
    let dry = json!({"prefix": a, "reason": plain, "dry_run": true});
    let report = daemon.post("/v1/dead/delete", dry).await;
    assert_eq!(
        (&report["matched"], &report["done"]),
        (&json!(300), &json!(0))
    );
    let report = daemon
        .post("/v1/dead/delete", json!({"prefix": a, "reason": plain}))
        .await;
    assert_eq!((&report["done"], report.get("more")), (&json!(300), None));
    let found = sizes(&daemon, &all).await;
    assert_eq!(found, BTreeMap::from_iter(expected[1..].to_vec()));
    site.client.prefix(&all).pause().await.unwrap();
    // In steps, for a client that shows its progress.
    let (mut done, mut steps) = (0, 0);
    loop {
        let step = json!({"prefix": a, "reason": "refused", "at_most": 50});
        let report = daemon.post("/v1/dead/requeue", step).await;
        done += report["done"].as_u64().unwrap();
        steps += 1;
        if report.get("more").is_none() {
            break;
        }
        assert!(report["done"].as_u64().unwrap() >= 50, "{report}");
    }
    assert!(done == 300 && steps > 1, "{done} in {steps}");
    assert_eq!(
        site.client
            .list(&a, JobState::Pending)
            .await
            .unwrap()
            .jobs
            .len(),
        100
    );
    let found = sizes(&daemon, &all).await;
    assert_eq!(
        found,
        BTreeMap::from([group("a", long, 300), group("b", plain, 5)])
    );
    let report = daemon
        .post("/v1/dead/delete", json!({"prefix": a, "reason": "another"}))
        .await;
    assert_eq!(report["matched"], 0);
    site.client.prefix(&all).cancel().await.unwrap();
    site.client.prefix(&all).resume().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn several_letters_of_a_key_and_damaged_letters_are_counted() {
    let site = Site::new("http-groups-same").await;
    let daemon = Daemon::start(&site);
    let now = SystemTime::now();
    for (ago, reason) in [(40, "no 1"), (30, "no 2"), (20, "other"), (10, "")] {
        let died = now - Duration::from_secs(ago);
        let kept = KeptJob::dead(site.key(1), died, "1");
        let kept = if reason.is_empty() {
            kept
        } else {
            kept.error(reason)
        };
        site.client.restore(kept).await.unwrap();
    }
    let found = sizes(&daemon, &site.kind()).await;
    let sum = [
        group("job", "no #", 2),
        group("job", "other", 1),
        group("job", "", 1),
    ];
    assert_eq!(found, BTreeMap::from(sum));
    // Of two letters of the group, the later one is requeued, although a third died after it.
    let which = json!({"prefix": format!("{}:", site.kind()), "reason": "no #"});
    site.client.prefix(&site.kind()).pause().await.unwrap();
    let report = daemon.post("/v1/dead/requeue", which).await;
    assert_eq!(
        (&report["matched"], &report["done"]),
        (&json!(1), &json!(1)),
        "{report}"
    );
    let left = sizes(&daemon, &site.kind()).await;
    assert_eq!(left[&("job".to_owned(), "no #".to_owned())], 1);

    let grave = format!("keyfall:{{{}/0}}:grave", site.kind());
    let letters = site.client.dead_letters(site.key(1)).await.unwrap();
    let field = format!("1:{}", letters[0].letter().unwrap());
    let record: Vec<u8> = site.command(&["HGET", &grave, &field]).await;
    let _: u64 = site.command(&["HSET", &grave, &field, "not ours"]).await;
    let answer = daemon
        .get(&format!("/v1/dead/groups?prefix={}:", site.kind()))
        .await;
    assert_eq!(
        (&answer["damaged"], &answer["scanned"]),
        (&json!(1), &json!(3)),
        "{answer}"
    );
    let mut restore = redis::cmd("HSET");
    restore.arg(&grave).arg(&field).arg(record);
    let _: u64 = restore.query_async(&mut site.redis()).await.unwrap();
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.client.prefix(&site.kind()).resume().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn wrong_parameters_of_groups_are_named() {
    let site = Site::new("http-groups-wrong").await;
    let daemon = Daemon::start(&site);
    for (query, code, field) in [
        ("prefix=no key", "invalid_key", "prefix"),
        ("cursor=nonsense", "invalid_request", "cursor"),
        ("cursor=pending:a:b:c::", "invalid_request", "cursor"),
        ("reason=x", "invalid_request", "reason"),
    ] {
        let answer = daemon
            .call("GET", &format!("/v1/dead/groups?{query}"))
            .await;
        assert_problem(&answer, 400, code, field);
    }
    for (body, field) in [
        (json!({"reason": "x"}), "prefix"),
        (json!({"prefix": "a:", "at_most": 0}), "at_most"),
        (json!({"prefix": "a:", "reasons": "x"}), "reasons"),
    ] {
        let answer = daemon.send("POST", "/v1/dead/requeue", body).await;
        assert_problem(&answer, 400, "invalid_request", field);
    }
    // Other calls on many jobs have no reason.
    let body = json!({"prefix": "a:", "reason": "x"});
    let answer = daemon.send("POST", "/v1/jobs/cancel", body).await;
    assert_problem(&answer, 400, "invalid_request", Value::from("reason"));
    site.assert_balanced().await;
}
