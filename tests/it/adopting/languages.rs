//! The examples in other languages, run as their readers run them, beside `keyfall serve`.

use std::process::Command;

use keyfall::What;
use keyfall::embedded::Embedded;
use keyfall_testing::files::Folder;
use keyfall_testing::files::repository;
use keyfall_testing::ports::free_port;
use keyfall_testing::process::TalkingProcess;
use serde_json::{Value, json};

use crate::runs::eventually;
use crate::shell::Daemon;
use crate::site::Site;

/// The seconds of silence before an example is reported. It sends three heartbeats in that time,
/// and may be held up for two of them.
const SILENCE: &str = "9";

/// Makes the command that starts an example, such as `reminders`.
type Language = fn(&str) -> Command;

#[tokio::test]
async fn shell() {
    plays("adopt-sh", |name| {
        let mut command = Command::new("sh");
        command.arg(source(&format!("{name}.sh")));
        command
    })
    .await;
}

#[tokio::test]
#[ignore = "it takes redis-py: `make consumers` has it, and runs this"]
async fn python() {
    plays("adopt-py", |name| {
        let mut command = Command::new(given("KEYFALL_PYTHON"));
        command.arg(source(&format!("{name}.py")));
        command
    })
    .await;
}

#[tokio::test]
#[ignore = "it takes node-redis: `make consumers` has it, and runs this"]
async fn node() {
    plays("adopt-node", |name| {
        // Node looks for packages beside the program.
        let program = format!("{}/{name}.mjs", given("KEYFALL_NODE"));
        let mut command = Command::new("node");
        command.arg(program);
        command
    })
    .await;
}

fn source(file: &str) -> String {
    let folder = repository().join("examples/adoption");
    folder.join(file).display().to_string()
}

fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

async fn plays(app: &str, language: Language) {
    let stage = AdoptingDaemon::new(app, language).await;
    tokio::join!(stage.reminds(), stage.beats());
    stage.site.assert_balanced().await;
}

/// A server with TCP, which clients in other languages speak, and a daemon that adopts.
struct AdoptingDaemon {
    language: Language,
    /// The address of the server for those clients.
    url: String,
    site: Site,
    _daemon: Daemon,
    _folder: Folder,
    _server: Embedded,
}

impl AdoptingDaemon {
    async fn new(app: &str, language: Language) -> Self {
        let port = free_port().to_string();
        let server = Embedded::options()
            .args(["--bind", "127.0.0.1", "--port", &port])
            .start()
            .await
            .unwrap();
        let site = Site::at(&server.url(), app).await;
        let folder = Folder::new(app);
        let route = |part: &str| {
            format!(
                "[[route]]\npattern = \"{app}:it:{part}:*\"\nadoption = \"run\"\n\
                 target = {{ list = {{ key = \"{app}-{part}\" }} }}\n"
            )
        };
        let routes = ["notice", "silent"].map(route).concat();
        folder.write("keyfall.toml", &routes);
        let daemon = site.daemon(&["--config", &folder.path("keyfall.toml")]);
        eventually("the daemon hears", async || {
            let live = site.client.instances().await.unwrap();
            live.iter().any(|one| one.hears_events).then_some(())
        })
        .await;
        AdoptingDaemon {
            language,
            url: format!("redis://127.0.0.1:{port}"),
            site,
            _daemon: daemon,
            _folder: folder,
            _server: server,
        }
    }

    fn kind(&self, part: &str) -> String {
        format!("{}:it:{part}", self.site.app)
    }

    fn start(&self, example: &str, part: &str, args: &[&str]) -> TalkingProcess {
        let mut command = (self.language)(example);
        command.args(args).env("REDIS_URL", &self.url);
        command.env("KIND", self.kind(part));
        TalkingProcess::spawn(command)
    }

    /// One call of `reminders`, its words separated by blanks, and its output.
    async fn says(&self, words: &str, expected: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        let process = self.start("reminders", "notice", &words);
        let said = tokio::task::spawn_blocking(|| process.ends()).await;
        assert_eq!(said.unwrap(), [expected], "{words:?}");
    }

    /// Waits until `last` is the last event of a job, and returns all its events.
    async fn reaches(&self, part: &str, id: &str, last: What) -> Vec<What> {
        let key = format!("{}:{id}", self.kind(part));
        eventually(&format!("{id} is {last:?}"), async || {
            let story = self.site.client.story(&*key).await.unwrap();
            let whats: Vec<What> = story.happenings.iter().map(|it| it.what).collect();
            (whats.last() == Some(&last)).then_some(whats)
        })
        .await
    }

    /// The next job that ran: its name and its payload.
    async fn ran(&self, part: &str) -> (String, Value) {
        let list = format!("{}-{part}", self.site.app);
        let document = eventually("a job runs", async || {
            let text: Option<String> = self.site.command(&["LPOP", &list]).await;
            text.map(|text| serde_json::from_str::<Value>(&text).unwrap())
        })
        .await;
        let key = document["key"].as_str().unwrap();
        let id = key.rsplit(':').next().unwrap().to_owned();
        assert_eq!(document["attempt"], 1);
        (id, document["payload"].clone())
    }

    async fn ran_no_more(&self, part: &str) {
        let list = format!("{}-{part}", self.site.app);
        let left: usize = self.site.command(&["LLEN", &list]).await;
        assert_eq!(left, 0);
    }

    async fn reminds(&self) {
        use What::{Cancelled, Claimed, Done, Postponed, Replaced, Scheduled};

        self.says("remind 41 {\"uid\":7} 900", "order 41: in 900 s")
            .await;
        self.reaches("notice", "41", Scheduled).await;

        self.says("remind 42 {\"uid\":7} 900", "order 42: in 900 s")
            .await;
        self.reaches("notice", "42", Scheduled).await;
        self.says("replace 42 {\"uid\":8} 1800", "order 42: in 1800 s")
            .await;
        self.reaches("notice", "42", Replaced).await;

        self.says("remind 43 {\"uid\":9} 900", "order 43: in 900 s")
            .await;
        self.reaches("notice", "43", Scheduled).await;
        self.says("cancel 43", "order 43: cancelled").await;
        self.reaches("notice", "43", Cancelled).await;
        for call in ["postpone 43 1", "replace 43 {} 1", "cancel 43"] {
            self.says(call, "order 43: too late").await;
        }

        self.says("remind 44 {} 900", "order 44: in 900 s").await;
        self.reaches("notice", "44", Scheduled).await;
        self.says("postpone 44 7200", "order 44: in 7200 s").await;
        self.reaches("notice", "44", Postponed).await;

        // The worker knows these jobs, so their time may be short.
        self.says("postpone 41 1", "order 41: in 1 s").await;
        assert_eq!(self.ran("notice").await, ("41".into(), json!({"uid": 7})));
        self.says("postpone 42 1", "order 42: in 1 s").await;
        assert_eq!(self.ran("notice").await, ("42".into(), json!({"uid": 8})));

        for (id, changes) in [("41", &[Scheduled][..]), ("42", &[Scheduled, Replaced])] {
            let story = self.reaches("notice", id, Done).await;
            // A second is short: the name of the last change depends on whether the worker heard it
            // before the key expired.
            assert!(story.starts_with(changes), "{id}: {story:?}");
            let claims = story.iter().filter(|it| **it == Claimed).count();
            assert_eq!(claims, 1, "{id}: {story:?}");
        }
        let left = self.site.view(&format!("{}:44", self.kind("notice"))).await;
        let ahead = left.due().duration_since(std::time::SystemTime::now());
        assert!(ahead.unwrap().as_secs() > 3600);
        let stats = self.site.client.stats(&self.kind("notice")).await.unwrap();
        let counts = (stats.done, stats.cancelled, stats.replaced, stats.pending);
        assert_eq!(counts, (2, 1, 1, 1), "{stats:?}");
        self.ran_no_more("notice").await;
    }

    async fn beats(&self) {
        let host = self.start("heartbeat", "silent", &["web-1", SILENCE]);
        let mut host = says(host, "web-1 beats").await;
        eventually("it has beaten twice more", async || {
            let story = self.reaches("silent", "web-1", What::Postponed).await;
            (story.len() >= 3).then_some(())
        })
        .await;
        self.ran_no_more("silent").await;
        host.kill();
        let silent = ("web-1".to_owned(), json!({"host": "web-1"}));
        assert_eq!(self.ran("silent").await, silent);
        self.reaches("silent", "web-1", What::Done).await;

        // The host comes back, and is retired.
        let host = self.start("heartbeat", "silent", &["web-1", SILENCE]);
        let host = says(host, "web-1 beats").await;
        self.reaches("silent", "web-1", What::Scheduled).await;
        let said = tokio::task::spawn_blocking(|| host.stop()).await;
        assert_eq!(said.unwrap(), ["web-1 is retired"]);
        self.reaches("silent", "web-1", What::Cancelled).await;
        let stats = self.site.client.stats(&self.kind("silent")).await.unwrap();
        assert_eq!((stats.done, stats.cancelled, stats.pending), (1, 1, 0));
        self.ran_no_more("silent").await;
    }
}

/// Waits until the process has printed this line.
async fn says(process: TalkingProcess, expected: &'static str) -> TalkingProcess {
    let said = tokio::task::spawn_blocking(move || {
        let line = process.line();
        (process, line)
    });
    let (process, line) = said.await.unwrap();
    assert_eq!(line, expected);
    process
}

#[test]
fn the_shell_script_prints_its_usage() {
    let script = source("reminders.sh");
    for args in [&[][..], &["cancel"], &["forget", "42"]] {
        let ran = std::process::Command::new("sh")
            .arg(&script)
            .args(args)
            .output();
        let ran = ran.unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains("reminders.sh postpone 42 1800"), "{said}");
    }
}
