//! `keyfall import --from` BullMQ, Celery, rq and Sidekiq: what these libraries wrote.
//!
//! `tests/moving` has the programs that wrote it, and what they wrote. `make moving-check` runs the
//! programs, and these tests with what they write now, by `KEYFALL_MOVING`.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keyfall::embedded::Embedded;
use keyfall_testing::files::repository;
use serde_json::{Value, json};

use crate::shell::Ran;
use crate::site::{self, Site, command, connect};

/// A Redis with the data of a system, and a site that imports them.
struct Move {
    system: &'static str,
    site: Site,
    there: Embedded,
}

impl Move {
    async fn of(system: &'static str) -> Self {
        let site = Site::new(&format!("moving-{system}")).await;
        let there = Embedded::start().await.unwrap();
        load(&there.url(), system).await;
        Move {
            system,
            site,
            there,
        }
    }

    /// Imports the jobs of all names as jobs of one kind, except reminders.
    async fn import(&self, name: &str, flags: &str) -> Ran {
        let Move {
            system,
            site,
            there,
        } = self;
        let (app, url) = (&site.app, there.url());
        let kinds = format!("--as {app}:mail:send --as {name}={app}:mail:remind");
        let import = format!("import --from {system} {kinds} --source-url {url} {flags}");
        site.run(&import).await
    }

    /// Asserts that a dry run stores nothing, that an import brings these payloads with names and due
    /// times, that a repeat changes nothing, and that nothing was written there.
    async fn brings(
        &self,
        flags: &str,
        names: [&str; 3],
        payloads: [Value; 3],
        late_ms: u64,
    ) -> Value {
        let before = self.writes().await;
        let dry = self.import(names[2], &format!("{flags} --dry-run")).await;
        assert_eq!(dry.code, 0, "{dry:?}");
        assert!(dry.out.starts_with("3 to schedule\n"), "{dry:?}");
        let first = format!(
            "{}:mail:remind:order-3 due 2030-01-01T09:02:00",
            self.site.app
        );
        assert!(dry.out.contains(&first), "{dry:?}");
        let kinds = self.site.client.kinds().await.unwrap();
        let app = format!("{}:", self.site.app);
        assert!(!kinds.iter().any(|kind| kind.to_string().starts_with(&app)));

        let flags = format!("{flags} --json");
        let report = self.import(names[2], &flags).await.value();
        assert_eq!(report["scheduled"], 3, "{report}");
        for (number, payload) in payloads.iter().enumerate() {
            let kind = ["send", "send", "remind"][number];
            let key = format!("{app}mail:{kind}:order-{}", number + 1);
            let job = self.site.view(&key).await;
            let got: Value = serde_json::from_slice(job.payload()).unwrap();
            assert_eq!(got, *payload, "{key}");
            assert_eq!(job.headers().get("job-name"), Some(names[number]));
            let due = job.due().duration_since(std::time::UNIX_EPOCH).unwrap();
            let wanted = 1_893_488_400_000 + late_ms + 60_000 * number as u64;
            assert_eq!(due.as_millis() as u64, wanted, "{key}");
        }
        let again = self.import(names[2], &flags).await.value();
        assert_eq!(
            (&again["scheduled"], &again["present"]),
            (&json!(0), &json!(3))
        );
        assert_eq!(self.writes().await, before);
        self.site.assert_balanced().await;
        report["left_out"].clone()
    }

    /// The number of writes there, since Redis last saved its data, which it does not by itself.
    async fn writes(&self) -> String {
        let mut redis = connect(&self.there.url()).await;
        let told: String = command(&mut redis, &["INFO", "persistence"]).await;
        let mut lines = told.lines();
        let writes = lines.find(|line| line.starts_with("rdb_changes_since_last_save:"));
        writes.unwrap().to_owned()
    }
}

/// Writes the data of a system into a Redis.
async fn load(url: &str, system: &str) {
    let mut redis = connect(url).await;
    for parts in recorded(system) {
        let mut call = redis::Cmd::new();
        for part in parts.as_array().unwrap() {
            match part["base64"].as_str() {
                Some(bytes) => call.arg(STANDARD.decode(bytes).unwrap()),
                None => call.arg(part.as_str().unwrap()),
            };
        }
        let _: redis::Value = call.query_async(&mut redis).await.unwrap();
    }
}

/// The commands that write the data of a system.
fn recorded(system: &str) -> Vec<Value> {
    let folder = std::env::var_os("KEYFALL_MOVING")
        .map_or_else(|| repository().join("tests/moving/recorded"), PathBuf::from);
    let file = folder.join(format!("{system}.json"));
    let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    serde_json::from_slice(&text).unwrap()
}

#[tokio::test]
async fn delayed_jobs_of_bullmq_are_imported() {
    let payloads = [
        json!({"to": "a@example.org", "amount": 1.5}),
        json!("ä"),
        json!([1, 2]),
    ];
    let names = ["welcome", "welcome", "remind"];
    let there = Move::of("bullmq").await;
    let left_out = there.brings("--queue mail", names, payloads, 250).await;
    let expected = json!({
        "are ready to run: their own workers take them": 1,
        "belong to a job scheduler: make a recurring job in its place": 1,
    });
    assert_eq!(left_out, expected);
    let none = there.import("remind", "--queue post").await;
    none.fails(3, "there is no key bull:post:delayed to import from");
    there.import("remind", "").await.fails(2, "--queue");
}

#[tokio::test]
async fn tasks_of_celery_with_an_eta_are_imported() {
    let payloads = [
        json!({"args": ["a@example.org", 1.5], "kwargs": {"lang": "de"}}),
        json!({"args": ["ä"], "kwargs": {}}),
        json!({"args": [[1, 2]], "kwargs": {}}),
    ];
    let names = ["mail.welcome", "mail.welcome", "mail.remind"];
    let there = Move::of("celery").await;
    // A worker holds a task until it is due.
    let mut redis = connect(&there.there.url()).await;
    let taken: String = command(&mut redis, &["LINDEX", "celery", "1"]).await;
    let held = format!(r#"[{taken}, "", "celery"]"#);
    let _: u64 = command(&mut redis, &["HSET", "unacked", "tag", &held]).await;
    let _: u64 = command(&mut redis, &["LREM", "celery", "0", &taken]).await;
    let other = format!(r#"[{taken}, "", "feed.import"]"#);
    let _: u64 = command(&mut redis, &["HSET", "unacked", "other", &other]).await;
    let left_out = there.brings("", names, payloads, 250).await;
    let ready = "are ready to run: their own workers take them";
    let held = "are held by a worker, with the routing key feed.import: if it belongs to this queue, \
                start the worker, and stop it with SIGTERM";
    assert_eq!(left_out, json!({ready: 1, held: 1}));
    let none = there.import("mail.remind", "--queue post").await;
    assert_eq!(none.code, 0, "{none:?}");
    assert!(none.out.starts_with("0 scheduled"), "{none:?}");
}

#[tokio::test]
async fn scheduled_jobs_of_rq_are_imported() {
    let payloads = [
        json!({"args": ["a@example.org", 1.5], "kwargs": {"lang": "de"}}),
        json!({"args": ["ä"], "kwargs": {}}),
        json!({"args": [[1, 2]], "kwargs": {}}),
    ];
    let names = ["mail.welcome", "mail.welcome", "mail.remind"];
    let there = Move::of("rq").await;
    let refused = there.import("mail.remind", "--queue mail").await;
    refused.fails(
        1,
        "the member pickled: its arguments are pickled, and hold a value",
    );
    let mut redis = connect(&there.there.url()).await;
    let _: u64 = command(&mut redis, &["ZREM", "rq:scheduled:mail", "pickled"]).await;
    // What an import had brought before it met that job.
    for kind in ["send", "remind"] {
        let kind = format!("{}:mail:{kind}:", there.site.app);
        there.site.run(&format!("cancel {kind} --yes")).await;
        there.site.run(&format!("kinds drop {kind}")).await;
    }
    let left_out = there.brings("--queue mail", names, payloads, 0).await;
    let ready = "are ready to run: their own workers take them";
    assert_eq!(left_out, json!({ready: 1}));
}

#[tokio::test]
async fn jobs_of_sidekiq_for_later_are_imported() {
    let payloads = [
        json!([{"to": "a@example.org", "amount": 1.5}]),
        json!(["ä"]),
        json!([1, 2]),
    ];
    let names = ["Welcome", "Welcome", "Remind"];
    let there = Move::of("sidekiq").await;
    let left_out = there.brings("", names, payloads, 250).await;
    let ready = "are ready to run: their own workers take them";
    assert_eq!(left_out, json!({ready: 1}));
    let other = there.import("Remind", "--queue post --json").await.value();
    assert_eq!(other["left_out"]["are of other queues"], 3);
}

#[tokio::test]
async fn the_commands_of_the_guides_run() {
    let (here, there) = (
        Embedded::start().await.unwrap(),
        Embedded::start().await.unwrap(),
    );
    for system in ["bullmq", "celery", "rq", "sidekiq"] {
        load(&there.url(), system).await;
    }
    let mut redis = connect(&there.url()).await;
    let _: u64 = command(&mut redis, &["ZREM", "rq:scheduled:mail", "pickled"]).await;
    let keyfall = Path::new(env!("CARGO_BIN_EXE_keyfall"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", keyfall.parent().unwrap().display());
    let mut blocks = 0;
    for page in std::fs::read_dir(repository().join("docs/moving")).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        for block in text.split("```sh\n").skip(1) {
            let mut shell = tokio::process::Command::new("sh");
            shell.args(["-ec", block.split("```").next().unwrap()]);
            shell
                .env("PATH", &path)
                .env("KEYFALL_REDIS_URL", here.url());
            shell.env("KEYFALL_SOURCE_URL", there.url());
            let ran = Ran::of(shell).await;
            assert_eq!(ran.code, 0, "{}: {ran:?}", page.display());
            assert!(
                ran.out.contains("to schedule\n"),
                "{}: {ran:?}",
                page.display()
            );
            blocks += 1;
        }
    }
    assert_eq!(
        blocks, 5,
        "one of each guide with an import, and that of lines"
    );
    let client = site::patient(&here.url()).await;
    let sent = client.stats("app1:mail:send").await.unwrap();
    let reminders = client.stats("app1:mail:remind").await.unwrap();
    // Each guide schedules order-1 to order-3: the first one did.
    assert_eq!((sent.pending, reminders.pending), (2, 1));
}
