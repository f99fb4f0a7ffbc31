//! Each command of the operator: its effect, its JSON, its refusals, and its exit code.

use std::collections::BTreeSet;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{JobState, Outcome, Router};
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use serde_json::{Value, json};

use crate::runs::{eventually, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Site, assert_about};

/// Keeps only these fields: the other fields differ from run to run.
fn only(mut value: Value, fields: &[&str]) -> Value {
    let object = value.as_object_mut().unwrap();
    object.retain(|name, _| fields.contains(&name.as_str()));
    value
}

/// The same on a Redis and behind a daemon.
macro_rules! both_ways {
    ($($test:ident on $app:literal;)*) => {
        mod on_redis {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Site::new($app).await).await;
            })*
        }

        mod through_a_daemon {
            $(#[tokio::test]
            async fn $test() {
                let site = super::Site::new(concat!($app, "_api")).await;
                super::$test(site.through_a_daemon()).await;
            })*
        }
    };
}

both_ways! {
    schedule_takes_terms_times_and_payloads on "cmd_schedule";
    a_job_recurs_by_a_rule_and_goes_on_after_a_restore on "cmd_recur";
    recur_lists_changes_pauses_and_resumes_rules on "cmd_rules";
    series_are_set_shown_moved_and_cancelled on "cmd_series";
    get_shows_a_job on "cmd_get";
    cancel_asks_before_it_cancels_many on "cmd_cancel";
    postpone_and_fire_move_one_or_many on "cmd_move";
    a_run_cannot_be_fired_and_is_told_to_stop_by_cancel on "cmd_running";
    list_and_count_show_many on "cmd_list";
    kinds_and_instances_show_the_routes on "cmd_kinds";
    a_kind_is_dropped_when_it_is_empty on "cmd_drop";
    dead_letters_are_listed_requeued_and_deleted on "cmd_dead";
    pause_and_resume_name_the_kinds on "cmd_pause";
    audit_exits_with_0_only_without_a_flaw on "cmd_audit";
    why_prints_the_story_and_history_its_size on "cmd_why";
    invisible_characters_reach_no_terminal on "cmd_unseen";
    tail_follows_the_events on "cmd_tail";
    a_job_without_a_route_is_scheduled_with_a_warning on "cmd_warned";
}

async fn schedule_takes_terms_times_and_payloads(site: Site) {
    let key = site.key(1);
    let terms = "--after 1h --header tenant=acme --retry none --attempts 3 --timeout 30s --json";
    let ran = site
        .run(&format!("schedule {key} {{\"a\":1.50}} {terms}"))
        .await;
    let answer = only(ran.value(), &["key", "placed", "armed"]);
    assert_eq!(
        answer,
        json!({"key": key, "placed": "created", "armed": true})
    );
    let job = site.view(&key).await;
    assert_eq!(&job.payload()[..], b"{\"a\":1.50}");
    assert_about(job.due(), HOUR);
    assert_eq!(job.headers().get("tenant"), Some("acme"));
    assert_eq!(job.max_attempts(), Some(3));
    assert_eq!(job.timeout().unwrap().as_secs(), 30);
    assert!(job.retry().is_some());

    let args = [
        "schedule",
        &key,
        "--at",
        "tomorrow 9:00",
        "--zone",
        "Asia/Tokyo",
        "--file",
        "-",
    ];
    let ran = site.run_args(&args).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("replaces the pending job"), "{ran:?}");
    assert!(ran.out.contains("T00:00:00Z"), "nine in Tokyo: {ran:?}");
    let ran = site
        .run_reading(&format!("schedule {key} --file -"), b"\0\xff")
        .await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(&site.view(&key).await.payload()[..], b"\0\xff");

    let ran = site.run(&format!("schedule {key} --if-absent")).await;
    ran.fails(1, "pending or running");
    let ran = site
        .run(&format!("schedule {} --if-present", site.key(2)))
        .await;
    ran.fails(3, "there is no job");
    site.run("schedule a:b:c").await.fails(2, "exactly four");
    let ran = site
        .run_args(&["schedule", &key, "--at", "someday 9:00"])
        .await;
    ran.fails(2, "tomorrow 9:00");
    let ran = site.run(&format!("schedule {key} --after 20y")).await;
    ran.fails(2, "2h30m");
    let ran = site.run(&format!("schedule {key} --after 4000d")).await;
    ran.fails(2, "10 years");
    let ran = site.run(&format!("schedule {key} --retry 15x")).await;
    ran.fails(2, "rung 1");
    site.assert_balanced().await;
}

async fn recur_lists_changes_pauses_and_resumes_rules(site: Site) {
    let (key, single) = (site.key(1), site.key(2));
    let absent = site.run(&format!("recur pause {key}")).await;
    absent.fails(3, "there is no job");
    site.run(&format!("schedule {single} --after 1h")).await;
    let refused = site.run(&format!("recur pause {single}")).await;
    refused.fails(1, "has no rule: schedule it with `recurring`");
    let args = ["schedule", &key, "7", "--recur", "0 9 * * *"];
    assert_eq!(site.run_args(&args).await.code, 0);

    let prefix = format!("{}:", site.kind());
    let ran = site.run(&format!("recur ls {prefix}")).await;
    assert!(ran.out.contains("At 09:00, in UTC"), "{ran:?}");
    assert!(!ran.out.contains(&single), "it does not recur: {ran:?}");
    let ran = site.run(&format!("recur ls {prefix} --json")).await;
    assert_eq!(ran.value()["occurrence"]["number"], 1);
    let listed = site.run(&format!("list {prefix} --recurring --json")).await;
    assert_eq!(listed.value()["key"], key);

    let change = ["recur", "change", &key, "0 9 * * *", "--zone", "Asia/Tokyo"];
    let ran = site.run_args(&[&change[..], &["--preview"]].concat()).await;
    assert_eq!(ran.out.matches("T00:00:00Z").count(), 5, "{ran:?}");
    let rule = async || site.view(&key).await.occurrence().unwrap().rule;
    assert_eq!(rule().await, json!({"cron": "0 9 * * *"}), "a preview");
    let ran = site.run_args(&change).await;
    assert!(
        ran.out
            .contains("At 09:00, in Asia/Tokyo; the next run is due"),
        "{ran:?}"
    );
    assert_eq!(rule().await["zone"], "Asia/Tokyo");
    let again = site.run_args(&change).await;
    assert!(again.out.contains("stays as it was"), "{again:?}");
    let wrong = site
        .run_args(&["recur", "change", &key, "every 500ms"])
        .await;
    wrong.fails(2, "from 1 s to 10 years");
    let ran = site.run_args(&["recur", "preview", "0 0 29 2 *"]).await;
    assert_eq!(ran.out.matches("-02-29T00:00:00Z").count(), 5, "{ran:?}");

    let ran = site.run(&format!("recur pause {key}")).await;
    assert!(ran.out.contains("is paused"), "{ran:?}");
    let ran = site.run(&format!("recur ls {prefix}")).await;
    assert!(ran.out.contains("paused since"), "{ran:?}");
    let ran = site.run(&format!("recur resume {key} --json")).await;
    let answer = ran.value();
    assert_eq!(
        (&answer["changed"], &answer["after_run"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        site.view(&key).await.occurrence().unwrap().paused_since,
        None
    );
    site.client.cancel(&key).await.unwrap();
    site.client.cancel(&single).await.unwrap();
}

async fn series_are_set_shown_moved_and_cancelled(site: Site) {
    let key = site.key("s");
    let absent = site.run(&format!("series show {key}")).await;
    absent.fails(3, "there is no job");
    let set = [
        "series",
        "set",
        &key,
        "2035-12-24 18:00",
        "--zone",
        "Europe/Berlin",
    ];
    let members = [
        "--at=-3d 09:00",
        "--at=-1h",
        "--at=+1d 23:00",
        "--quiet",
        "22:00-08:00",
    ];
    let args = [&set[..], &members].concat();
    let preview = [&["series", "preview"], &args[2..]].concat();
    let ran = site.run_args(&preview).await;
    assert_eq!(ran.out.matches("created").count(), 3, "{ran:?}");
    assert_eq!(site.stats().await.pending, 0, "a preview");
    let ran = site.run_args(&args).await;
    assert_eq!(ran.out.matches("created").count(), 3, "{ran:?}");
    assert!(ran.out.contains("2035-12-21T08:00:00Z"), "{ran:?}");
    // 23:00 is quiet.
    assert!(ran.out.contains("2035-12-26T07:00:00Z"), "{ran:?}");
    let shown = site.run(&format!("series show {key}")).await;
    assert!(shown.out.contains("quiet hours 22:00-08:00"), "{shown:?}");
    let ran = site
        .run_args(&["series", "move", &key, "2035-12-25 18:00", "--json"])
        .await;
    assert_eq!(ran.value()["members"][1]["what"], "moved");
    let view = site.run(&format!("series show {key} --json")).await.value();
    assert_eq!(view["anchor"], "2035-12-25T17:00:00.000Z");
    assert_eq!(view["members"][0]["state"], "planned");
    let wrong = site.run_args(&["series", "set", &key, "--at=3d"]).await;
    wrong.fails(2, "which is no offset");

    // A backup has the plan.
    let folder = Folder::new(&site.app);
    let file = folder.path("jobs");
    let ran = site.run(&format!("export {}: -o {file}", site.app)).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = site.run(&format!("series cancel {key}")).await;
    assert_eq!(ran.out.matches("cancelled").count(), 4, "{ran:?}");
    let ran = site.run(&format!("import {file}")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let again = site.run(&format!("series show {key} --json")).await.value();
    assert_eq!(again["members"], view["members"]);
    site.run(&format!("series cancel {key}")).await;

    let job = site.key("quiet");
    let all_day = r#"{"hours": "00:01-00:00", "instead": "skip"}"#;
    let args = [
        "schedule",
        &job,
        "7",
        "--at",
        "2035-01-01T12:00:00Z",
        "--quiet",
        all_day,
    ];
    let ran = site.run_args(&args).await;
    assert!(
        ran.out.contains("is left out by its quiet hours"),
        "{ran:?}"
    );
    assert!(site.client.get(&job).await.unwrap().is_none());
    site.assert_balanced().await;
}

async fn a_job_recurs_by_a_rule_and_goes_on_after_a_restore(site: Site) {
    let key = site.key(1);
    let schedule = |more: &'static [&'static str]| {
        let args = [&["schedule", &key, "--recur"][..], more].concat();
        let site = &site;
        async move { site.run_args(&args).await }
    };
    let daily = ["0 9 * * *", "--recur-zone", "Asia/Tokyo"];
    let ran = schedule(&["0 9 * * *", "--recur-zone", "Asia/Tokyo", "--preview"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.starts_with("At 09:00, in Asia/Tokyo\n"), "{ran:?}");
    assert_eq!(ran.out.matches("T00:00:00Z").count(), 5, "{ran:?}");
    assert!(site.client.get(&key).await.unwrap().is_none(), "a preview");
    let ran = site
        .run_args(&[&["schedule", &key, "--recur"][..], &daily].concat())
        .await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("T00:00:00Z"), "nine in Tokyo: {ran:?}");

    schedule(&["0 0 30 2 *"])
        .await
        .fails(2, "does that date exist");
    schedule(&["every 500ms"])
        .await
        .fails(2, "from 1 s to 10 years");
    schedule(&["@daily", "--recur-zone", "Mars"])
        .await
        .fails(2, "does not know");
    schedule(&["{\"cron\": \"@daily\", \"zome\": 1}"])
        .await
        .fails(2, "zome");
    schedule(&["@daily", "--after", "1h"])
        .await
        .fails(2, "cannot be used with");

    let job = site.run(&format!("get {key} --json")).await.value();
    let rule = json!({"cron": "0 9 * * *", "zone": "Asia/Tokyo"});
    assert_eq!(job["occurrence"]["rule"], rule);
    assert_eq!(job["occurrence"]["number"], 1);

    // A backup has the rule.
    let folder = Folder::new(&site.app);
    let file = folder.path("jobs");
    let ran = site.run(&format!("export {}: -o {file}", site.app)).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let before = site.view(&key).await.occurrence();
    site.client.cancel(&key).await.unwrap();
    let ran = site.run(&format!("import {file}")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(site.view(&key).await.occurrence(), before);
    site.assert_balanced().await;
}

async fn get_shows_a_job(site: Site) {
    let key = site.key(1);
    site.client
        .schedule(&key, &json!({"n": 1}))
        .after(HOUR)
        .await
        .unwrap();
    let job = site.run(&format!("get {key} --json")).await.value();
    let job = only(job, &["key", "state", "payload", "attempts"]);
    let expected = json!({"key": key, "state": "pending", "payload": {"n": 1}, "attempts": 0});
    assert_eq!(job, expected);
    let ran = site.run(&format!("get {key}")).await;
    assert!(ran.out.contains("state      pending"), "{ran:?}");
    assert!(ran.out.contains(r#"payload    {"n":1}"#), "{ran:?}");

    site.client
        .schedule_bytes(&key, "\x1b]0;title\x07")
        .after(HOUR)
        .await
        .unwrap();
    let ran = site.run(&format!("get {key}")).await;
    assert!(
        !ran.out.contains('\x1b'),
        "a stored text steers no terminal: {ran:?}"
    );
    site.run(&format!("get {}", site.key(2)))
        .await
        .fails(3, "there is no job");
    site.run("get nonsense").await.fails(2, "not a job key");
    site.assert_balanced().await;
}

async fn cancel_asks_before_it_cancels_many(site: Site) {
    for key in site.keys(5) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    let key = site.key("00000");
    let ran = site.run(&format!("cancel {key} --json")).await;
    assert_eq!(ran.value(), json!({"key": key, "running": false}));
    site.run(&format!("cancel {key}"))
        .await
        .fails(3, "there is no job");

    let prefix = format!("--prefix {}:", site.kind());
    let ran = site.run(&format!("cancel {prefix}")).await;
    ran.fails(2, "`--yes`");
    assert!(ran.err.contains("4 jobs"), "{ran:?}");
    let ran = site.run(&format!("cancel {prefix} --dry-run --json")).await;
    assert_eq!(
        only(ran.value(), &["matched", "done"]),
        json!({"matched": 4, "done": 0})
    );
    assert_eq!(site.stats().await.pending, 4);
    let ran = site.run(&format!("cancel {prefix} --yes")).await;
    assert_eq!(ran.out, "4 of 4 done\n", "{ran:?}");
    assert_eq!(site.stats().await.cancelled, 5);

    site.run("cancel").await.fails(2, "required");
    site.run(&format!("cancel {key} {prefix}"))
        .await
        .fails(2, "cannot be used with");
    site.assert_balanced().await;
}

async fn postpone_and_fire_move_one_or_many(site: Site) {
    for key in site.keys(3) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    let key = site.key("00000");
    let ran = site.run(&format!("postpone {key} --after 2h --json")).await;
    assert_eq!(
        only(ran.value(), &["key", "successor"]),
        json!({"key": key, "successor": false})
    );
    assert_about(site.view(&key).await.due(), 2 * HOUR);
    let prefix = format!("--prefix {}:", site.kind());
    for bulk in ["postpone {} --by 1h", "fire {}"] {
        let ran = site.run(&bulk.replace("{}", &prefix)).await;
        ran.fails(2, "`--yes`");
        assert!(ran.err.contains("3 jobs"), "{ran:?}");
    }
    let ran = site.run(&format!("postpone {prefix} --by 1h --yes")).await;
    assert_eq!(ran.out, "3 of 3 done\n", "{ran:?}");
    assert_about(site.view(&key).await.due(), 3 * HOUR);
    let ran = site.run(&format!("fire {prefix} --dry-run --json")).await;
    assert_eq!(ran.value()["matched"], 3);
    let ran = site.run(&format!("fire {key}")).await;
    assert!(ran.out.starts_with(&format!("{key} is due ")), "{ran:?}");
    assert_about(site.view(&key).await.due(), Duration::ZERO);

    let absent = site.key(9);
    site.run(&format!("fire {absent}"))
        .await
        .fails(3, "there is no job");
    site.run(&format!("postpone {absent} --after 1h"))
        .await
        .fails(3, "there is no job");
    site.run(&format!("postpone {key}"))
        .await
        .fails(2, "--after 15m");
    for one in ["postpone {} --by 1h", "fire {} --dry-run"] {
        let ran = site.run(&one.replace("{}", &key)).await;
        ran.fails(2, "is for many jobs");
    }
    site.run("fire --prefix a:b:c:d:e")
        .await
        .fails(2, "four segments");
    site.assert_balanced().await;
}

async fn a_run_cannot_be_fired_and_is_told_to_stop_by_cancel(site: Site) {
    let (recorder, mut runs) = recorder();
    let handler = recorder.until_stopped(|| Outcome::Done);
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    assert_eq!(site.run(&format!("schedule {key}")).await.code, 0);
    runs.next().await;
    site.run(&format!("fire {key}"))
        .await
        .fails(1, "is running");
    let ran = site.run(&format!("cancel {key} --json")).await;
    assert_eq!(ran.value(), json!({"key": key, "running": true}));
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

async fn list_and_count_show_many(site: Site) {
    for key in site.keys(5) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    let prefix = format!("{}:", site.kind());
    let first = site.run(&format!("list {prefix} --limit 3 --json")).await;
    let cursor = first
        .err
        .split('\'')
        .nth(1)
        .expect("where to go on")
        .to_owned();
    let second = site
        .run(&format!("list {prefix} --json --after {cursor}"))
        .await;
    assert_eq!(second.err, "");
    let mut jobs = first.lines();
    jobs.extend(second.lines());
    let keys: Vec<&str> = jobs
        .iter()
        .map(|job| job["key"].as_str().unwrap())
        .collect();
    assert!(keys.into_iter().eq(site.keys(5)), "{jobs:?}");
    let ran = site.run(&format!("list {prefix}")).await;
    assert_eq!(ran.out.lines().count(), 6, "a title and five rows: {ran:?}");
    assert!(
        ran.out.starts_with("key "),
        "plain without a terminal: {ran:?}"
    );

    let ran = site.run(&format!("count {prefix} --json")).await;
    let expected = json!({"pending": 5, "overdue": 0, "running": 0, "lapsed": 0, "dead": 0});
    assert_eq!(ran.value(), expected);
    let ran = site.run(&format!("count {prefix}")).await;
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    site.run("list a*").await.fails(2, "holds '*'");
    site.run(&format!("list {prefix} --state gone"))
        .await
        .fails(2, "[possible values");
    site.run(&format!("list {prefix} --after x"))
        .await
        .fails(2, "not a cursor");
    site.run("count a*").await.fails(2, "holds '*'");
    site.assert_balanced().await;
}

async fn a_kind_is_dropped_when_it_is_empty(site: Site) {
    let drop = format!("kinds drop {}", site.kind());
    site.run(&drop).await.fails(3, "no job of the kind");
    site.run("kinds drop a:b").await.fails(2, "a:b");
    let key = site.key(1);
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    site.run(&drop).await.fails(1, "1 pending");
    site.client.cancel(&key).await.unwrap();
    let ran = site.run(&drop).await;
    assert_eq!(ran.out, format!("{} is gone\n", site.kind()), "{ran:?}");
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let ran = site.run(&format!("{drop} --json")).await;
    assert_eq!(ran.value(), json!({"kind": site.kind()}));
}

async fn kinds_and_instances_show_the_routes(site: Site) {
    let (recorder, _runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), recorder.done()));
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    let app = format!("{}:", site.app);
    let ran = site.run(&format!("kinds {app} --json")).await;
    let kinds = ran.value();
    let kinds = &kinds["kinds"];
    assert_eq!(kinds[0]["kind"], site.kind());
    assert_eq!(kinds[0]["pending"], 1);
    assert_eq!(kinds.as_array().unwrap().len(), 1);
    let ran = site.run(&format!("kinds {}:", site.kind())).await;
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    site.run("kinds cmd_no_such:")
        .await
        .fails(3, "there is no kind");

    eventually("the worker is there", async || {
        let told = site.run("instances --json").await.value();
        let instances = told["instances"].as_array().unwrap().clone();
        let routes = |one: &Value| one["routes"].to_string().contains(&site.app);
        instances.iter().any(routes).then_some(())
    })
    .await;
    // On a busy machine, a live instance may be missing for a while.
    eventually("it is there for people, too", async || {
        let ran = site.run("instances").await;
        ran.out.contains(&site.pattern()).then_some(())
    })
    .await;
    site.run("instances now")
        .await
        .fails(2, "unexpected argument");
    worker.stop().await;
    site.assert_balanced().await;
}

async fn dead_letters_are_listed_requeued_and_deleted(site: Site) {
    let (recorder, _runs) = recorder();
    let handler = recorder.then(|_| Outcome::bury("it is broken"));
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    for key in site.keys(4) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    for key in site.keys(4) {
        site.reaches(&key, JobState::Dead).await;
    }
    worker.stop().await;

    let prefix = format!("{}:", site.kind());
    let letters = site.run(&format!("dead ls {prefix} --json")).await.lines();
    assert_eq!(letters.len(), 4);
    assert_eq!(letters[0]["last_error"], "it is broken");
    let key = site.key("00000");
    let ran = site.run(&format!("dead ls {key}")).await;
    assert!(ran.out.contains("it is broken"), "{ran:?}");

    let ran = site
        .run(&format!("dead requeue {key} --after 1h --json"))
        .await;
    assert_eq!(ran.value()["key"], key);
    assert_about(site.view(&key).await.due(), HOUR);
    let ran = site
        .run(&format!("dead requeue {prefix} --dry-run --json"))
        .await;
    assert_eq!(ran.value()["matched"], 3);
    let letter = site.view(&site.key("00001")).await.letter().unwrap();
    let ran = site
        .run(&format!(
            "dead rm {} --letter {letter} --json",
            site.key("00001")
        ))
        .await;
    assert_eq!(ran.value()["letter"], letter);
    for command in ["rm", "requeue"] {
        site.run(&format!("dead {command} {prefix}"))
            .await
            .fails(2, "`--yes`");
        site.run(&format!("dead {command} {prefix} --letter 1"))
            .await
            .fails(2, "is for one job");
    }
    assert_eq!(site.stats().await.dead, 2);
    let ran = site.run(&format!("dead rm {prefix} --yes")).await;
    assert_eq!(ran.out, "2 of 2 done\n");

    site.run(&format!("dead ls {key}"))
        .await
        .fails(3, "no such dead letter");
    site.run(&format!("dead rm {key}"))
        .await
        .fails(3, "no such dead letter");
    site.run(&format!("dead requeue {key}"))
        .await
        .fails(1, "is pending or running");
    site.run(&format!("dead requeue {prefix} --after 1h"))
        .await
        .fails(2, "postpone");
    site.run(&format!("dead ls {prefix} --limit 0"))
        .await
        .fails(2, "1 to 1000");
    site.run("dead bury")
        .await
        .fails(2, "unrecognized subcommand");
    site.assert_balanced().await;
}

async fn pause_and_resume_name_the_kinds(site: Site) {
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    let app = format!("{}:", site.app);
    let kinds = json!({"kinds": [site.kind()], "dry_run": false});
    let ran = site.run(&format!("pause {app} --dry-run")).await;
    assert_eq!(ran.out, format!("would be paused: {}\n", site.kind()));
    assert!(!site.stats().await.paused);
    assert_eq!(
        site.run(&format!("pause {app} --json")).await.value(),
        kinds
    );
    assert!(site.stats().await.paused);
    let list = site.run("pause --list --json").await.value();
    assert!(list["prefixes"].to_string().contains(&app), "{list}");
    assert!(list["kinds"].to_string().contains(&site.kind()), "{list}");
    let ran = site.run("pause --list").await;
    assert!(ran.out.contains("kinds to come"), "{ran:?}");
    assert_eq!(
        site.run(&format!("resume {app} --json")).await.value(),
        kinds
    );
    assert!(!site.stats().await.paused);
    // A kind that was not paused is not reported as resumed.
    for dry_run in ["", " --dry-run"] {
        let ran = site.run(&format!("resume {app}{dry_run}")).await;
        assert_eq!(ran.out, "no kind with this prefix is paused\n");
    }
    site.run(&format!("pause {}", site.key(1)))
        .await
        .fails(2, "third colon");
    site.run("pause").await.fails(2, "required");
    site.run("resume").await.fails(2, "required");
    site.assert_balanced().await;
}

async fn audit_exits_with_0_only_without_a_flaw(site: Site) {
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    let kind = format!("{}:", site.kind());
    let report = site.run(&format!("audit {kind} --json")).await.value();
    let report = &report["kinds"];
    assert_eq!(report[0]["kind"], site.kind());
    assert_eq!(report[0]["clean"], true);
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let _: u64 = site.command(&["HDEL", &shadow, "1"]).await;

    let ran = site.run(&format!("audit {kind} --json")).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let report = &report["kinds"];
    assert_eq!(report[0]["flaws"][0]["flaw"], "due_without_record");
    assert_eq!(report[0]["flaws"][0]["repaired"], false);
    let ran = site.run(&format!("audit {kind} --repair")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("due without record, repaired"), "{ran:?}");
    assert_eq!(site.run(&format!("audit {kind}")).await.code, 0);
    site.run("audit cmd_no_such:")
        .await
        .fails(3, "there is no kind");
    site.assert_balanced().await;
}

/// The commands in the table of the manual: the first word of each text between backticks in its
/// first column.
fn commands_in_manual() -> BTreeSet<&'static str> {
    let manual = include_str!("../../docs/daemon.md");
    let rows = manual.split("\n| command | |\n").nth(1).unwrap().lines();
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|line| line.split(" | ").next());
    let texts = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    texts.filter_map(|text| text.split(' ').next()).collect()
}

#[tokio::test]
async fn every_command_has_help_with_an_example_and_a_row_in_the_manual() {
    let help = Ran::of(keyfall(&["help"])).await;
    let listed = help.out.split("Commands:").nth(1).unwrap();
    let listed = listed.split("Options:").next().unwrap();
    let names = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = names
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() > 15, "{names:?}");
    let in_manual = commands_in_manual();
    for name in names.into_iter().filter(|name| *name != "help") {
        let ran = Ran::of(keyfall(&[name, "--help"])).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(
            ran.out.contains("Example"),
            "{name} has no example: write one into `after_help` of its variant of `Command`, in \
             crates/cli/src/lib.rs"
        );
        assert!(
            in_manual.contains(name),
            "{name} has no row in the table of commands of docs/daemon.md"
        );
    }
    for name in ["ls", "requeue", "rm"] {
        let ran = Ran::of(keyfall(&["dead", name, "--help"])).await;
        assert!(ran.out.contains("Example"), "dead {name} has no example");
    }
}

#[tokio::test]
async fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = Ran::of(keyfall(&["completions", shell])).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("skip-overdue"), "{shell}");
    }
    let ran = Ran::of(keyfall(&["completions", "abacus"])).await;
    ran.fails(2, "[possible values");
}

#[tokio::test]
async fn an_unreachable_redis_has_its_own_exit_code() {
    let mut command = keyfall(&["count"]);
    command.env("KEYFALL_REDIS_URL", "redis://:hunter2@127.0.0.1:1");
    let ran = Ran::of(command).await;
    ran.fails(4, "127.0.0.1:1");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
    let ran = Ran::of(keyfall(&["count", "--redis-url", "127.0.0.1"])).await;
    ran.fails(2, "Redis URL is not valid");
    let mut command = keyfall(&["count", "--help"]);
    command.env("KEYFALL_REDIS_URL", "redis://:hunter2@127.0.0.1:1");
    let help = Ran::of(command).await;
    assert!(help.out.contains("KEYFALL_REDIS_URL"), "{help:?}");
    assert!(!help.out.contains("hunter2"), "{help:?}");
}

#[tokio::test]
async fn an_address_without_a_daemon_differs_from_an_unreachable_one() {
    let site = Site::new("cmd_nowhere").await;
    let count = async |args: &[&str]| {
        let mut command = keyfall(&[&["count"], args].concat());
        command.env("KEYFALL_REDIS_URL", &site.url);
        Ran::of(command).await
    };
    let ran = count(&["--api", "http://127.0.0.1:1"]).await;
    ran.fails(4, "the daemon at http://127.0.0.1:1/ cannot be reached");

    // Another web server.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(async || "Welcome to nginx!");
    tokio::spawn(async move { axum::serve(listener, router).await });
    count(&["--api", &url])
        .await
        .fails(1, "there is no Keyfall at");

    for (url, hint) in [
        ("127.0.0.1:9276", "is not the URL of a daemon"),
        ("redis://127.0.0.1", "is not the URL of a daemon"),
        ("http://user:secret@127.0.0.1", "without a token"),
    ] {
        let ran = count(&["--api", url]).await;
        ran.fails(2, hint);
        assert!(!ran.err.contains("secret"), "{ran:?}");
    }
    let ran = count(&["--api", &url, "--redis-url", "redis://127.0.0.1"]).await;
    ran.fails(2, "both name a place");
    let mut command = keyfall(&["count"]);
    command.env("KEYFALL_API", &url);
    command.env("KEYFALL_REDIS_URL", &site.url);
    Ran::of(command).await.fails(2, "both name a place");
    // A flag beats the environment.
    let mut command = keyfall(&["count", "--redis-url", &site.url]);
    command.env("KEYFALL_API", &url);
    assert_eq!(Ran::of(command).await.code, 0);
    site.assert_balanced().await;
}

#[tokio::test]
async fn commands_reach_a_daemon_with_token_and_ca() {
    // A separate server: this test audits all kinds, and other tests damage their data.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "cmd_token").await;
    let folder = Folder::new("cmd-token");
    let tokens = folder.path("tokens");
    let make = |scope, prefix| {
        let args = [
            "token", "make", "--file", &tokens, "--scope", scope, "--prefix", prefix,
        ];
        let made = keyfall(&args);
        async move { Ran::of(made).await.out.trim_end().to_owned() }
    };
    let app = format!("{}:", site.app);
    let (reader, all) = (make("read", &app).await, make("read,operate", "").await);
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = rcgen::CertifiedIssuer::self_signed(params, ca_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let named = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    folder.write("ca.pem", &ca.pem());
    folder.write("tls.pem", &named.signed_by(&key, &ca).unwrap().pem());
    folder.write("tls.key", &key.serialize_pem());
    let flags = [
        ("--tokens-file", tokens.as_str()),
        ("--http-tls-cert-file", &folder.path("tls.pem")),
        ("--http-tls-key-file", &folder.path("tls.key")),
    ];
    let flags: Vec<&str> = flags
        .into_iter()
        .flat_map(|(flag, path)| [flag, path])
        .collect();
    let daemon = site.daemon(&flags);
    let ca_file = folder.path("ca.pem");
    let run = async |words: &str, token: &str| {
        let mut args: Vec<&str> = words.split_whitespace().collect();
        args.extend(["--api", &daemon.url, "--ca-file", &ca_file]);
        let mut command = keyfall(&args);
        command.env("KEYFALL_TOKEN", token);
        Ran::of(command).await
    };
    assert!(daemon.url.starts_with("https://"), "{}", daemon.url);
    let ran = run(&format!("count {app}"), &reader).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    run("count", &reader).await.fails(1, "for all jobs");
    run(&format!("cancel --prefix {app} --yes"), &reader)
        .await
        .fails(1, "the scope `operate`");
    run("count", "").await.fails(1, "a token is needed");
    run("count", "kf_wrong").await.fails(1, "not known here");
    assert_eq!(run("audit", &all).await.code, 0);

    folder.write("token", &format!("{reader}\n"));
    let of_file = format!("count {app} --token-file {}", folder.path("token"));
    assert_eq!(
        run(&of_file, "kf_wrong").await.code,
        0,
        "a flag beats the environment"
    );
    let mut untrusting = keyfall(&["count", "--api", &daemon.url]);
    untrusting.env("KEYFALL_TOKEN", &reader);
    Ran::of(untrusting).await.fails(1, "`--ca-file`");
    folder.write("ca.pem", "no certificate");
    run("count", &reader).await.fails(2, "holds no certificate");
    site.assert_balanced().await;
}

async fn why_prints_the_story_and_history_its_size(site: Site) {
    let key = site.key(1);
    let ran = site.run(&format!("why {key}")).await;
    ran.fails(3, "knows of none");
    site.client.schedule(&*key, "").after(HOUR).await.unwrap();
    site.client.cancel(&*key).await.unwrap();
    site.client.schedule(&*key, "").after(HOUR).await.unwrap();
    let ran = site.run(&format!("why {key} --zone Asia/Tokyo")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 6, "{ran:?}");
    assert!(lines[0].contains("  scheduled by "), "{ran:?}");
    assert!(lines[1].contains("  cancelled by "), "{ran:?}");
    assert_eq!(lines[3], "now pending:");
    assert!(lines[4].starts_with("  it is due "), "{ran:?}");
    assert!(lines[4].contains(", in "), "{ran:?}");
    assert!(lines[5].contains("no live instance has a route"), "{ran:?}");
    let story = site.run(&format!("why {key} --json")).await.value();
    let what: Vec<&Value> = story["happenings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["what"])
        .collect();
    assert_eq!(what, ["scheduled", "cancelled", "scheduled"]);
    assert_eq!(story["state"], "pending");
    assert_eq!(story["waits"][0]["for"], "due");
    assert_eq!(story.get("gap"), None);
    let ran = site.run(&format!("why {key} --zone Mars")).await;
    ran.fails(2, "Europe/Berlin");

    let prefix = format!("{}:", site.kind());
    let kept = site.run(&format!("history {prefix} --json")).await.value();
    assert_eq!(kept["kinds"][0]["kind"], site.kind());
    assert!(kept["kinds"][0]["entries"].as_u64().unwrap() > 0, "{kept}");
    let off = site.run(&format!("history {prefix} --off")).await;
    assert!(off.out.contains("off"), "{off:?}");
    let ran = site.run(&format!("why {key}")).await;
    assert!(
        ran.out.contains("is off: the story comes from its record"),
        "{ran:?}"
    );
    let kept = site
        .run(&format!("history {prefix} --keep 70 --json"))
        .await;
    assert_eq!(kept.value()["kinds"][0]["entries"], 70);
    let ran = site.run(&format!("history {prefix} --keep 1000001")).await;
    ran.fails(2, "1000000 at the most");
    let ran = site.run("history --off").await;
    ran.fails(2, "which kinds? Give");
    site.assert_balanced().await;
}

/// The ways to select many jobs or kinds, the answers to questions, and the earlier spellings of
/// flags.
#[tokio::test]
async fn one_grammar_holds_for_all_commands() {
    let site = Site::new("cmd_grammar").await;
    let kind = site.kind();
    let call = site.client.schedule(site.key(1), "1").after(HOUR);
    call.await.unwrap();
    for look in [
        "list", "ls", "count", "kinds", "kind", "audit", "history", "export",
    ] {
        let there = site.run(&format!("{look} {kind}: --json")).await;
        assert_eq!(there.code, 0, "{look}: {there:?}");
        let same = site.run(&format!("{look} --prefix {kind}: --json")).await;
        assert_eq!((same.code, same.out), (0, there.out), "{look}");
        let both = site.run(&format!("{look} {kind}: --prefix {kind}:")).await;
        both.fails(2, "cannot be used with");
        let both = site.run(&format!("{look} {kind}: --all")).await;
        both.fails(2, "cannot be used with");
    }
    for change in [
        format!("pause --prefix {kind}: --yes"),
        format!("resume --prefix {kind}: --yes"),
        format!("history --prefix {kind}: --keep 100 --yes"),
        format!("audit {kind}: --fix --yes"),
        format!("dead requeue {kind}: --yes"),
        format!("dead delete --prefix {kind}: --yes"),
        format!("postpone {} --after 2h --yes", site.key(1)),
        format!("cancel {} --yes", site.key(1)),
        // A kind is also its prefix.
        format!("reshard {kind}: --json"),
        format!("kinds drop {kind}: --yes"),
    ] {
        let ran = site.run(&change).await;
        assert_eq!(ran.code, 0, "{change}: {ran:?}");
    }
    let ran = site.run("history --off").await;
    ran.fails(2, "Give a PREFIX, such as app1:trans:notice:, or `--all`");
    for (words, hint) in [
        ("demo --time 2s", "from 4s to 1h"),
        ("demo --seconds 2", "from 4s to 1h"),
        ("list -n x", "invalid digit"),
        ("dead list a:b:c: -n 1001", "from 1 to 1000"),
        ("export --cursor x", ""),
        ("tail --limit 1001", "1001"),
    ] {
        site.run(words).await.fails(2, hint);
    }
    // A wrong flag is the same error, wherever it is detected.
    let header = format!("a={}", "x".repeat(9000));
    let args = ["schedule", &site.key(1), "x", "--header", &header];
    site.run_args(&args).await.fails(2, "8192");
    site.assert_balanced().await;
}

/// No Redis is running, and no Redis was named.
#[tokio::test]
async fn the_remedy_for_a_missing_redis_fits_the_command() {
    for (words, remedy, other) in [
        ("list", "name a daemon with `--api`", "redis-cluster://"),
        ("reshard a:b:c", "start one with `keyfall dev`", "--api"),
        ("functions check", "start one with `keyfall dev`", "--api"),
        ("doctor", "name a daemon with `--api`", "redis-cluster://"),
        (
            "doctor --fix",
            "name a daemon with `--api`",
            "redis-cluster://",
        ),
        ("cluster mend", "redis-cluster://", "keyfall dev"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let ran = Ran::of(keyfall(&words)).await;
        if ran.code == 0 || !ran.err.contains("no Redis was named") {
            // A Redis happens to run on this machine.
            assert!(ran.code != 4, "{words:?}: {ran:?}");
            continue;
        }
        assert_eq!(ran.code, 4, "{ran:?}");
        assert!(
            ran.err.contains(remedy) && !ran.err.contains(other),
            "{words:?}: {ran:?}"
        );
    }
}

/// A tail with these words, on the jobs of this site.
fn tail(site: &Site, words: &str) -> TalkingProcess {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command.arg("tail").args(words.split_whitespace());
    match &site.daemon {
        Some(daemon) => command.args(["--api", &daemon.url]),
        None => command.args(["--redis-url", &site.url]),
    };
    TalkingProcess::spawn(command)
}

/// The next line of the tail, as JSON.
fn told(tail: &TalkingProcess) -> Value {
    serde_json::from_str(&tail.line()).unwrap()
}

async fn tail_follows_the_events(site: Site) {
    for id in [1, 2] {
        let call = site.client.schedule(site.key(id), "").after(HOUR);
        call.await.unwrap();
    }
    let prefix = format!("{}:", site.app);
    let what = "--what scheduled,cancelled --json";
    let some = tail(&site, &format!("{prefix} -n 1 {what}"));
    let one = tail(&site, &format!("--key {} --zone Asia/Tokyo", site.key(1)));
    assert_eq!(told(&some)["key"], site.key(2));
    assert!(one.line().contains("scheduled"));
    let moved = site.client.reschedule(site.key(1)).after(2 * HOUR);
    moved.await.unwrap();
    site.client.cancel(site.key(1)).await.unwrap();
    let line = told(&some);
    assert_eq!(
        (&line["what"], &line["key"]),
        (&json!("cancelled"), &json!(site.key(1)))
    );
    assert!(
        line["text"].as_str().unwrap().contains("cancelled"),
        "{line}"
    );
    for word in ["postponed", "cancelled"] {
        let line = one.line();
        assert!(line.contains(word) && line.contains(&site.key(1)), "{line}");
    }
    let ran = site.run("tail --what exploded").await;
    ran.fails(2, "scheduled, replaced");
    site.run("tail a:b:c:d:e").await.fails(2, "four segments");
    site.client.cancel(site.key(2)).await.unwrap();
    site.assert_balanced().await;
}

/// The daemon stops, jobs change meanwhile, and it comes back at the same address.
#[tokio::test]
async fn a_tail_through_a_daemon_continues_after_an_outage() {
    let mut site = Site::new("cmd_tail_again").await;
    let daemon = site.daemon(&[]);
    let url = daemon.url.clone();
    site.daemon = Some(daemon);
    let (client, kind) = (site.client.clone(), site.kind());
    let schedule = async |id: usize| {
        let call = client.schedule(format!("{kind}:{id}"), "").after(HOUR);
        call.await.unwrap();
    };
    for id in 1..4 {
        schedule(id).await;
    }
    let tail = tail(&site, &format!("{}: -n 2 --json", site.app));
    for id in [2, 3] {
        assert_eq!(told(&tail)["key"], site.key(id));
    }
    schedule(4).await;
    assert_eq!(told(&tail)["key"], site.key(4));
    site.daemon = None;
    schedule(5).await;
    let again = site.daemon_at(url.strip_prefix("http://").unwrap(), &[]);
    assert_eq!(again.url, url);
    schedule(6).await;
    for id in [5, 6] {
        assert_eq!(told(&tail)["key"], site.key(id));
    }
    drop(tail);
    let prefix = format!("{}:", site.app);
    site.client.prefix(&prefix).cancel().await.unwrap();
    site.assert_balanced().await;
}

async fn a_job_without_a_route_is_scheduled_with_a_warning(site: Site) {
    let key = site.key(1);
    let ran = site.run(&format!("schedule {key} --after 1h --json")).await;
    assert_eq!(ran.value()["warnings"][0]["code"], "unrouted");
    assert!(ran.err.starts_with("warning: no "), "{ran:?}");
    assert!(
        ran.err.contains(&format!("route for {key}")) || ran.err.contains(&key),
        "{ran:?}"
    );

    // A route for some jobs of the kind, and then a route for this job.
    for (id, is_warned) in [("other", true), ("1", false)] {
        let worker = site.serve(Router::new().route(&site.key(id), async || {}));
        worker.ready().await;
        eventually("it is known", async || {
            let ran = site.run(&format!("schedule {key} --after 1h")).await;
            assert_eq!(ran.code, 0, "{ran:?}");
            let said = format!("warning: no live worker has a route for {key}");
            (ran.err.contains(&said) == is_warned).then_some(())
        })
        .await;
        worker.stop().await;
    }
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}

/// Each of these characters turns or hides the text around it.
const UNSEEN: [char; 6] = [
    '\u{202e}',
    '\u{2066}',
    '\u{200b}',
    '\u{feff}',
    '\u{ad}',
    '\u{e0041}',
];

async fn invisible_characters_reach_no_terminal(site: Site) {
    let worker = site.serve(
        Router::new().route(&site.pattern(), async |job: keyfall::Job| {
            Outcome::bury(format!("of {}", job.key().id()))
        }),
    );
    let id: String = std::iter::once('a').chain(UNSEEN).chain(['z']).collect();
    let key = site.key(&id);
    site.client.schedule(&key, &id).await.unwrap();
    site.reaches(&key, JobState::Dead).await;
    worker.stop().await;
    let kind = site.kind();
    let mut commands = vec![
        vec!["list", &kind, "--state", "dead"],
        vec!["dead", "ls", &key],
        vec!["get", &key],
        vec!["why", &key],
        vec!["export", &kind],
        vec!["dead", "rm", &key, "--letter", "77"],
    ];
    let as_json: Vec<_> = commands[..4]
        .iter()
        .map(|words| [&words[..], &["--json"]].concat())
        .collect();
    commands.extend(as_json);
    for words in commands {
        let ran = site.run_args(&words).await;
        let said = format!("{}{}", ran.out, ran.err);
        assert!(
            said.contains('a') && said.contains('z'),
            "{words:?}: {said}"
        );
        assert!(!said.contains(UNSEEN), "{words:?}: {said:?}");
        if words.contains(&"--json") {
            assert!(serde_json::Value::to_string(&ran.lines()[0]).contains(&id));
        }
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn tail_and_log_print_no_invisible_characters() {
    let site = Site::new("cmd_unseen_told").await;
    let id: String = std::iter::once('a').chain(UNSEEN).chain(['z']).collect();
    site.client.schedule(site.key(&id), "").await.unwrap();
    for form in [&[][..], &["--json"]] {
        let mut tail = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
        tail.args(["tail", "cmd_unseen_told:", "--redis-url", &site.url]);
        tail.args(form);
        let line = TalkingProcess::spawn(tail).line();
        assert!(line.contains("cmd_unseen_told:it:job:a"), "{line:?}");
        assert!(!line.contains(UNSEEN), "{line:?}");
    }

    let folder = Folder::new("cmd-unseen-told");
    let pattern = site.pattern();
    let target = "target = { http = { url = \"http://127.0.0.1:1/\" } }";
    folder.write(
        "k.toml",
        &format!("[[route]]\npattern = \"{pattern}\"\n{target}\n"),
    );
    let log = folder.path("log");
    let mut daemon = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
    daemon.args(["serve", "--http-listen", "127.0.0.1:0"]);
    daemon.args(["--redis-url", &site.url]);
    daemon.args(["--config", &folder.path("k.toml")]);
    daemon.stderr(std::fs::File::create(&log).unwrap());
    let daemon = TalkingProcess::spawn(daemon);
    let told = eventually("the attempt that failed is in the log", async || {
        let told = std::fs::read_to_string(&log).unwrap();
        told.contains("an attempt failed").then_some(told)
    })
    .await;
    assert!(told.contains("cmd_unseen_told:it:job:a"), "{told:?}");
    assert!(!told.contains(UNSEEN), "{told:?}");
    drop(daemon);
}
