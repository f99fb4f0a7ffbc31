//! How many jobs fall due in each minute, hour or day to come.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use keyfall::NewJob;
use serde_json::{Value, json};

use super::{Daemon, assert_problem};
use crate::site::{HOUR, Site};

const MINUTE: Duration = Duration::from_secs(60);

/// A time as a parameter of a call.
fn written(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap();
    format!("{time:.3}")
}

#[tokio::test]
async fn jobs_are_counted_by_the_bar_in_which_they_fall_due() {
    let site = Site::new("http-upcoming").await;
    let daemon = Daemon::start(&site);
    let begin = SystemTime::now() + 24 * HOUR;
    let at = |biz: &str, id: usize, ahead: Duration| {
        let key = format!("{}:it:{biz}:{id}", site.app);
        NewJob::new(key, &id).at(begin + ahead)
    };
    let jobs = [
        at("a", 1, Duration::ZERO),
        at("a", 2, MINUTE),
        at("b", 3, MINUTE),
        at("b", 4, 90 * MINUTE),
    ];
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let count = async |query: String| {
        let path = format!("/v1/upcoming?prefix={}:{query}", site.app);
        let mut due = daemon.get(&path).await;
        assert!(due["at"].is_string() && due["from"].is_string(), "{due}");
        let members = ["step", "overdue", "earlier", "bars", "later"];
        Value::from_iter(members.map(|name| (name, due[name].take())))
    };
    // Redis rounds due times up to the millisecond, and so must the beginning.
    let from = format!("&from={}", written(begin - MINUTE / 2));
    let expected = json!({"step": "1m", "overdue": 0, "earlier": 0, "bars": [1, 2], "later": 1});
    assert_eq!(count(format!("{from}&count=2")).await, expected);
    let expected = json!({"step": "1h", "overdue": 0, "earlier": 0, "bars": [3, 1], "later": 0});
    assert_eq!(count(format!("{from}&step=1h&count=2")).await, expected);
    let from = format!("&from={}", written(begin + MINUTE / 2));
    let expected = json!({"step": "1m", "overdue": 0, "earlier": 1, "bars": [2], "later": 1});
    assert_eq!(count(format!("{from}&count=1")).await, expected);
    // By default the first bar begins now, or a little before.
    let due = count("&step=1d".to_owned()).await;
    let bars: Vec<u64> = serde_json::from_value(due["bars"].clone()).unwrap();
    assert_eq!((bars.len(), bars.iter().sum::<u64>()), (60, 4), "{due}");

    let (all, kind) = (format!("{}:it:", site.app), format!("{}:it:b:", site.app));
    site.client.prefix(&kind).fire_now().await.unwrap();
    site.client.prefix(&all).pause().await.unwrap();
    let due = daemon.get(&format!("/v1/upcoming?prefix={kind}")).await;
    assert_eq!((&due["overdue"], &due["later"]), (&json!(2), &json!(0)));
    site.client.prefix(&all).cancel().await.unwrap();
    site.client.prefix(&all).resume().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn wrong_parameters_of_upcoming_are_named() {
    let site = Site::new("http-upcoming-wrong").await;
    let daemon = Daemon::start(&site);
    for (query, code, field, hint) in [
        ("prefix=no key", "invalid_key", "prefix", "' '"),
        ("prefix=a:b:c:1", "invalid_key", "prefix", "third colon"),
        ("count=0", "invalid_request", "count", "from 1 to 100"),
        ("count=101", "invalid_request", "count", "from 1 to 100"),
        ("count=many", "invalid_request", "count", "digit"),
        ("step=1ms", "invalid_request", "step", "from 1 second"),
        ("step=400d", "invalid_request", "step", "366 days"),
        ("step=5", "invalid_request", "step", "unit"),
        ("from=today", "invalid_request", "from", "RFC 3339"),
        ("bars=5", "invalid_request", "bars", "`count`"),
    ] {
        let answer = daemon.call("GET", &format!("/v1/upcoming?{query}")).await;
        assert_problem(&answer, 400, code, field);
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains(hint), "{query}: {detail}");
    }
}
