//! Processes that can be killed.
//!
//! A [`TalkingProcess`] is an example or the command, whose lines a test reads. A [`LoggedProcess`]
//! writes its output to a file, for the analysis of failures.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::patience::PATIENCE;

/// How long a process with a log may take to end well.
const LAST_PATIENCE: Duration = Duration::from_secs(120);

/// A process that prints its progress, line by line.
pub struct TalkingProcess {
    pub child: Child,
    pub lines: Receiver<String>,
}

/// The command that runs a built example, with the Redis at `url`.
pub fn example(name: &str, url: &str) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    assert!(
        path.exists(),
        "{} is not built, and `cargo test --test it` builds no examples: run `cargo build \
         --examples`, or all tests",
        path.display()
    );
    let mut command = Command::new(path);
    command.env("KEYFALL_REDIS_URL", url);
    command
}

impl TalkingProcess {
    /// The example `worker`, which serves `app:work:sleep` on the Redis at `url`.
    pub fn worker(url: &str, app: &str) -> Self {
        let mut worker = example("worker", url);
        worker.arg(app);
        TalkingProcess::spawn(worker)
    }

    /// Any program.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A test that has seen enough is gone.
                let _ = tell.send(line);
            }
        });
        TalkingProcess { child, lines }
    }

    /// The next line that it prints.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a further line")
    }

    /// A number that the system keeps about the process, such as `VmHWM:`, in bytes; zero on
    /// systems that do not report it.
    pub fn memory(&self, name: &str) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.map_or(0, |kib| kib.parse::<u64>().unwrap() * 1024)
    }

    /// Waits until the process ends by itself with success, and returns the rest of its lines.
    pub fn ends(mut self) -> Vec<String> {
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {rest:#?}"),
            }
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest:#?}");
        rest
    }

    /// Ends it as an out-of-memory killer would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process gracefully, and returns the rest of its lines.
    pub fn stop(self) -> Vec<String> {
        self.signal(Signal::TERM);
        self.ends()
    }
}

impl Drop for TalkingProcess {
    fn drop(&mut self) {
        // It has ended if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that lives no longer than this value.
pub struct LoggedProcess {
    pub name: String,
    child: Child,
}

impl LoggedProcess {
    /// Starts the command; its output goes to a file of its name in `dir`.
    pub fn spawn(mut command: Command, name: &str, dir: &Path) -> Self {
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
        LoggedProcess { name, child }
    }

    pub fn signal(&self, signal: Signal) {
        // Fails only if it has ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Ends it as an out-of-memory killer would.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is our child");
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// If it does not, or not well.
    pub async fn stop(mut self) -> Result<(), String> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + LAST_PATIENCE;
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

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ready when standard input ends: when the harness says so, or is gone.
pub async fn told_to_stop() {
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of our own: the runtime would wait for one of its own.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    let _ = told.await;
}
