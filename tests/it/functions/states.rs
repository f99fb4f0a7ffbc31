//! Functions act like the client in each state of a job.

use std::collections::HashMap;
use std::time::SystemTime;

use keyfall::{JobState, JobView, Outcome, Router};
use redis::Value;

use super::site;
use crate::site::{HOUR, Site, assert_about, ms};

impl Site {
    /// Schedules a job an hour ahead.
    async fn hour(&self, id: &str, payload: &str) {
        let call = self.client.schedule(self.key(id), payload).after(HOUR);
        call.await.unwrap();
    }

    /// Turns a pending job into a claimed one.
    async fn lease(&self, id: &str, ends: &str) {
        self.by_hand(id, "ZREM", "due", &[id]).await;
        self.by_hand(id, "ZADD", "leased", &[ends, id]).await;
        let lease = "token 1 1 1763712345678 -";
        self.by_hand(id, "HSET", "lease", &[id, lease]).await;
    }

    /// Brings a job that is absent into a state.
    pub(super) async fn bring(&self, id: &str, state: &str) {
        let far = "99999999999999";
        if !["absent", "dead"].contains(&state) {
            self.hour(id, "first").await;
        }
        match state {
            "absent" | "pending" => {}
            "retrying" => {
                let record = "{\"v\":1,\"attempts\":2,\"error\":\"no\"}\n1 failed@2\n\"first\"";
                self.by_hand(id, "HSET", "shadow", &[id, record]).await;
            }
            "running" => self.lease(id, far).await,
            "lapsed" => self.lease(id, "1").await,
            "stopping" => {
                self.lease(id, far).await;
                self.client.cancel(self.key(id)).await.unwrap();
            }
            "followed" => {
                self.lease(id, far).await;
                self.hour(id, "second").await;
            }
            "dead" => {
                let handler = async || Outcome::bury("no use");
                let worker = self.serve(Router::new().route(&self.key(id), handler));
                self.client.schedule(self.key(id), "first").await.unwrap();
                self.reaches(&self.key(id), JobState::Dead).await;
                worker.stop().await;
            }
            other => panic!("{other}"),
        }
    }
}

const STATES: [&str; 8] = [
    "absent", "pending", "retrying", "running", "stopping", "lapsed", "followed", "dead",
];

/// The state of a job, or `absent`.
async fn seen(site: &Site, id: &str) -> Option<(JobState, Vec<u8>, bool, bool)> {
    let view = site.client.get(site.key(id)).await.unwrap()?;
    let followed = view.successor_due().is_some();
    let payload = match view.successor() {
        Some(next) => next.payload().to_vec(),
        None => view.payload().to_vec(),
    };
    Some((view.state(), payload, followed, view.is_cancelled()))
}

#[tokio::test]
async fn each_function_acts_like_the_client_in_each_state() {
    for shards in [1, 4] {
        let Some((_server, site)) = site().await else {
            return;
        };
        site.divide(shards).await;
        each_does(&site).await;
        site.assert_balanced().await;
    }
}

async fn each_does(site: &Site) {
    for state in STATES {
        for mode in ["", "NX", "XX"] {
            let (ours, theirs) = (format!("{state}-{mode}-1"), format!("{state}-{mode}-2"));
            site.bring(&ours, state).await;
            site.bring(&theirs, state).await;
            let args = format!("\"x\" EX 7200 {mode}");
            let args: Vec<&str> = args.split_whitespace().collect();
            let (word, due) = site.placed(&ours, &args).await;
            let call = site.client.schedule(site.key(&theirs), "x").after(2 * HOUR);
            let expected = match mode {
                "NX" => format!("{:?}", call.if_absent().await.unwrap()),
                "XX" => format!("{:?}", call.if_present().await.unwrap()),
                _ => format!("{:?}", call.await.unwrap()),
            };
            let said = expected.to_lowercase().replace("present(", "exists(");
            assert!(said.contains(&word), "{state} {mode}: {word}, {expected}");
            assert_eq!(seen(site, &ours).await, seen(site, &theirs).await);
            if let Some(due) = due {
                let due = SystemTime::UNIX_EPOCH + ms(due);
                assert_about(due, 2 * HOUR);
                let view = site.view(&site.key(&ours)).await;
                assert!([Some(view.due()), view.successor_due()].contains(&Some(due)));
            }
        }
        let (ours, theirs) = (format!("{state}-cancel-1"), format!("{state}-cancel-2"));
        site.bring(&ours, state).await;
        site.bring(&theirs, state).await;
        let word: String = site.fcall("cancel", &ours, &[]).await;
        let expected = site.client.cancel(site.key(&theirs)).await.unwrap();
        assert_eq!(word, format!("{expected:?}").to_lowercase(), "{state}");
        assert_eq!(seen(site, &ours).await, seen(site, &theirs).await);
    }
}

/// The fields of a view that `get` answers, as text.
fn fields(view: &JobView) -> HashMap<String, String> {
    let time = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        since.as_millis().to_string()
    };
    let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
    let all = [
        ("state", Some(format!("{:?}", view.state()).to_lowercase())),
        ("due", Some(time(view.due()))),
        ("attempts", Some(view.attempts().to_string())),
        ("payload", Some(text(view.payload()))),
        ("first_scheduled_at", Some(time(view.first_scheduled_at()))),
        ("last_error", view.last_error().map(str::to_owned)),
        ("letter", view.letter().map(|number| number.to_string())),
        ("lease_ends", view.lease_ends().map(time)),
        ("successor_due", view.successor_due().map(time)),
        ("cancelled", view.is_cancelled().then(|| "1".to_owned())),
    ];
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

#[tokio::test]
async fn the_function_get_answers_what_the_client_sees() {
    for shards in [1, 4] {
        let Some((_server, site)) = site().await else {
            return;
        };
        site.divide(shards).await;
        get_sees(&site).await;
        site.assert_balanced().await;
    }
}

async fn get_sees(site: &Site) {
    for state in STATES {
        site.bring(state, state).await;
        let key = site.key(state);
        let answer = site.tries(&["FCALL_RO", "keyfall_get", "1", &key]).await;
        let answer = answer.unwrap();
        let Some(view) = site.client.get(&key).await.unwrap() else {
            assert_eq!((state, answer), ("absent", Value::Nil));
            continue;
        };
        let told: HashMap<String, String> = redis::from_redis_value(answer).unwrap();
        assert_eq!(told, fields(&view), "{state}");
    }
    // A job with headers has a map of them within the map.
    let call = site.client.schedule(site.key("headers"), "");
    call.header("a", "1").after(HOUR).await.unwrap();
    let told: HashMap<String, Value> = site.fcall("get", "headers", &[]).await;
    let headers: HashMap<String, String> =
        redis::from_redis_value(told["headers"].clone()).unwrap();
    assert_eq!(headers, HashMap::from([("a".into(), "1".into())]));
    // A record of a newer version, and records that no version wrote.
    site.bring("odd", "pending").await;
    for (record, code) in [
        ("{\"v\":4}\n1\nx", "INCOMPATIBLE"),
        ("x", "DAMAGED"),
        ("{}\n1\nx", "DAMAGED"),
    ] {
        site.by_hand("odd", "HSET", "shadow", &["odd", record])
            .await;
        let told = site.refused("get", &site.key("odd"), &[]).await;
        assert!(told.starts_with(code), "{told}");
    }
}
