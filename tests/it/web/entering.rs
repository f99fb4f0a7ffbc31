//! Tokens, their scopes and prefixes, and their end; `keyfall ui`; the page turned off.

use std::process::Command;

use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;

use super::{Person, encoded};
use crate::http::Daemon;
use crate::runs::eventually;
use crate::site::{HOUR, Site};

fn token(folder: &Folder, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command.arg("token").args(args);
    command.args(["--file", &folder.path("tokens.toml")]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

#[tokio::test]
async fn a_token_opens_what_it_allows_until_it_ends() {
    let site = Site::new("web-tokens").await;
    let folder = Folder::new("web-tokens");
    let prefix = format!("{}:", site.app);
    let reader = token(&folder, &["make", "--scope", "read", "--prefix", &prefix]);
    let writer = token(&folder, &["make", "--scope", "read,schedule,operate"]);
    let file = folder.path("tokens.toml");
    let daemon = Daemon::with(&site, &["--tokens-file", &file]);
    let key = site.key(1);
    site.client.schedule(&key, "x").after(HOUR).await.unwrap();
    let base = format!("{}/ui/", daemon.url);
    let page = format!("job?key={}", encoded(&key));

    let stranger = Person::at(&base);
    let shown = stranger.get(&page).await;
    assert_eq!(shown.status, 303);
    assert!(
        shown.location.starts_with("login?next=job"),
        "{}",
        shown.location
    );
    let refused = stranger.post("login", &[("token", "kf_0_0")]).await;
    assert_eq!((refused.status, &*refused.cookie), (200, ""));

    let reader = Person::at(&base).with_token(&reader).await;
    let shown = reader.look(&page).await;
    assert!(!shown.contains("name=\"do\""), "{shown}");
    // The overview begins with the prefix of the token.
    assert!(reader.look("").await.contains(&site.kind()));
    for form in [
        [("key", &*key), ("do", "cancel")],
        [("key", &*key), ("do", "fire")],
    ] {
        let refused = reader.post("job", &form).await;
        assert_eq!(refused.status, 403);
        assert!(
            refused.body.contains("scope `schedule`"),
            "{}",
            refused.body
        );
    }
    for page in ["workers", "doctor", "jobs?q=other:", "job?key=other:a:b:1"] {
        assert_eq!(reader.get(page).await.status, 403, "{page}");
    }

    let person = Person::at(&base).with_token(&writer).await;
    assert!(person.look(&page).await.contains("value=\"fire\""));
    let id = writer.split('_').nth(1).unwrap();
    token(&folder, &["revoke", id]);
    eventually("the token ends", async || {
        let shown = person.get(&page).await;
        (shown.status == 303 && shown.location.starts_with("login")).then_some(())
    })
    .await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_token_for_a_prefix_is_told_of_no_instance_by_what_was_gathered_for_another() {
    let site = Site::new("web-gathered").await;
    let folder = Folder::new("web-gathered");
    let prefix = format!("{}:", site.app);
    let all = token(&folder, &["make", "--scope", "read"]);
    let some = token(&folder, &["make", "--scope", "read", "--prefix", &prefix]);
    let daemon = Daemon::with(&site, &["--tokens-file", &folder.path("tokens.toml")]);
    let key = site.key(1);
    site.client.schedule(&key, "x").after(HOUR).await.unwrap();
    let base = format!("{}/ui/", daemon.url);
    let page = format!("?prefix={}", encoded(&prefix));
    let all = Person::at(&base).with_token(&all).await;
    let some = Person::at(&base).with_token(&some).await;
    let count = "<dt>Workers</dt>";
    eventually("the instance is counted", async || {
        all.look(&page).await.contains(count).then_some(())
    })
    .await;
    let shown = some.look(&page).await;
    assert!(
        shown.contains(&site.kind()) && !shown.contains(count),
        "{shown}"
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_page_can_be_turned_off() {
    let site = Site::new("web-off").await;
    let daemon = Daemon::with(&site, &["--http-ui=false"]);
    let (status, body) = daemon.call("GET", "/ui/").await;
    assert_eq!(
        (status, body["code"].as_str()),
        (404, Some("unknown_route"))
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn keyfall_ui_prints_a_link_that_only_reads_or_acts() {
    let site = Site::new("web-command").await;
    let key = site.key(1);
    site.client.schedule(&key, "x").after(HOUR).await.unwrap();
    let page = format!("job?key={}", encoded(&key));
    for (flags, may_act) in [(&[][..], false), (&["--actions"], true)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command.args(["ui", "--redis-url", &site.url]).args(flags);
        let process = TalkingProcess::spawn(command);
        let link = process.line();
        let (base, secret) = link.split_once("open?").unwrap();
        let mut person = Person::at(base);
        assert_eq!(person.get("").await.location, "login");
        let opened = person.get(&format!("open?{secret}")).await;
        assert_eq!((opened.status, &*opened.location), (303, "./"));
        person.cookie = Some(opened.cookie);
        let shown = person.look(&page).await;
        assert_eq!(shown.contains("value=\"fire\""), may_act, "{shown}");
        let fired = person.post("job", &[("key", &key), ("do", "fire")]).await;
        assert_eq!(fired.status, if may_act { 303 } else { 403 });
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    let command = command.args(["ui", "--api", "http://127.0.0.1:9276"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("open http://127.0.0.1:9276/ui in a browser"),
        "{error}"
    );
    site.assert_balanced().await;
}
