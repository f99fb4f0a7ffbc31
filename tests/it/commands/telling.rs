//! Commands that tell what happened: why, history, tail.

use keyfall::{JobState, Outcome, Router};
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use serde_json::{Value, json};

use crate::runs::eventually;
use crate::site::{HOUR, Site};

both_ways! {
    why_prints_the_story_and_history_its_size on "cmd_why";
    tail_follows_the_events on "cmd_tail";
    invisible_characters_reach_no_terminal on "cmd_unseen";
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
