//! The example `worker` as a process, which can be killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::runs::PATIENCE;
use crate::site::Site;

/// The example `worker` as a process of its own.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) lines: mpsc::Receiver<String>,
}

impl Process {
    /// Serves `app:work:sleep` of this site.
    pub(crate) fn start(site: &Site) -> Self {
        let mut path = std::env::current_exe().unwrap();
        path.pop();
        path.pop();
        path.push("examples/worker");
        assert!(
            path.exists(),
            "{} is not built: run `cargo build --example worker`, or all tests",
            path.display()
        );
        let mut child = Command::new(path)
            .arg(&site.app)
            .env("KEYFALL_REDIS_URL", &site.url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
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

    /// Ends it as an out-of-memory killer would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it gracefully, and returns what it had still to say.
    pub(crate) fn stop(mut self) -> Vec<String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.lines.iter().collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
