//! Commands on kinds and dead letters: kinds, instances, dead, pause, audit.

use keyfall::{JobState, Outcome, Router};
use serde_json::{Value, json};

use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, assert_about};

both_ways! {
    a_kind_is_dropped_when_it_is_empty on "cmd_drop";
    kinds_and_instances_show_the_routes on "cmd_kinds";
    dead_letters_are_listed_requeued_and_deleted on "cmd_dead";
    pause_and_resume_name_the_kinds on "cmd_pause";
    audit_exits_with_0_only_without_a_flaw on "cmd_audit";
    a_kind_is_limited_and_unlimited on "cmd_limit";
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

async fn a_kind_is_limited_and_unlimited(site: Site) {
    let kind = site.kind();
    let set = format!("limit {kind} --rate 30/m --burst 2 --concurrency 4");
    let words = "30/m, 2 at once, 4 at the same time";
    assert_eq!(
        site.run(&set).await.out,
        format!("limited: {kind}: {words}\n")
    );
    let listed = site.run(&format!("limit {kind}: --json")).await.value();
    let one = &listed["limits"][0];
    assert_eq!(
        (&one["rate"], &one["concurrency"]),
        (&json!("30/m"), &json!(4))
    );
    let table = site.run("limit").await.out;
    assert!(table.contains(&kind) && table.contains(words), "{table}");
    for (arguments, named) in [
        ("--rate fast", "`rate`"),
        ("--rate 1/s --burst 0", "`burst`"),
        ("--concurrency 0", "`concurrency`"),
        ("--burst 3", "--rate"),
        ("--per tenant", "`per`"),
        ("--per id/1 --total-rate fast", "`total_rate`"),
        ("--per id/1 --total-concurrency 0", "`total_concurrency`"),
        ("--per id/1 --weight acme", "`weights`"),
        ("--concurrency 1 --weight acme=2", "--per"),
        ("--concurrency 1 --total-rate 1/s", "--per"),
    ] {
        let ran = site.run(&format!("limit {kind} {arguments}")).await;
        ran.fails(2, named);
    }
    let groups = "--per header:tenant --rate 5/s --total-concurrency 9 --weight acme=3";
    let ran = site.run(&format!("limit {kind} {groups}")).await;
    let words = "5/s for each header:tenant; 9 at the same time in total; weights acme=3";
    assert_eq!(ran.out, format!("limited: {kind}: {words}\n"));
    let prefix = kind.strip_suffix("job").unwrap();
    let ran = site.run(&format!("limit {prefix} --concurrency 4")).await;
    let said = format!("limited: all kinds below {prefix} 4 at the same time\n");
    assert_eq!(ran.out, said);
    let ran = site.run(&format!("limit {prefix} --per id/1")).await;
    let said = format!("limited: all kinds below {prefix} turns for each id/1\n");
    assert_eq!(ran.out, said);
    let listed = site.run(&format!("limit {prefix} --json")).await.value();
    assert_eq!(listed["limits"][0]["kind"], json!(prefix));
    let ran = site.run(&format!("unlimit {prefix}")).await;
    assert_eq!(ran.out, format!("no longer limited: {prefix}\n"));
    let ran = site.run("limit app1:mail --concurrency 1").await;
    ran.fails(2, "app1:mail");
    site.run("limit --rate 1/s").await.fails(2, "KIND");
    let remove = format!("unlimit {kind}");
    let removed = format!("no longer limited: {kind}\n");
    assert_eq!(site.run(&remove).await.out, removed);
    assert_eq!(
        site.run(&remove).await.out,
        format!("{kind} had no limit\n")
    );
}
