//! systemd, as the daemon sees it: a socket that is told the state, and a watchdog that waits for signs of
//! life.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use keyfall_testing::files::Folder;
use rustix::process::Signal;

use super::{Daemon, own_redis};
use crate::runs::PATIENCE;
use crate::site::Site;

/// The daemon owes a sign of life in half of this time.
const WATCHDOG: Duration = Duration::from_millis(200);

struct ServiceManager {
    socket: UnixDatagram,
    folder: Folder,
}

impl ServiceManager {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let socket = UnixDatagram::bind(folder.path("notify")).unwrap();
        ServiceManager { socket, folder }
    }

    fn start(&self, site: &Site) -> Daemon {
        let mut command: Command = Daemon::command(site, &[]);
        command
            .env("NOTIFY_SOCKET", self.folder.path("notify"))
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        Daemon::spawned(command)
    }

    /// The next message; `None` if none comes within this time.
    fn within(&self, time: Duration) -> Option<String> {
        let mut buffer = [0; 4096];
        self.socket.set_read_timeout(Some(time)).unwrap();
        match self.socket.recv(&mut buffer) {
            Ok(length) => Some(String::from_utf8(buffer[..length].to_vec()).unwrap()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next message that is no sign of life.
    fn told(&self) -> String {
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience {
            match self.within(PATIENCE) {
                Some(sign) if sign == ALIVE => {}
                Some(message) => return message,
                None => break,
            }
        }
        panic!("nothing was told")
    }

    fn assert_alive(&self) {
        for _ in 0..3 {
            assert_eq!(self.within(PATIENCE).as_deref(), Some(ALIVE));
        }
    }
}

const ALIVE: &str = "WATCHDOG=1\n";
const READY: &str = "READY=1\nSTATUS=ready\n";

#[tokio::test]
async fn start_reload_and_stop_are_told() {
    let site = Site::new("supervised").await;
    let manager = ServiceManager::new("supervised");
    let daemon = manager.start(&site);
    assert_eq!(manager.told(), READY);
    assert_eq!(daemon.call("GET", "/readyz").await.0, 204);

    daemon.process.signal(Signal::HUP);
    let told = manager.told();
    let mut lines = told.lines();
    assert_eq!(lines.next(), Some("RELOADING=1"));
    let time = lines
        .next()
        .and_then(|it| it.strip_prefix("MONOTONIC_USEC="));
    assert!(time.unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(manager.told(), "READY=1\n");
    manager.assert_alive();

    daemon.process.signal(Signal::TERM);
    assert_eq!(manager.told(), "STOPPING=1\nSTATUS=stopping\n");
    daemon.process.ends();
}

#[tokio::test]
async fn a_daemon_that_hangs_gives_no_sign_of_life() {
    let site = Site::new("supervised-hung").await;
    let manager = ServiceManager::new("supervised-hung");
    let daemon = manager.start(&site);
    assert_eq!(manager.told(), READY);
    manager.assert_alive();

    daemon.process.signal(Signal::STOP);
    // What it sent before it hung.
    while manager.within(WATCHDOG).is_some() {}
    assert_eq!(manager.within(WATCHDOG * 10), None);

    daemon.process.signal(Signal::CONT);
    manager.assert_alive();
    daemon.process.stop();
}

/// A restart would not bring Redis back, and would end what consumers have open.
#[tokio::test]
async fn a_daemon_without_its_redis_lives_and_is_not_ready() {
    let (mut redis, site) = own_redis("supervised-away").await;
    let manager = ServiceManager::new("supervised-away");
    let daemon = manager.start(&site);
    assert_eq!(manager.told(), READY);

    redis.kill_server().await.unwrap();
    let told = manager.told();
    assert!(told.starts_with("STATUS=not ready: Redis"), "{told}");
    manager.assert_alive();

    redis.restart().await.unwrap();
    assert_eq!(manager.told(), "STATUS=ready\n");
    daemon.process.stop();
}
