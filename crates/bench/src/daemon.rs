//! A daemon for a phase: `keyfall serve` in a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::spawn_blocking;

use super::ground::Ground;

/// A running daemon. Dropping it kills the process.
pub(super) struct Daemon {
    child: Child,
    /// The URL that it announced.
    url: String,
    /// Kept open, since the daemon may print more.
    _out: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts a daemon on the measured Redis, with these flags, and waits until it prints a line
    /// that begins with `announced`; the rest of that line is its URL.
    pub(super) async fn start(
        ground: &Ground,
        flags: &[&str],
        announced: &'static str,
    ) -> anyhow::Result<Self> {
        let (url, namespace) = ground.place();
        let mut command = Command::new(std::env::current_exe()?);
        // Settings for other daemons on this machine are not for this one.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KEYFALL_") {
                command.env_remove(name);
            }
        }
        // Not as a flag: the URL may hold a password, and flags are visible to other users.
        command.env("KEYFALL_REDIS_URL", url);
        command
            .args(["serve", "--http-listen", "127.0.0.1:0"])
            .args(["--redis-namespace", namespace, "--log-filter", "error"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("the daemon cannot be started")?;
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let read = spawn_blocking(move || {
            let mut line = String::new();
            loop {
                line.clear();
                let is_over = out.read_line(&mut line)? == 0;
                if let Some(url) = line.trim_end().strip_prefix(announced) {
                    return anyhow::Ok((url.to_owned(), out));
                }
                ensure!(!is_over, "the daemon did not come up");
            }
        });
        let (url, out) = match read.await? {
            Ok(read) => read,
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        Ok(Daemon {
            child,
            url,
            _out: out,
        })
    }

    /// The URL of the announced interface.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Stops the daemon gracefully.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let ended = spawn_blocking(move || self.child.wait()).await??;
        ensure!(ended.success(), "the daemon ended with {ended}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process has ended already, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
