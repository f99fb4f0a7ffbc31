//! Export and import: jobs do not change on the way, both go on where they ended, and an import
//! starts only the jobs that it should.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keyfall::embedded::Embedded;
use keyfall::{Handler, JobState, NewJob, Outcome, RetryPolicy, Router};
use keyfall_testing::files::Folder;
use serde_json::{Value, json};

use crate::runs::{eventually, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Site, assert_about, fails_slowly};

fn line(key: &str, due: SystemTime) -> String {
    let due = jiff::Timestamp::try_from(due).unwrap();
    json!({"key": key, "state": "pending", "due": due, "payload": 1}).to_string() + "\n"
}

#[tokio::test]
async fn an_export_comes_back_unchanged() {
    comes_back(Site::new("cmd_export").await).await;
    let site = Site::new("cmd_export_api").await;
    comes_back(site.through_a_daemon()).await;
}

async fn comes_back(site: Site) {
    let folder = Folder::new(&site.app);
    let retry = RetryPolicy::ladder([1, 60].map(Duration::from_secs)).unwrap();
    let jobs = [
        NewJob::from_bytes(site.key("json"), "{\"a\": 1.50,\"a\":2}"),
        NewJob::from_bytes(site.key("bytes"), &b"\0\xff\n"[..]),
        NewJob::from_bytes(site.key("lines"), "{\n}"),
        NewJob::new(site.key("terms"), &())
            .header("tenant", "acme")
            .retry(retry)
            .attempts(2)
            .timeout(Duration::from_millis(90_500)),
    ];
    let jobs = jobs.map(|job| job.after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let (recorder, _runs) = recorder();
    let kind = format!("{}:it:dying", site.app);
    let handler = recorder.then(|_| Outcome::bury("broken"));
    let worker = site.serve(Router::new().route(&format!("{kind}:{{id}}"), handler));
    let dead = format!("{kind}:1");
    site.client.schedule(&dead, &"dead").await.unwrap();
    site.reaches(&dead, JobState::Dead).await;
    worker.stop().await;

    let file = folder.path("jobs");
    let ran = site.run(&format!("export {}: -o {file}", site.app)).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    if let Some(daemon) = &site.daemon {
        let args = [
            "export",
            &format!("{}:", site.app),
            "--redis-url",
            &site.url,
        ];
        let straight = Ran::of(keyfall(&args)).await;
        assert!(!daemon.url.is_empty());
        assert_eq!(
            straight.out,
            folder.read("jobs"),
            "both have the same lines"
        );
    }
    let again = site.run(&format!("export {}: -o {file}", site.app)).await;
    again.fails(1, "exists already");

    let server = Embedded::start().await.unwrap();
    let mut other = Site::at(&server.url(), &site.app).await;
    if site.daemon.is_some() {
        other = other.through_a_daemon();
    }
    let ran = other.run(&format!("import {file} --json")).await;
    let report = ran.value();
    assert_eq!(
        (&report["scheduled"], &report["dead"]),
        (&json!(4), &json!(1))
    );
    let (was, is) = (site.view(&dead).await, other.view(&dead).await);
    assert_eq!(is.state(), JobState::Dead);
    assert_eq!(
        (was.due(), was.attempts(), was.last_error(), was.steps()),
        (is.due(), is.attempts(), is.last_error(), is.steps())
    );
    assert_eq!(was.first_scheduled_at(), is.first_scheduled_at());
    let stored = other.run(&format!("export {}:", site.app)).await.out;
    let again = other.run(&format!("import {file} --json")).await.value();
    assert_eq!(
        (&again["scheduled"], &again["dead"], &again["present"]),
        (&json!(0), &json!(0), &json!(5)),
        "a repeat changes nothing"
    );
    let unchanged = other.run(&format!("export {}:", site.app)).await.out;
    assert_eq!(unchanged, stored);
    assert_eq!(stored, folder.read("jobs"), "a backup of the backup");
    for id in ["json", "bytes", "lines", "terms"] {
        let (was, is) = (
            site.view(&site.key(id)).await,
            other.view(&site.key(id)).await,
        );
        assert_eq!(was.payload(), is.payload(), "{id}");
        assert_eq!(was.due(), is.due(), "{id}");
        assert_eq!(was.headers(), is.headers());
        assert_eq!(was.retry(), is.retry());
        assert_eq!(was.max_attempts(), is.max_attempts());
        assert_eq!(was.timeout(), is.timeout());
    }
    let ran = other
        .run(&format!("import {file} --requeue-dead --json"))
        .await;
    let report = ran.value();
    assert_eq!(
        (&report["scheduled"], &report["present"]),
        (&json!(1), &json!(4))
    );
    assert_eq!(other.view(&dead).await.payload(), "\"dead\"");
    site.run("export a*").await.fails(2, "holds '*'");
    site.assert_balanced().await;
    other.assert_balanced().await;
}

#[tokio::test]
async fn a_killed_export_continues_where_it_stopped() {
    let site = Site::new("cmd_resume").await;
    let folder = Folder::new("resume");
    let jobs = site.keys(1200).map(|key| NewJob::new(key, &1).after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let app = format!("{}:", site.app);
    let whole = site.run(&format!("export {app}")).await.out;
    assert_eq!(whole.lines().count(), 1200);

    // The state of the file after half of the second page was written.
    let list = site.run(&format!("list {app} --limit 500 --json")).await;
    let cursor = list.err.split('\'').nth(1).unwrap();
    let bytes = list.out.len();
    assert_eq!(&whole[..bytes], list.out, "both have the same lines");
    folder.write("jobs", &whole[..bytes + 40]);
    let mark = json!({"of": format!("an export of {app}"), "after": format!("pending@{cursor}"), "bytes": bytes});
    folder.write("cursor", &mark.to_string());
    let files = format!(
        "-o {} --cursor-file {}",
        folder.path("jobs"),
        folder.path("cursor")
    );
    for _ in 0..2 {
        let ran = site.run(&format!("export {app} {files}")).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(folder.read("jobs"), whole, "once more changes nothing");
    }
    let rest = site
        .run(&format!("export {app} --after pending@{cursor}"))
        .await;
    // It does not know the lines of the earlier part, so its last look finds their jobs again.
    let (first, second) = whole.split_at(bytes);
    assert_eq!(rest.out, format!("{second}{first}"));
    site.run(&format!("export {files}"))
        .await
        .fails(1, "another cursor file");
    site.run(&format!("export {app} --after x"))
        .await
        .fails(2, "not a place");
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_that_become_pending_behind_an_export_are_in_it() {
    let site = Site::new("cmd_behind").await;
    let folder = Folder::new("behind");
    let jobs = site.keys(700).map(|key| NewJob::new(key, &1).after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let app = format!("{}:", site.app);
    let whole = site.run(&format!("export {app}")).await.out;
    // It had looked at all pending jobs when the last 400 became pending.
    let first = whole.lines().take(300);
    let bytes: usize = first.map(|line| line.len() + 1).sum();
    let of = format!("an export of {app}");
    let mark = json!({"of": of, "after": "running", "bytes": bytes});
    folder.write("cursor", &mark.to_string());
    let files = format!(
        "-o {} --cursor-file {}",
        folder.path("jobs"),
        folder.path("cursor")
    );
    let export = format!("export {app} {files}");
    folder.write("jobs", &format!("x{whole}"));
    site.run(&export).await.fails(1, "is no export any more");
    folder.write("jobs", &whole[..bytes]);
    let ran = site.run(&export).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(folder.read("jobs"), whole);
    let ran = site.run(&format!("export {app} --cursor running")).await;
    assert_eq!(ran.out, whole);
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_import_continues_where_it_stopped_and_names_faulty_lines() {
    let site = Site::new("cmd_import").await;
    let folder = Folder::new("import");
    let later = SystemTime::now() + HOUR;
    let line = |id| line(&site.key(id), later);
    let good = line("1");
    folder.write("jobs", &format!("{good}\n{{\"key\":\"a:b\"\n{}", line("2")));
    let file = folder.path("jobs");
    site.run(&format!("import {file}"))
        .await
        .fails(1, "line 3: ");
    let ran = site
        .run(&format!("import {file} --skip-invalid --json"))
        .await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("line 3: "), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&report["scheduled"], &report["invalid"]),
        (&json!(2), &json!(1))
    );

    let cursor = folder.path("cursor");
    folder.write("jobs", &good);
    let again = format!("import {file} --replace --cursor-file {cursor} --json");
    assert_eq!(site.run(&again).await.value()["scheduled"], 1);
    folder.write("jobs", &format!("{good}{}", line("3")));
    assert_eq!(
        site.run(&again).await.value()["scheduled"],
        1,
        "the line that is new"
    );
    assert_eq!(site.stats().await.pending, 3);

    let lines = format!("x\n{}", line("4"));
    let ran = site.run_reading("import --after 1 --json", lines.as_bytes());
    assert_eq!(ran.await.value()["scheduled"], 1);
    let odd = json!({"key": site.key(5), "state": "running", "due": "2026-01-01T00:00:00Z"});
    let ran = site.run_reading("import", odd.to_string().as_bytes()).await;
    ran.fails(1, "may have ended since");
    let odd = json!({"key": site.key(5), "state": "pending", "due": "2026-01-01T00:00:00Z",
        "first_scheduled_at": "2026-01-01T00:00:00Z",
        "steps": [{"what": "fell over", "at": "2026-01-01T00:00:00Z"}]});
    let ran = site.run_reading("import", odd.to_string().as_bytes()).await;
    ran.fails(1, "not a step");
    site.run("import /no/such/file")
        .await
        .fails(1, "cannot be read");
    site.run(&format!("import {file} --pace 0/s"))
        .await
        .fails(2, "never ends");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_restored_backup_starts_only_the_intended_jobs() {
    let site = Site::new("cmd_restore").await;
    let now = SystemTime::now();
    let lines = line(&site.key("old"), now - 2 * HOUR)
        + &line(&site.key("late"), now - HOUR / 2)
        + &line(&site.key("next"), now + HOUR);
    let (recorder, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), recorder.done()));
    let flags = "import --skip-overdue 1h --paused --pace 1000/s";
    let ran = site
        .run_reading(&format!("{flags} --json"), lines.as_bytes())
        .await;
    let report = ran.value();
    assert_eq!(
        (&report["scheduled"], &report["overdue"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(report["paused"], json!([site.kind()]));
    let stats = site.stats().await;
    assert!(stats.paused, "{stats:?}");
    assert_eq!(
        (stats.pending, stats.overdue),
        (2, 1),
        "the pause came first"
    );
    let ran = site.run_reading(flags, lines.as_bytes()).await;
    assert!(
        ran.out.contains("0 scheduled, 2 were there already"),
        "{ran:?}"
    );
    assert!(
        ran.out
            .contains(&format!("keyfall resume {}:", site.kind())),
        "{ran:?}"
    );

    assert_eq!(site.run(&format!("resume {}:", site.kind())).await.code, 0);
    assert_eq!(runs.next().await.key().id(), "late");
    assert!(site.client.get(site.key("old")).await.unwrap().is_none());
    eventually("one is left", async || {
        (site.stats().await.done == 1).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn running_and_retried_jobs_are_in_a_backup() {
    let site = Site::new("cmd_interrupted").await;
    let (recorder, mut runs) = recorder();
    let handler = recorder.until_stopped(|| Outcome::Done);
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let running = [site.key("alone"), site.key("followed"), site.key("also")];
    for key in &running {
        site.client.schedule(key, &"first").await.unwrap();
    }
    for _ in &running {
        runs.next().await;
    }
    let followed = site.client.schedule(&running[1], &"second").after(HOUR);
    followed.await.unwrap();
    let app = format!("{}:", site.app);
    let ran = site.run(&format!("export {app}")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("3 jobs were running"), "{ran:?}");
    let mut lines = ran.lines();
    lines.sort_by_key(|line| line["key"].to_string());
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                &line["state"],
                &line["was"],
                &line["payload"],
                &line["attempts"],
            )
        })
        .collect();
    let (pending, was) = (json!("pending"), json!("running"));
    let (first, second, zero) = (json!("first"), json!("second"), json!(0));
    assert_eq!(
        told,
        [
            (&pending, &was, &first, &zero),
            (&pending, &was, &first, &zero),
            (&pending, &Value::Null, &second, &zero),
        ]
    );
    for key in &running {
        site.client.cancel(key).await.unwrap();
    }
    site.all_ended().await;
    worker.stop().await;

    let server = Embedded::start().await.unwrap();
    let other = Site::at(&server.url(), "cmd_interrupted").await;
    let ran = other.run_reading("import --json", ran.out.as_bytes()).await;
    assert_eq!(ran.value()["scheduled"], 3);
    let alone = other.view(&running[0]).await;
    assert_eq!((alone.state(), alone.attempts()), (JobState::Pending, 0));
    assert_eq!(other.view(&running[1]).await.payload(), "\"second\"");
    other.assert_balanced().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_failed_job_comes_back_with_its_story() {
    let site = Site::new("cmd_failed").await;
    let (recorder, _runs) = recorder();
    let handler = recorder.then(|_| Outcome::retry("503 from the receiver"));
    let handler = handler.retry(fails_slowly());
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, &1).await.unwrap();
    let was = site.reaches(&key, JobState::Retrying).await;
    worker.stop().await;
    let backup = site.run(&format!("export {}:", site.app)).await.out;
    let server = Embedded::start().await.unwrap();
    let other = Site::at(&server.url(), "cmd_failed").await;
    other.run_reading("import", backup.as_bytes()).await;
    let is = other.view(&key).await;
    assert_eq!(is.state(), JobState::Retrying);
    assert_eq!(
        (was.due(), was.attempts(), was.last_error(), was.steps()),
        (is.due(), is.attempts(), is.last_error(), is.steps())
    );
    assert_eq!(was.first_scheduled_at(), is.first_scheduled_at());
    assert_eq!(is.last_error(), Some("503 from the receiver"));
    other.assert_balanced().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_of_a_sorted_set_and_a_hash_are_imported() {
    let site = Site::new("cmd_zset").await;
    let due = SystemTime::now() + HOUR;
    let seconds = due.duration_since(UNIX_EPOCH).unwrap().as_secs();
    for number in 0..600 {
        let member = format!("{}:{number}", site.app);
        let score = (seconds + number).to_string();
        let _: u64 = site
            .command(&["ZADD", "cmd_zset_due", &score, &member])
            .await;
        let _: u64 = site
            .command(&["HSET", "cmd_zset_body", &member, "\0body"])
            .await;
    }
    let unit = |unit| {
        format!(
            "import --from redis-zset --due-key cmd_zset_due --payload-key cmd_zset_body \
             --due-unit {unit} --key {{1}}:it:job:{{2}}"
        )
    };
    site.run(&unit("ms"))
        .await
        .fails(1, "is `--due-unit` right?");
    let report = site.run(&format!("{} --json", unit("s"))).await.value();
    assert_eq!(report["scheduled"], 600);
    let job = site.view(&site.key(599)).await;
    assert_eq!(job.payload(), "\0body");
    assert_about(job.due(), HOUR + Duration::from_secs(599));
    let left: u64 = site.command(&["ZCARD", "cmd_zset_due"]).await;
    assert_eq!(left, 600, "the source is left as it is");
    let report = site
        .run(&format!("{} --json --after end", unit("s")))
        .await
        .value();
    assert_eq!(
        (&report["scheduled"], &report["present"]),
        (&json!(0), &json!(0))
    );

    let _: u64 = site.command(&["HDEL", "cmd_zset_body", "cmd_zset:7"]).await;
    let ran = site.run(&unit("s")).await;
    ran.fails(1, "the member cmd_zset:7: it has no payload");
    let ran = site.run(&unit("s").replace("_due ", "_none ")).await;
    ran.fails(3, "there is no key cmd_zset_none");
    let ran = site
        .run(&unit("s").replace("cmd_zset_due", "cmd_zset_body"))
        .await;
    ran.fails(1, "is a hash");
    site.run("import --from redis-zset --due-key x")
        .await
        .fails(2, "--payload-key");
    let ran = site
        .run(&unit("s").replace("{1}:it:job:{2}", "a:b:c:d"))
        .await;
    ran.fails(2, "one key");
    let _: u64 = site
        .command(&["DEL", "cmd_zset_due", "cmd_zset_body"])
        .await;
    site.assert_balanced().await;
}
