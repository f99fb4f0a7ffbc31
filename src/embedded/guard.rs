//! The process that cleans up after us, however we end.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("guard.sh");

/// A small shell that waits for the end of a pipe that this process holds. Then it kills
/// the server that it was told of, and removes the directory if that is not to stay.
///
/// The kernel closes the pipe whenever this process ends, even by `SIGKILL`, where no
/// code of ours can run.
#[derive(Debug)]
pub(super) struct ServerGuard {
    shell: Child,
    /// What is removed; `None` if all is to stay.
    dir: Option<PathBuf>,
}

impl ServerGuard {
    /// Starts a guard that removes `dir` in the end, if it is given one. The directory need not
    /// exist yet, and had better not: made afterwards, it is guarded from its first instant.
    pub(super) fn of(dir: Option<&Path>) -> io::Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "keyfall-guard"])
            .arg(dir.unwrap_or(Path::new("")))
            // Out of reach of a Ctrl-C at the terminal, which goes to our group.
            .process_group(0)
            // Keeps no directory of the user's busy.
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let dir = dir.map(Path::to_owned);
        Ok(ServerGuard { shell, dir })
    }

    /// From now on the guard would kill the group of `server`.
    pub(super) fn take_charge(&mut self, server: &Child) -> io::Result<()> {
        self.tell(&format!("{}\n", server.id()))
    }

    /// The server has ended: its id may soon belong to somebody else.
    pub(super) fn let_go(&mut self) -> io::Result<()> {
        self.tell("\n")
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.shell)
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        match &mut self.shell.stdin {
            Some(pipe) => pipe.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for ServerGuard {
    /// Returns when the directory is gone.
    fn drop(&mut self) {
        // Waiting closes the pipe first.
        let cleaned = self.shell.wait().is_ok_and(|status| status.success());
        if let Some(dir) = &self.dir
            && !cleaned
        {
            // Somebody killed the guard.
            let _ = fs::remove_dir_all(dir);
        }
    }
}
