//! A sentinel: a real process, which ends with the process that started it, however that ends.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::server::redis_server;

pub struct SentinelProcess {
    child: Child,
    guard: Child,
}

/// Ends a process when its standard input ends, and deletes its files: a sentinel that all tests
/// share is never dropped.
const GUARD: &str = r#"
    read -r _
    kill -9 "$1"
    rm -f "$2" "$3"
    rmdir "${2%/*}" 2>/dev/null"#;

impl SentinelProcess {
    /// Starts a sentinel. It keeps its configuration in `file`; its output goes to another file
    /// beside it.
    pub fn start(file: &Path, config: &str) -> io::Result<Self> {
        SentinelProcess::start_as(redis_server(), file, config)
    }

    /// Starts a sentinel by this program, which runs `redis-server` with its own arguments.
    pub fn start_as(program: impl AsRef<OsStr>, file: &Path, config: &str) -> io::Result<Self> {
        std::fs::write(file, config)?;
        let log = file.with_extension("log");
        let child = Command::new(program)
            .arg(file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .spawn()?;
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard", &child.id().to_string()]);
        guard.args([file, &log]);
        let guard = guard.stdin(Stdio::piped()).spawn()?;
        Ok(SentinelProcess { child, guard })
    }

    /// Sends the sentinel a signal, such as one that stops it.
    pub fn signal(&self, signal: Signal) {
        // Fails only if it has ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for SentinelProcess {
    fn drop(&mut self) {
        for process in [&mut self.guard, &mut self.child] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
