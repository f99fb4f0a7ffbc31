//! The scene: everything that Keyfall stores is stored once.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, SystemTime};

use keyfall::embedded::Embedded;
use keyfall::target::{list, stream};
use keyfall::{
    ArchiveTerms, Client, CopyMark, CopyTerms, Dropped, GroupBy, Handler, Job, JobState, Kind,
    Late, Limit, MissingKey, NewJob, Outcome, QuietHours, RetryPolicy, Router, Rule,
};
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use serde_json::{Value, json};

use crate::runs::{Gate, eventually};
use crate::site::{HOUR, Site, connect, ms};

const KIND: &str = "scene:it:job";

/// Plays the whole scene on an empty Redis.
pub(super) async fn play_all(url: &str) {
    let site = Site::at(url, "scene").await;
    let gate = Gate::closed();
    let worker = site.serve(router(&site, &gate));
    worker.ready().await;
    archives(&site).await;
    copies(&site).await;
    jobs(&site, &gate).await;
    groups(&site).await;
    shared_limit(&site).await;
    shared_groups(&site).await;
    plain_keys(&site).await;
    targets(&site).await;
    daemon(&site).await;
    operators(&site).await;
    gate.open();
    worker.stop().await;
    shards(&site).await;
    site.client.functions().install().await.unwrap();
    dropped(&site).await;
}

/// What a job does: the first word of its payload, which is JSON.
async fn act(job: Job, gate: Gate) -> Outcome {
    match &job.payload()[..] {
        b"\"fail\"" => Outcome::retry("not now"),
        b"\"snooze\"" => Outcome::snooze_because(HOUR, "too early"),
        b"\"bury\"" => Outcome::bury("no more"),
        b"\"wait\"" => {
            gate.passed().await;
            Outcome::Done
        }
        _ => Outcome::Done,
    }
}

fn router(site: &Site, gate: &Gate) -> Router {
    let gate = gate.clone();
    let acts = async move |job: Job| act(job, gate.clone()).await;
    let slowly = RetryPolicy::fixed(HOUR).unwrap().attempts(2);
    let to_list = list(&site.url, "work-list").acknowledged();
    let to_stream = stream(&site.url, "work-stream").keep(10);
    Router::new()
        .route("scene:it:job:*", acts.clone().retry(slowly))
        .route("scene:group:mail:*", acts.clone())
        .route("scene:share:*:*", acts.clone())
        .route("scene:tenants:*:*", acts.clone())
        .route(
            "plain:it:job:*",
            acts.adopt(MissingKey::Run).payload_limit(8),
        )
        .route("scene:out:list:*", to_list.lease(HOUR))
        .route(
            "scene:out:stream:*",
            to_stream.acknowledged("readers").lease(ms(1500)),
        )
}

fn key(id: &str) -> String {
    format!("{KIND}:{id}")
}

/// Archives of all jobs of the scene, and one that was ended.
async fn archives(site: &Site) {
    let terms = ArchiveTerms::new;
    let all = site.client.prefix("scene:").archive(terms());
    all.by("anna").await.unwrap();
    let ended = site.client.prefix("scene:over:");
    ended.archive(terms()).await.unwrap();
    let client = &site.client;
    client
        .schedule("scene:over:job:1", "")
        .after(HOUR)
        .await
        .unwrap();
    client.prefix("scene:over:").stop_archive().await.unwrap();
    client.prefix("scene:").stop_archive().await.unwrap();
    client.prefix("scene:").archive(terms()).await.unwrap();
}

/// A copy of some jobs, and one that was ended.
async fn copies(site: &Site) {
    let client = &site.client;
    client
        .name_data_set("0123456789abcdef0123456789abcdef", false)
        .await
        .unwrap();
    client.note_copier(None).await.unwrap();
    let copied = async |prefix: &str| {
        let terms = CopyTerms::new();
        client.prefix(prefix).copy(terms).by("anna").await.unwrap();
        let key = format!("{prefix}job:1");
        client.schedule(&key, "").after(HOUR).await.unwrap();
        let kind = Kind::parse(&format!("{prefix}job")).unwrap();
        client
            .begin_copy(&kind, 0, terms, CopyMark::default(), None)
            .await
            .unwrap();
        client.reschedule(&key).after(2 * HOUR).await.unwrap();
    };
    copied("scene:copied:").await;
    copied("scene:over:").await;
    client.prefix("scene:over:").stop_copy().await.unwrap();
}

/// Jobs in each state, and with each field of a header.
async fn jobs(site: &Site, gate: &Gate) {
    let client = &site.client;
    let own = RetryPolicy::fixed(HOUR).unwrap();
    let all = client
        .schedule(key("all-terms"), "x")
        .after(HOUR)
        .header("tenant", "7");
    let all = all.retry(own).attempts(3).timeout(HOUR);
    all.max_lateness(HOUR, Late::Skip).await.unwrap();
    for outcome in ["fail", "snooze", "bury"] {
        client.schedule(key(outcome), &outcome).await.unwrap();
    }
    site.reaches(&key("fail"), JobState::Retrying).await;
    site.reaches(&key("bury"), JobState::Dead).await;
    client.schedule(key("bury"), "bury").await.unwrap();

    client.schedule(key("run"), "wait").await.unwrap();
    client.schedule(key("stop"), "wait").await.unwrap();
    for running in ["run", "stop"] {
        site.reaches(&key(running), JobState::Running).await;
    }
    client
        .schedule(key("run"), "next")
        .after(HOUR)
        .await
        .unwrap();
    client.cancel(key("stop")).await.unwrap();
    let hourly = Rule::cron("0 * * * *").unwrap();
    client
        .schedule(key("often"), "wait")
        .recurring(hourly)
        .await
        .unwrap();
    client.fire_now(key("often")).await.unwrap();
    site.reaches(&key("often"), JobState::Running).await;

    let booked = SystemTime::now() + 48 * HOUR;
    let series = client.series(key("trip")).anchor(booked, "UTC").at(["-1h"]);
    series.await.unwrap();
    let hour = booked
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        / 3600
        % 24;
    let quiet = format!("{:02}:00-{:02}:00", (hour + 23) % 24, (hour + 3) % 24);
    let quiet = QuietHours::hours(&quiet).unwrap();
    client
        .schedule(key("quiet"), "")
        .quiet(quiet)
        .await
        .unwrap();
    client
        .schedule(key("spaced"), "")
        .throttle(HOUR)
        .await
        .unwrap();
    let one = NewJob::new(key("declared"), "").recurring(Rule::every(HOUR).unwrap());
    client.declare("scene", [one]).await.unwrap();
    gate.open();
}

/// A kind whose groups wait for their turn and for their rate.
async fn groups(site: &Site) {
    let kind = "scene:group:mail";
    let limit = Limit::new().per(GroupBy::id_part(1)).weight("a", 2.5);
    let limit = limit.concurrency(1).rate(1, HOUR).total_concurrency(8);
    site.client.limit(kind, limit).by("anna").await.unwrap();
    for id in ["a/1", "a/2", "b/1", "b/2"] {
        let key = format!("{kind}:{id}");
        site.client.schedule(key, "").await.unwrap();
    }
    eventually("the second jobs wait for the rate", async || {
        let stats = site.client.stats(kind).await.unwrap();
        (stats.done == 2 && stats.pending == 2).then_some(())
    })
    .await;
}

/// A limit that several kinds share.
async fn shared_limit(site: &Site) {
    let limit = Limit::new().concurrency(2);
    site.client
        .limit("scene:share:", limit.clone())
        .await
        .unwrap();
    let declared = site
        .client
        .limit("scene:share:", limit.concurrency(1))
        .declared();
    declared.await.unwrap();
    for number in 0..20 {
        let key = format!(
            "scene:share:{}:{number}",
            if number % 2 == 0 { "a" } else { "b" }
        );
        site.client.schedule(key, "").await.unwrap();
    }
    for kind in ["scene:share:a", "scene:share:b"] {
        eventually("both kinds got shares", async || {
            (site.client.stats(kind).await.unwrap().done == 10).then_some(())
        })
        .await;
    }
}

/// Limits of tenants that several kinds share.
async fn shared_groups(site: &Site) {
    let client = &site.client;
    let limit = Limit::new()
        .per(GroupBy::id_part(1))
        .concurrency(2)
        .rate(1000, ms(1000));
    client.limit("scene:tenants:", limit).await.unwrap();
    let kinds = ["scene:tenants:a", "scene:tenants:b"];
    for number in 0..10 {
        let key = format!("{}:t/{number}", kinds[number % 2]);
        client.schedule(key, "").await.unwrap();
    }
    for kind in kinds {
        eventually("the tenant got shares in both kinds", async || {
            (client.stats(kind).await.unwrap().done == 5).then_some(())
        })
        .await;
    }
}

/// Keys of a foreign program, of which one is too large.
async fn plain_keys(site: &Site) {
    for (id, value, ms, state) in [
        ("kept", "v", "900000", JobState::Pending),
        ("large", "123456789", "100", JobState::Dead),
    ] {
        let key = format!("plain:it:job:{id}");
        eventually(&format!("{id} is {state:?}"), async || {
            let view = site.client.get(&key).await.unwrap();
            if view.is_none() {
                let _: String = site.command(&["SET", &key, value, "PX", ms]).await;
            }
            (view?.state() == state).then_some(())
        })
        .await;
    }
    let again = "plain:it:job:again";
    let _: String = site.command(&["SET", again, "\"fail\"", "PX", "100"]).await;
    eventually("it is to run again", async || {
        let view = site.client.get(again).await.unwrap();
        view.and_then(|view| view.last_error().map(|_| ()))
    })
    .await;
}

/// A list and a stream, whose consumers acknowledge.
async fn targets(site: &Site) {
    site.client.schedule("scene:out:list:1", "").await.unwrap();
    let document = eventually("a document", async || {
        site.command::<Option<String>>(&["LPOP", "work-list"]).await
    })
    .await;
    let document: Value = serde_json::from_str(&document).unwrap();
    let lease = document["lease"].as_str().unwrap();
    let _: u64 = site.command(&["RPUSH", "work-list:done", lease]).await;
    let many = (0..400).map(|id| NewJob::new(format!("scene:out:stream:{id}"), ""));
    for scheduled in site.client.schedule_many(many).await {
        scheduled.unwrap();
    }
    eventually("workers keep notes beside the stream", async || {
        // The call fails until the group exists.
        let read = "XREADGROUP GROUP readers one COUNT 500 STREAMS work-stream >".split(' ');
        let read = redis::Cmd::new().arg(Vec::from_iter(read)).to_owned();
        type Entries = Vec<(String, HashMap<String, String>)>;
        let read: redis::RedisResult<Option<Vec<(String, Entries)>>> =
            read.query_async(&mut site.redis()).await;
        let entries = read
            .ok()
            .flatten()
            .into_iter()
            .flatten()
            .flat_map(|(_, all)| all);
        for (entry, _) in entries {
            let _: u64 = site
                .command(&["XACK", "work-stream", "readers", &entry])
                .await;
        }
        let is_trimmed = ["HEXISTS", "work-stream:readers:written", "oldest"];
        let is_settled = ["EXISTS", "work-stream:readers:settled"];
        let notes: u64 =
            site.command::<u64>(&is_trimmed).await + site.command::<u64>(&is_settled).await;
        (notes == 2).then_some(())
    })
    .await;
    site.client.prefix("scene:out:").cancel().await.unwrap();
}

/// What only the daemon writes: order numbers, and spans of attempts.
async fn daemon(site: &Site) {
    let folder = Folder::new("stored");
    folder.write(
        "k.toml",
        "[[route]]\npattern = \"scene:call:job:*\"\nretry = { fixed = \"1h\" }\n\
         target = { http = { url = \"http://127.0.0.1:1/\" } }\n",
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--redis-url", &site.url])
        .args(["--config", &folder.path("k.toml")])
        .args(["--traces-endpoint", "http://127.0.0.1:1"])
        .args([
            "--classic-listen",
            "127.0.0.1:0",
            "--classic-prefix",
            "scene:queue",
        ]);
    let process = TalkingProcess::spawn(command);
    let (_, classic) = (process.line(), process.line());
    let classic = classic.strip_prefix("classic interface on ").unwrap();
    let push = json!({"topic": "t", "id": "1", "delay": 900, "ttr": 60, "body": "b"});
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    let pushed = http
        .post(format!("{classic}/push"))
        .body(push.to_string())
        .send();
    assert_eq!(pushed.await.unwrap().status(), 200);
    site.client.schedule("scene:call:job:1", "").await.unwrap();
    eventually("the call has failed", async || {
        let view = site.view("scene:call:job:1").await;
        view.last_error().is_some().then_some(())
    })
    .await;
}

/// What operators do.
async fn operators(site: &Site) {
    let client = &site.client;
    client
        .prefix("scene:share:")
        .pause()
        .by("anna")
        .await
        .unwrap();
    client
        .prefix(&format!("{KIND}:"))
        .keep_history(100)
        .await
        .unwrap();
    let action = client.log_action("pause", KIND).who("anna").count(1);
    action.note("for a while").await.unwrap();
}

/// More shards and fewer again, with jobs, letters and adopted keys.
async fn shards(site: &Site) {
    let wide = Client::builder(&site.url).default_shards(2);
    let wide = wide.connect().await.unwrap();
    wide.schedule("wide:it:job:1", "")
        .after(HOUR)
        .await
        .unwrap();
    for kind in [KIND, "plain:it:job"] {
        for shards in [4, 1] {
            site.client.reshard(kind, shards).await.unwrap();
        }
    }
}

/// A kind that is used no more.
async fn dropped(site: &Site) {
    let key = "gone:it:job:1";
    site.client.schedule(key, "").after(HOUR).await.unwrap();
    site.client.cancel(key).await.unwrap();
    // The ledger leaves a limit that several kinds share.
    let limit = Limit::new().concurrency(3);
    site.client.limit("gone:", limit).await.unwrap();
    let dropped = site.client.drop_kind("gone:it:job").await.unwrap();
    assert_eq!(dropped, Dropped::Dropped);
}

/// What is stored on several servers only.
pub(super) async fn play_on_several(pair: &[Embedded; 2]) {
    let url = format!("{} {}", pair[0].url(), pair[1].url());
    let client = Client::connect(&url).await.unwrap();
    client.schedule(key("1"), "").after(HOUR).await.unwrap();
    client.reshard(KIND, 2).await.unwrap();
    client.prefix("scene:").pause().await.unwrap();
    client.prefix("scene:").resume().await.unwrap();
    // As if it had come back without its disk.
    let mut first = connect(&pair[0].url()).await;
    let _: String = crate::site::command(&mut first, &["FLUSHALL"]).await;
    let again = Client::connect(&url).await.unwrap();
    again
        .schedule(key("2"), "")
        .after(Duration::from_secs(60))
        .await
        .unwrap();
}
