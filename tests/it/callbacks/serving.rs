//! Callbacks of `keyfall serve`: their settings in its file, and changes of the file.

use std::process::Command;

use keyfall::JobState;
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use rustix::process::Signal;

use super::receiver::{Receiver, says};
use super::signing::{SECRET, is_genuine};
use crate::runs::eventually;
use crate::site::Site;

fn serve(site: &Site, folder: &Folder) -> TalkingProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--redis-url", &site.url])
        .args(["--config", &folder.path("k.toml")])
        .env("HOOK_SECRET", SECRET)
        // Such a route would connect to any host, so it is not used.
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("http_proxy", "http://127.0.0.1:1")
        .env("ALL_PROXY", "http://127.0.0.1:1");
    let process = TalkingProcess::spawn(command);
    assert!(process.line().starts_with("listening on "));
    process
}

#[tokio::test]
async fn the_daemon_calls_as_its_file_configures() {
    let site = Site::new("cb-serve").await;
    let folder = Folder::new("callbacks");
    let mut first = Receiver::always("200 OK", "").await;
    let mut second = Receiver::start(|received| match received.path.as_str() {
        "/gone" => says("410 Gone", "", ""),
        _ => says("200 OK", "", ""),
    })
    .await;
    folder.write("headers", "authorization: Bearer geheim\n\nx-shop: 7\n");
    let route = format!(
        "[[route]]\npattern = \"{}\"\ntimeout = \"30s\"\n",
        site.pattern()
    );
    let one = format!(
        "{route}target = {{ http = {{ url = \"{}\", secret_env = \"HOOK_SECRET\", \
         headers_file = \"{}\" }} }}\n",
        first.url("/hook"),
        folder.path("headers")
    );
    folder.write("k.toml", &one);
    let daemon = serve(&site, &folder);
    site.client.schedule(site.key(1), &[1]).await.unwrap();
    let received = first.next().await;
    assert_eq!(
        (received.path.as_str(), &*received.body),
        ("/hook", &b"[1]"[..])
    );
    assert!(is_genuine(&received, SECRET));
    assert_eq!(received.header("authorization"), "Bearer geheim");
    assert_eq!(received.header("x-shop"), "7");

    // From now on jobs name their own URLs.
    let other = format!(
        "{route}[route.target.http]\njob_url = true\nhosts = [\"{}\"]\nnetworks = [\"127.0.0.1\"]\n",
        second.url("")
    );
    folder.write("k.toml", &other);
    daemon.signal(Signal::HUP);
    let key = site.key("own");
    eventually("the new route", async || {
        let call = site
            .client
            .schedule(&key, "")
            .header("url", second.url("/own"));
        call.await.unwrap();
        site.all_ended().await;
        second.rest().pop()
    })
    .await;
    let gone = site.key("gone");
    let call = site
        .client
        .schedule(&gone, "")
        .header("url", second.url("/gone"));
    call.await.unwrap();
    let view = site.reaches(&gone, JobState::Dead).await;
    assert!(view.last_error().unwrap().contains("410 Gone"));
    let elsewhere = site.key("elsewhere");
    let call = site
        .client
        .schedule(&elsewhere, "")
        .header("url", first.url("/hook"));
    call.await.unwrap();
    let view = site.reaches(&elsewhere, JobState::Dead).await;
    assert!(view.last_error().unwrap().contains("not among the hosts"));
    site.assert_balanced().await;
}
