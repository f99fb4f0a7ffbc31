//! The processes of a trial: this program, started again in another role, and daemons.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// How long a process may take to end well.
const PATIENCE: Duration = Duration::from_secs(120);

/// This program in another role.
fn in_role(role: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.arg(role);
    command
}

/// The command `keyfall`: the code that was built with the suite, whatever else is installed.
pub(crate) fn keyfall() -> Command {
    in_role("keyfall")
}

/// A process that lives no longer than this value.
pub(crate) struct Process {
    pub(crate) name: String,
    child: Child,
}

impl Process {
    /// What it says goes to a file of its name in `dir`.
    pub(crate) fn start(
        role: &str,
        name: &str,
        terms: &impl Serialize,
        dir: &Path,
        environment: &[(String, String)],
    ) -> Self {
        let mut command = in_role(role);
        command
            .arg(serde_json::to_string(terms).expect("terms are plain data"))
            .envs(environment.iter().map(|(name, value)| (name, value)));
        Process::spawn(command, name, dir)
    }

    /// The same, of any program.
    pub(crate) fn spawn(mut command: Command, name: &str, dir: &Path) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join(format!("{name}.log")))
            .expect("the directory is writable");
        let child = command
            // Handlers panic by the hundred, and each would be traced back.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("this program starts");
        let name = name.to_owned();
        Process { name, child }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // Fails only if it has ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Ends it as an out-of-memory killer would.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is our child");
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// If it does not, or not well.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{} ended with {status}", self.name)),
                None if Instant::now() > deadline => {
                    return Err(format!("{} does not end", self.name));
                }
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ready when standard input ends: when the harness says so, or is gone.
pub(crate) async fn told_to_stop() {
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of our own: the runtime would wait for one of its own.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    let _ = told.await;
}
