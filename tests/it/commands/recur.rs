//! Recurring jobs and series: `schedule --recur`, `recur` and `series`.

use keyfall::{Outcome, Router, Rule};
use keyfall_testing::files::Folder;
use serde_json::json;

use crate::runs::recorder;
use crate::site::{HOUR, Site};

both_ways! {
    recur_lists_changes_pauses_and_resumes_rules on "cmd_rules";
    a_full_list_of_rules_says_whether_there_are_more on "cmd_rules_full";
    series_are_set_shown_moved_and_cancelled on "cmd_series";
    a_job_recurs_by_a_rule_and_goes_on_after_a_restore on "cmd_recur";
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

async fn a_full_list_of_rules_says_whether_there_are_more(site: Site) {
    let (running, pending) = (site.key(1), site.key(2));
    for key in [&running, &pending] {
        let rule = Rule::every(HOUR).unwrap();
        let job = site.client.schedule(key, &1).recurring(rule);
        job.await.unwrap();
    }
    site.client.fire_now(&running).await.unwrap();
    let (recorder, mut runs) = recorder();
    let handler = recorder.until_stopped(|| Outcome::Done);
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    runs.next().await;
    let prefix = format!("{}:", site.kind());
    // The running job fills the first of these.
    for (limit, has_more) in [(1, true), (2, false), (3, false), (0, true)] {
        let ran = site
            .run(&format!("recur ls {prefix} --limit {limit}"))
            .await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(ran.out.contains("is running"), limit > 0, "{ran:?}");
        assert_eq!(ran.err.contains("there are more"), has_more, "{ran:?}");
    }
    for key in [&running, &pending] {
        site.client.cancel(key).await.unwrap();
    }
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
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
    schedule(&[
        "{\"cron\": \"@daily\", \"zone\": \"Asia/Tokyo\"}",
        "--recur-zone",
        "Europe/Berlin",
    ])
    .await
    .fails(2, "leave one of them out");
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
