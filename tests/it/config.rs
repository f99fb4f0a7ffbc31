//! `keyfall config` and `keyfall token`: their output, their refusals, and their files.

use std::fs;
use std::process::{Command, Output};

use keyfall_testing::files::Folder;

/// The command, in a folder of its own.
struct InFolder(Folder);

impl InFolder {
    fn new(name: &str) -> Self {
        InFolder(Folder::new(&format!("config-{name}")))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command.args(args).current_dir(self.0.path(""));
        for (name, _) in std::env::vars() {
            if name.starts_with("KEYFALL_") || name == "RUST_BACKTRACE" {
                command.env_remove(name);
            }
        }
        command
    }

    /// Its output, if it ends with success.
    fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Its error output, if it ends with code 1.
    fn refused(&self, args: &[&str]) -> String {
        refusal(&self.command(args).output().unwrap())
    }
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_command() {
    let folder = InFolder::new("closed");
    folder.run(&["token", "make", "--scope", "read", "--file", "tokens.toml"]);
    for args in [
        &["config"][..],
        &["token", "ls", "--file", "tokens.toml"],
        &["token", "ls", "--file", "tokens.toml", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = folder.command(args).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn the_printed_default_has_no_fault() {
    let folder = InFolder::new("default");
    let text = folder.run(&["config"]);
    assert!(text.contains("\n[redis]\n") && text.contains("\n# [[route]]\n"));
    folder.0.write("keyfall.toml", &text);
    let said = folder.run(&["config", "check", "keyfall.toml"]);
    assert!(said.starts_with("keyfall.toml: no fault\n"), "{said}");
    assert!(
        said.contains("redis.url = redis://127.0.0.1:6379 (keyfall.toml:"),
        "{said}"
    );
}

#[test]
fn a_check_reports_all_faults_and_exits_with_1() {
    let folder = InFolder::new("faults");
    let text = "[redis]\nurll = 1\n[[route]]\npattern = \"a:b\"\ntarget = \"pull\"\n";
    folder.0.write("k.toml", text);
    let mut command = folder.command(&["config", "check", "k.toml", "--worker-lease=1ms"]);
    command.env("KEYFALL_HTTP_LISTEN", "0.0.0.0:1");
    let said = refusal(&command.output().unwrap());
    let lines: Vec<&str> = said.lines().collect();
    for (line, expected) in lines.iter().zip([
        "error: k.toml: 4 faults",
        "k.toml:2:1: redis.urll: there is no such setting; did you mean `url`?",
        "k.toml:4:11: route.pattern: \"a:b\" is not a route pattern",
        "KEYFALL_HTTP_LISTEN: http.listen: 0.0.0.0:1 can be reached from elsewhere",
        "--worker-lease: worker.lease: it is out of range; write one from 1s to 1d",
    ]) {
        assert!(line.starts_with(expected), "{said}");
    }
    assert_eq!(lines.len(), 5, "{said}");
    let said = folder.refused(&["config", "check", "nowhere.toml"]);
    assert!(said.contains("nowhere.toml cannot be read"), "{said}");
}

#[test]
fn a_check_shows_the_effective_settings_without_the_password() {
    let folder = InFolder::new("shown");
    let text = "[[route]]\npattern = \"a:b:c:*\"\ntarget = \"pull\"\n";
    folder.0.write("k.toml", text);
    let mut command = folder.command(&["config", "check", "k.toml", "--redis-allow-eviction"]);
    command.env("KEYFALL_REDIS_URL", "redis://app1:geheim@h:1/0");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said,
        "k.toml: no fault\n\
         redis.url = redis://app1:***@h:1/0 (KEYFALL_REDIS_URL)\n\
         redis.allow_eviction = true (--redis-allow-eviction)\n\
         route a:b:c:*\n"
    );
    let help = folder.run(&["config", "check", "--help"]);
    for flag in [
        "--redis-url <URL>",
        "--http-tls-cert-file <PATH>",
        "--log-filter",
    ] {
        assert!(help.contains(flag), "{help}");
    }
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let folder = InFolder::new("tokens");
    let file = ["--file", "tokens.toml"];
    let with = |args: &[&'static str]| [args, &file].concat();
    let text = folder.run(&with(&[
        "token",
        "make",
        "--scope",
        "read,schedule",
        "--prefix",
        "app1:",
        "--note",
        "billing",
        "--expires",
        "90d",
    ]));
    let text = text.trim_end();
    let (id, secret) = text.strip_prefix("kf_").unwrap().split_once('_').unwrap();
    folder.run(&with(&["token", "make", "--scope", "operate"]));

    let list = folder.run(&with(&["token", "ls"]));
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(
        lines[1].starts_with(id) && lines[1].ends_with("billing"),
        "{list}"
    );
    assert!(
        lines[2].contains("operate        everything") && lines[2].contains("never"),
        "{list}"
    );
    let json = folder.run(&with(&["token", "ls", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["id"], id);
    assert_eq!(json[0]["scopes"], serde_json::json!(["read", "schedule"]));
    assert_eq!(json[1]["prefixes"], serde_json::json!([""]));
    let kept = folder.0.read("tokens.toml");
    for text in [list, json.to_string(), kept] {
        assert!(!text.contains(secret), "{text}");
    }

    // A public address suffices.
    folder.0.write("k.toml", "[http]\nlisten = \"0.0.0.0:1\"\n");
    let mut command = folder.command(&["config", "check", "k.toml"]);
    command.env("KEYFALL_TOKENS_FILE", "tokens.toml");
    assert!(command.output().unwrap().status.success());
    let said = folder.refused(&["config", "check", "k.toml", "--tokens-file", "nowhere"]);
    assert!(
        said.contains("tokens.file: the file of tokens, nowhere, cannot be read"),
        "{said}"
    );

    let mut revoke = folder.command(&["token", "revoke", id]);
    revoke.env("KEYFALL_TOKENS_FILE", "tokens.toml");
    assert!(revoke.output().unwrap().status.success());
    assert_eq!(folder.run(&with(&["token", "ls"])).lines().count(), 2);
    let again = ["token", "revoke", id, "--file", "tokens.toml"];
    let again = folder.command(&again).output().unwrap();
    assert_eq!(again.status.code(), Some(3), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("has no token"));
}

#[test]
fn a_token_that_allows_too_much_or_nothing_is_refused() {
    let folder = InFolder::new("refused");
    let make = ["token", "make", "--file", "tokens.toml", "--scope", "read"];
    let with = |args: &[&'static str]| [&make, args].concat();
    let said = folder.refused(&with(&["--prefix", "app1"]));
    assert!(said.contains("end it with a colon, \"app1:\""), "{said}");
    let usage = |args: &[&str], hint: &str| {
        let output = folder.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(hint), "{said}");
    };
    usage(&with(&["--expires", "2001-01-01T00:00:00Z"]), "already");
    usage(&with(&["--expires", "soon"]), "90d");
    usage(&make[..4], "--scope");
    let said = folder.refused(&["token", "make", "--scope", "read"]);
    assert!(said.contains("KEYFALL_TOKENS_FILE"), "{said}");
    let said = folder.refused(&["token", "revoke", "x", "--file", "tokens.toml"]);
    assert!(said.contains("there is no file tokens.toml"), "{said}");
    assert_eq!(fs::read_dir(folder.0.path("")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_port_in_use_is_refused_before_a_worker_starts() {
    let site = crate::site::Site::new("config-port").await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut serve = tokio::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
    serve.args(["serve", "--redis-url", &site.url, "--http-listen", &address]);
    let ended = serve.output().await.unwrap();
    let told = [ended.stdout, ended.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(!ended.status.success(), "{told}");
    assert!(told.contains(&format!("http.listen: {address}")), "{told}");
    assert!(!told.contains("the worker serves these routes"), "{told}");
}
