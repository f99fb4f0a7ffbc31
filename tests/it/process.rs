//! The examples as processes, which can be killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::process::{Pid, Signal, kill_process};

use crate::runs::PATIENCE;
use crate::site::Site;

/// An example as a process of its own.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
}

/// What runs a built example, with the Redis at `url`.
pub(crate) fn example(name: &str, url: &str) -> Command {
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

impl Process {
    /// The example `worker`, which serves `app:work:sleep` of this site.
    pub(crate) fn start(site: &Site) -> Self {
        let mut worker = example("worker", &site.url);
        worker.arg(&site.app);
        Process::spawn(worker)
    }

    /// Any of them.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A test that has seen enough is gone.
                let _ = tell.send(line);
            }
        });
        Process { child, lines }
    }

    /// What it prints next.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a further line")
    }

    /// A number that the system keeps of it, such as `VmHWM:`, in bytes; zero where it does not
    /// tell, and nothing can be said.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.map_or(0, |kib| kib.parse::<u64>().unwrap() * 1024)
    }

    /// Waits until it ends by itself, well, and returns what it had still to say.
    pub(crate) fn ends(mut self) -> Vec<String> {
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
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it gracefully, and returns what it had still to say.
    pub(crate) fn stop(self) -> Vec<String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        self.ends()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
