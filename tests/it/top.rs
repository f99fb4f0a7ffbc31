//! `keyfall top` in a terminal: its display, and the restored terminal when it ends.

use std::process::Command;

use keyfall::{Handler, Job, Outcome, Router};
use keyfall_testing::files::Folder;
use rustix::process::{Pid, Signal, kill_process};

use crate::runs::eventually;
use crate::site::{HOUR, Site, fails_slowly};

/// A private terminal multiplexer, with a shell in a window.
struct Window {
    folder: Folder,
}

impl Window {
    fn open(name: &str) -> Self {
        let window = Window {
            folder: Folder::new(name),
        };
        let size = ["-x", "120", "-y", "40"];
        window.tmux(
            &[
                &["new-session", "-d"],
                &size[..],
                &["env", "PS1=% ", "TERM=xterm-256color", "sh"],
            ]
            .concat(),
        );
        window
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-f", "/dev/null", "-S", &self.folder.path("tmux")]);
        let output = command.args(args).env_remove("TMUX").output();
        let output = output.expect("tmux is there: `make clients` installs it");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the window shows all these texts.
    async fn shows(&self, texts: &[&str]) -> String {
        eventually(&format!("{texts:?} on\n{}", self.screen()), async || {
            let screen = self.screen();
            texts
                .iter()
                .all(|text| screen.contains(text))
                .then_some(screen)
        })
        .await
    }

    /// Asserts that the shell is back: with its old text, and with a terminal that edits and echoes
    /// lines.
    async fn is_restored(&self, end: &str) {
        self.shows(&["before all", end]).await;
        self.types("stty -a | tr ';' '\\n'");
        let screen = self.shows(&["icanon", "echo"]).await;
        for raw in ["-icanon", "-echo ", "-isig"] {
            assert!(!screen.contains(raw), "{screen}");
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_shows_the_jobs_and_restores_the_terminal() {
    shows_the_jobs(Site::new("top-all").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_shows_the_same_through_a_daemon() {
    let site = Site::new("top-api").await.through_a_daemon();
    shows_the_jobs(site).await;
}

async fn shows_the_jobs(site: Site) {
    let run = async |job: Job| match job.key().id() {
        "bad" => Outcome::retry("the bank is closed"),
        "worse" => Outcome::bury("no such account"),
        _ => Outcome::Done,
    };
    let worker = site.serve(Router::new().route(&site.pattern(), run.retry(fails_slowly())));
    for id in ["bad", "worse", "good"] {
        site.client.schedule(site.key(id), &1).await.unwrap();
    }
    let window = Window::open(&site.app);
    window.types("echo before all");
    window.shows(&["before all"]).await;
    let place = match &site.daemon {
        Some(daemon) => format!("KEYFALL_API='{}'", daemon.url),
        None => format!("KEYFALL_REDIS_URL='{}'", site.url),
    };
    let start = format!(
        "{place} {} top {}: --interval 100ms; echo ended $?",
        env!("CARGO_BIN_EXE_keyfall"),
        site.app
    );
    window.types(&start);
    let process = format!(":{}", std::process::id());
    let screen = window
        .shows(&[
            "keyfall top",
            &site.kind(),
            "the bank is closed",
            "no such account",
            "lag of the last starts: p50",
            "next due in ",
            "dead 1",
            &process,
            "q quit",
        ])
        .await;
    assert!(!screen.contains("before all"), "{screen}");
    // The screen shows another job, by its count and by its lag.
    site.client.schedule(site.key("worse"), &1).await.unwrap();
    window.shows(&["dead 2"]).await;
    window.presses("p");
    window.shows(&["PAUSED"]).await;
    window.presses("p");
    window.presses("q");
    window.is_restored("ended 0").await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_shows_the_rest_where_a_daemon_has_no_tail_left() {
    let site = Site::new("top-full").await.through_a_daemon();
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    let url = &site.daemon.as_ref().unwrap().url;
    // The client needs a provider, though it meets no TLS. This fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut tails = Vec::new();
    for _ in 0..16 {
        let tail = reqwest::get(format!("{url}/v1/tail")).await.unwrap();
        assert_eq!(tail.status(), 200);
        tails.push(tail);
    }
    let window = Window::open(&site.app);
    window.types(&format!(
        "KEYFALL_API='{url}' {} top {}: --interval 100ms; echo ended $?",
        env!("CARGO_BIN_EXE_keyfall"),
        site.app
    ));
    let stands_still = "these and the lag are not updated: 16 tails of this token";
    window
        .shows(&[&site.kind(), "next due in ", stands_still])
        .await;
    window.presses("q");
    window.shows(&["ended 0"]).await;
    drop(tails);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_signal_ends_top_and_the_terminal_is_restored() {
    let site = Site::new("top-term").await;
    let window = Window::open("top-term");
    window.types("echo before all");
    let pid = window.folder.path("pid");
    window.types(&format!(
        "KEYFALL_REDIS_URL='{}' sh -c 'echo $$ > {pid}; exec {} top {}:'; echo ended $?",
        site.url,
        env!("CARGO_BIN_EXE_keyfall"),
        site.app
    ));
    window.shows(&["q quit", "kinds 0", "instances"]).await;
    let pid = std::fs::read_to_string(pid).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    window.is_restored("ended 0").await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn top_without_a_terminal_names_the_alternative() {
    let site = Site::new("top-none").await;
    site.run("top").await.fails(2, "`keyfall kinds --json`");
    let run = site.run("top --interval 1ms").await;
    run.fails(2, "from 100ms to 1h");
}
