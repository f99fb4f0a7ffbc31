//! Each key of a ledger, and each common key of all kinds, is damaged in each way: an audit names
//! the damage, a repair leaves the intended data, and all kinds continue, the other kind even
//! during the damage.

use keyfall::embedded::Embedded;
use keyfall::{AuditAllReport, Client, ErrorKind, JobState, Outcome, Router};
use keyfall_testing::sabotage::{self, Sabotage};

use crate::runs::{Gate, PATIENCE, Runs, eventually, recorder};
use crate::site::{HOUR, Running, Site, command, connect};

fn findings(report: &AuditAllReport) -> Vec<String> {
    sabotage::findings(report, |_| true)
}

/// A server of its own, with a kind to sabotage and another one.
struct Scene {
    site: Site,
    gate: Gate,
    runs: Runs,
    worker: Running,
    _server: Embedded,
}

impl Scene {
    async fn set() -> Self {
        let server = Embedded::start().await.unwrap();
        let site = Site::at(&server.url(), "sabotage").await;
        let ((note, mut runs), gate) = (recorder(), Gate::closed());
        let (inner, passage) = (note.clone(), gate.clone());
        let handler = async move |job: keyfall::Job| {
            inner.note(&job);
            match job.key().id().split('-').next().unwrap() {
                "runs" => passage.passed().await,
                "dies" => return Outcome::bury("no"),
                _ => {}
            }
            Outcome::Done
        };
        let router = Router::new()
            .route(&site.pattern(), handler)
            .route(&format!("{}:it:other:{{id}}", site.app), note.done());
        let worker = Running::start(site.worker(router).lease(PATIENCE));
        let client = &site.client;
        for id in ["dies-1", "dies-2"] {
            client.schedule(site.key(id), id).await.unwrap();
            site.reaches(&site.key(id), JobState::Dead).await;
        }
        client.schedule(site.key("runs-1"), "").await.unwrap();
        runs.take(3).await;
        for id in ["runs-1", "waits-1", "waits-2"] {
            let call = client.schedule(site.key(id), id).after(HOUR);
            call.await.unwrap();
        }
        let scene = Scene {
            site,
            gate,
            runs,
            worker,
            _server: server,
        };
        assert_eq!(findings(&scene.audit(false).await), [""; 0]);
        scene
    }

    fn other(&self) -> String {
        format!("{}:it:other", self.site.app)
    }

    async fn audit(&self, repair: bool) -> AuditAllReport {
        let audit = self.site.client.everything().audit();
        let audit = if repair { audit.repair() } else { audit };
        audit.await.unwrap()
    }

    /// Damages the other kind, too.
    async fn damage_the_other(&self) {
        let other = self.other();
        let call = self.site.client.schedule(format!("{other}:bare"), "");
        call.after(HOUR).await.unwrap();
        let shadow = format!("keyfall:{{{other}/0}}:shadow");
        let gone: u64 = self.site.command(&["HDEL", &shadow, "bare"]).await;
        assert_eq!(gone, 1);
    }

    async fn judge(mut self, row: &Sabotage) {
        let (kind, other) = (self.site.kind(), self.other());
        let name = format!("{}: {:?}", row.key, row.does);
        self.damage_the_other().await;
        for words in row.commands(&kind, &other) {
            let _: redis::Value = self.site.command(&words).await;
        }
        let said = [row.says, &["bare DueWithoutRecord"]].concat();
        let found = findings(&self.audit(false).await);
        assert!(
            sabotage::are(&found, &said, &kind, &other),
            "{name}: {found:#?}"
        );

        // The remedies for people are carried out, and the next repair can mend the rest.
        let report = self.audit(true).await;
        let of_other = report.kinds.iter().find(|(it, _)| it.as_str() == other);
        let of_other = of_other.unwrap().1.as_ref().unwrap();
        assert!(
            of_other.flawed.iter().all(|it| it.repaired),
            "{name}: {of_other:?}"
        );
        for words in sabotage::commands_told(&report) {
            let _: redis::Value = self.site.command(&words).await;
        }
        self.audit(true).await;
        self.gate.open();
        let leaves = [row.leaves, &[]].concat();
        eventually(&format!("{name} leaves {leaves:?}"), async || {
            let found = findings(&self.audit(false).await);
            sabotage::are(&found, &leaves, &kind, &other).then_some(())
        })
        .await;

        // Both kinds work, no waiting job has vanished without a report, and no letter is lost.
        let client = &self.site.client;
        for key in [
            self.site.key("new"),
            format!("{other}:new"),
            self.site.key("dies-1"),
        ] {
            client.schedule(&key, "").await.unwrap();
        }
        let mut ran = Vec::new();
        eventually(&format!("all run after {name}"), async || {
            ran.extend(self.runs.rest());
            let count = |id: &str| ran.iter().filter(|job| job.key().id() == id).count();
            (count("new") == 2 && count("dies-1") == 1).then_some(())
        })
        .await;
        for id in ["waits-1", "waits-2"] {
            let view = self.site.view(&self.site.key(id)).await;
            let is_kept = match view.state() {
                JobState::Pending => true,
                JobState::Dead => view.last_error().unwrap().contains("an audit found"),
                _ => false,
            };
            assert!(is_kept, "{name}: {view:?}");
        }
        eventually(&format!("two letters after {name}"), async || {
            let letters = client.dead_letters(self.site.key("dies-1")).await.unwrap();
            (letters.len() == 2).then_some(())
        })
        .await;
        self.worker.stop().await;
    }
}

async fn judge_all(rows: &[Sabotage]) {
    for row in rows {
        Scene::set().await.judge(row).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_of_jobs_can_be_damaged() {
    judge_all(sabotage::JOBS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_of_dead_letters_can_be_damaged() {
    judge_all(sabotage::LETTERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_of_counters_and_calls_can_be_damaged() {
    judge_all(sabotage::BOOKS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_common_key_of_all_kinds_can_be_damaged() {
    judge_all(sabotage::COMMON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_trigger_can_be_damaged() {
    judge_all(sabotage::TRIGGERS).await;
}

#[tokio::test]
async fn a_malformed_instance_is_removed() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-instances").await;
    let set = ["HSET", "keyfall:instances", "stranger", "theirs"];
    let _: u64 = site.command(&set).await;
    for (repair, left) in [(false, 1), (true, 0)] {
        let audit = site.client.everything().audit();
        let audit = if repair { audit.repair() } else { audit };
        let report = audit.await.unwrap();
        let found = findings(&report);
        assert!(
            sabotage::are(&found, &["instances stranger: it is \"theirs\""], "", ""),
            "{found:?}"
        );
        assert_eq!(report.damaged[0].repaired, repair);
        let there: u64 = site.command(&["HLEN", "keyfall:instances"]).await;
        assert_eq!(there, left);
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_pause_without_its_rule_and_a_rule_without_its_pause_are_reported() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-pause").await;
    let (client, kind) = (&site.client, site.kind());
    client
        .schedule(site.key("1"), "")
        .after(HOUR)
        .await
        .unwrap();
    client.prefix(&format!("{kind}:")).pause().await.unwrap();
    let found = async || findings(&client.everything().audit().await.unwrap());
    assert_eq!(found().await, [""; 0]);
    let _: u64 = site.command(&["DEL", "keyfall:paused"]).await;
    let said = format!("paused {kind}:: it is missing, and the kind is paused");
    assert_eq!(found().await, std::slice::from_ref(&said));
    // Only a person knows which of the two states was meant.
    let report = client.everything().audit().repair().await.unwrap();
    assert!(
        report.kinds[0].1.as_ref().unwrap().damaged[0]
            .remedy
            .contains("keyfall resume")
    );
    assert_eq!(found().await, [said]);
    client.prefix(&format!("{kind}:")).pause().await.unwrap();
    assert_eq!(found().await, [""; 0]);

    let calls = format!("keyfall:{{{kind}/0}}:calls");
    let _: u64 = site.command(&["HDEL", &calls, "paused"]).await;
    assert_eq!(
        found().await,
        ["calls paused: it is missing, and a pause covers the kind"]
    );
    client.everything().audit().repair().await.unwrap();
    assert_eq!(found().await, [""; 0]);
    assert!(client.stats(&kind).await.unwrap().paused);
    site.assert_balanced().await;
}

/// As for a user without the right to read it.
#[tokio::test]
async fn a_kind_that_cannot_be_audited_does_not_stop_the_audit() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-seen").await;
    let [hidden, seen] = ["hidden", "seen"].map(|kind| format!("sabotage-seen:it:{kind}"));
    for kind in [&hidden, &seen] {
        let call = site.client.schedule(format!("{kind}:1"), "").after(HOUR);
        call.await.unwrap();
    }
    let shadow = format!("keyfall:{{{seen}/0}}:shadow");
    let _: u64 = site.command(&["HDEL", &shadow, "1"]).await;
    let ledger = format!("~keyfall:{{{seen}/*");
    let rule = ["ACL", "SETUSER", "half", "on", ">word", "+@all", "&*"];
    let common = ["~keyfall:kinds", "~keyfall:paused", "~keyfall:meta"];
    let of_workers = ["~keyfall:instances", "~keyfall:search*", &ledger];
    let () = site
        .command(&[&rule[..], &common, &of_workers].concat())
        .await;
    let url = format!("{}?user=half&pass=word", server.url());
    let client = Client::connect(&url).await.unwrap();
    let report = client.everything().audit().await.unwrap();
    let [(_, of_hidden), (_, of_seen)] = &report.kinds[..] else {
        panic!("{report:?}");
    };
    assert_eq!(of_hidden.as_ref().unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(of_seen.as_ref().unwrap().flawed.len(), 1, "{report:?}");
    assert!(!report.is_clean());
}

#[tokio::test]
async fn a_shard_without_its_layout_is_reported() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-shards").await;
    let (client, kind) = (&site.client, site.kind());
    client
        .schedule(site.key("1"), "")
        .after(HOUR)
        .await
        .unwrap();
    client.reshard(&kind, 2).await.unwrap();
    let found = async || findings(&client.everything().audit().await.unwrap());
    assert_eq!(found().await, [""; 0]);
    let calls: Vec<String> = site.command(&["KEYS", "keyfall:{*/1.*}:calls"]).await;
    let before: String = site.command(&["HGET", &calls[0], "layout"]).await;
    let _: u64 = site.command(&["DEL", &calls[0]]).await;
    let _: u64 = site
        .command(&["HSET", "keyfall:kinds", &kind, "theirs"])
        .await;
    let said = format!("kinds {kind}: it is \"theirs\", and should be a layout, such as \"4 1\"");
    assert_eq!(found().await, [said]);
    client.everything().audit().repair().await.unwrap();
    assert_eq!(found().await, [""; 0]);
    let layout: String = site.command(&["HGET", &calls[0], "layout"]).await;
    assert_eq!(layout, before);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_lost_list_of_kinds_is_not_taken_for_an_empty_database() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-list").await;
    for n in 0..9 {
        let call = site.client.schedule(site.key(n), "").after(HOUR);
        call.await.unwrap();
    }
    let _: u64 = site.command(&["DEL", "keyfall:kinds"]).await;
    for words in [
        "count",
        "count sabotage-list:it:job:",
        "list",
        "kinds",
        "cancel --prefix a: --dry-run",
    ] {
        site.run(words).await.fails(1, "keyfall audit --repair");
    }
    let error = site.client.count("sabotage-list:").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    let ran = site.run("audit").await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.out
            .contains("keyfall:kinds sabotage-list:it:job: it is missing"),
        "{ran:?}"
    );
    // The same over HTTP.
    let site = site.through_a_daemon();
    site.run("count").await.fails(1, "keyfall audit --repair");
    let told = site.run("audit --json").await.out;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        told["damaged"][0]["field"], "sabotage-list:it:job",
        "{told}"
    );
    assert_eq!(
        (&told["searched"], &told["kinds"][0]["clean"]),
        (&true.into(), &false.into())
    );
    assert_eq!(site.run("audit --repair").await.code, 0);
    assert_eq!(site.run("audit").await.code, 0);
    let counted = site.run("count --json").await;
    assert_eq!(counted.value()["pending"], 9);
    site.assert_balanced().await;
}

#[tokio::test]
async fn nobody_takes_lost_due_times_for_no_jobs() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-due").await;
    for n in 0..9 {
        let call = site.client.schedule(site.key(n), "").after(HOUR);
        call.await.unwrap();
    }
    let due = format!("keyfall:{{{}/0}}:due", site.kind());
    let _: u64 = site.command(&["DEL", &due]).await;
    let commands = [
        "count",
        "count sabotage-due:it:job:1",
        "list",
        "cancel --prefix sabotage-due: --yes",
        "postpone --prefix sabotage-due:it:job: --by 1h --yes",
    ];
    for words in commands {
        let ran = site.run(words).await;
        ran.fails(1, "keyfall audit --repair");
        assert!(
            ran.err.contains(&due) && ran.err.contains("9 jobs"),
            "{ran:?}"
        );
    }
    let error = site.client.count("sabotage-due:").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    // The same over HTTP.
    let site = site.through_a_daemon();
    for words in commands {
        site.run(words).await.fails(1, "keyfall audit --repair");
    }
    assert_eq!(site.run("audit --repair").await.code, 0);
    let counted = site.run("count --json").await.value();
    assert_eq!(
        (&counted["pending"], &counted["dead"]),
        (&0.into(), &9.into())
    );
    let requeued = site.client.prefix("sabotage-due:").requeue().await.unwrap();
    assert_eq!(requeued.done, 9);
    assert_eq!(site.run("count --json").await.value()["pending"], 9);
    // A kind without any job is sound.
    site.client.everything().cancel().await.unwrap();
    assert_eq!(site.run("count --json").await.value()["pending"], 0);
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_command_line_names_what_is_damaged_and_goes_on_with_the_other_kinds() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "sabotage-cli").await;
    for kind in ["counter", "typed", "other"] {
        let call = site
            .client
            .schedule(format!("sabotage-cli:it:{kind}:1"), "");
        call.after(HOUR).await.unwrap();
    }
    let key = |kind: &str, part: &str| format!("keyfall:{{sabotage-cli:it:{kind}/0}}:{part}");
    let _: u64 = site
        .command(&["HSET", &key("counter", "stats"), "accepted", "many"])
        .await;
    let () = site.command(&["SET", &key("typed", "due"), "theirs"]).await;
    let _: u64 = site.command(&["HDEL", &key("other", "shadow"), "1"]).await;
    let named = [
        format!("{} accepted: it is \"many\"", key("counter", "stats")),
        format!(
            "`redis-cli HSET '{}' 'accepted' 1`",
            key("counter", "stats")
        ),
        format!(
            "{}: it is a string, and should be a sorted set",
            key("typed", "due")
        ),
        "sabotage-cli:it:other:1: due without record; `--repair`: a dead letter".to_owned(),
    ];
    let ran = site.run("audit").await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        named.iter().all(|text| ran.out.contains(text)),
        "{}",
        ran.out
    );
    let ran = site.run("audit --repair").await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("1 of 3 kinds"), "{ran:?}");
    assert!(ran.out.contains("repaired: moved to"), "{ran:?}");
    let aside: Vec<String> = site
        .command(&["KEYS", &format!("{}:aside:*", key("typed", "due"))])
        .await;
    assert_eq!(site.command::<String>(&["GET", &aside[0]]).await, "theirs");
    let _: u64 = site
        .command(&["HSET", &key("counter", "stats"), "accepted", "1"])
        .await;
    let ran = site.run("audit").await;
    assert_eq!(ran.code, 0, "{ran:?}");
    site.assert_balanced().await;
}

async fn both(one: &Embedded, other: &Embedded) -> Client {
    Client::connect(&format!("{} {}", one.url(), other.url()))
        .await
        .unwrap()
}

#[tokio::test]
async fn an_emptied_server_is_named_until_it_is_acknowledged() {
    let (one, other) = (
        Embedded::start().await.unwrap(),
        Embedded::start().await.unwrap(),
    );
    let client = both(&one, &other).await;
    let audit = async |client: &Client| client.everything().audit().await.unwrap();
    for n in 0..20 {
        let call = client.schedule(format!("sabotage:it:kind{n}:1"), "");
        call.after(HOUR).await.unwrap();
    }
    assert!(audit(&client).await.is_clean());
    // As long as the connections last, no client writes the common keys again.
    let mut redis = connect(&other.url()).await;
    let () = command(&mut redis, &["FLUSHALL"]).await;
    let report = audit(&client).await;
    let found = findings(&report);
    assert!(
        found.iter().any(|it| it.starts_with("meta server: ")),
        "{found:#?}"
    );
    // A new client writes the known data again, and the loss is still reported.
    let new = both(&one, &other).await;
    for client in [&new, &client] {
        let found = findings(&audit(client).await);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0].starts_with("meta emptied: ") && found[0].contains("server 2 of 2"),
            "{found:?}"
        );
    }
    let report = new.everything().audit().repair().await.unwrap();
    assert!(report.damaged.iter().all(|it| it.repaired), "{report:?}");
    assert!(audit(&client).await.is_clean());
    for n in 0..20 {
        let key = format!("sabotage:it:kind{n}:2");
        client.schedule(key, "").after(HOUR).await.unwrap();
    }
    assert!(audit(&new).await.is_clean());
}

#[tokio::test]
async fn new_servers_are_not_taken_for_emptied_ones() {
    let (one, other) = (
        Embedded::start().await.unwrap(),
        Embedded::start().await.unwrap(),
    );
    let first = both(&one, &other).await;
    let second = both(&one, &other).await;
    first
        .schedule("sabotage:it:new:1", "")
        .after(HOUR)
        .await
        .unwrap();
    let report = second.everything().audit().await.unwrap();
    assert!(report.is_clean() && report.is_searched, "{report:?}");
}
