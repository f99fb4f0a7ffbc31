//! `keyfall dev` runs a Redis whose data survive its end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use keyfall_testing::files::Folder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::runs::eventually;
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Site};

/// A running `keyfall dev`.
struct Dev {
    child: Child,
    url: String,
    unix_url: String,
}

impl Dev {
    fn start(dir: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyfall"))
            .args(["dev", "--port", "0", "--json", "--dir"])
            .arg(dir)
            .env("KEYFALL_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let text = |field: &str| told[field].as_str().unwrap().to_owned();
        Dev {
            child,
            url: text("url"),
            unix_url: text("unix_url"),
        }
    }

    fn end(mut self, signal: Signal) -> bool {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // If the test went well, it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn data_survive_every_way_to_end_dev() {
    let folder = Folder::new("dev");
    let dir = folder.path("data");
    let dev = Dev::start(&dir);
    let site = Site::at(&dev.url, "dev").await;
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    drop(site);
    let second = Ran::of(keyfall(&["dev", "--dir", &dir])).await;
    second.fails(1, "another embedded Redis");
    assert!(dev.end(Signal::TERM));

    let dev = Dev::start(&dir);
    let site = Site::at(&dev.unix_url, "dev").await;
    site.client
        .schedule(site.key(2), &1)
        .after(HOUR)
        .await
        .unwrap();
    assert_eq!(site.stats().await.pending, 2);
    drop(site);
    assert!(dev.end(Signal::INT));

    let dev = Dev::start(&dir);
    let socket = Path::new(&dir).join("redis.sock");
    assert!(!dev.end(Signal::KILL));
    eventually("the server is gone, too", async || {
        std::os::unix::net::UnixStream::connect(&socket)
            .is_err()
            .then_some(())
    })
    .await;
    let dev = Dev::start(&dir);
    let site = Site::at(&dev.url, "dev").await;
    assert_eq!(site.stats().await.pending, 2);
    site.assert_balanced().await;
    assert!(dev.end(Signal::TERM));
}

#[tokio::test]
async fn an_unusable_port_or_directory_is_reported() {
    let folder = Folder::new("port");
    let dir = folder.path("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = Ran::of(keyfall(&["dev", "--dir", &dir, "--port", &port])).await;
    ran.fails(1, "cannot be used");
    let ran = Ran::of(keyfall(&["dev", "--port", "many"])).await;
    ran.fails(2, "invalid value");
    let mut command = keyfall(&["dev", "--dir", &dir]);
    command.env("KEYFALL_REDIS_BIN", "/no/such/redis-server");
    Ran::of(command).await.fails(1, "Install one");
}
