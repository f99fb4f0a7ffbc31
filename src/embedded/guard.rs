//! The guard: a process that cleans up after this one, however this one ends.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("guard.sh");

/// A small shell that waits for the end of a pipe from this process. Then it kills the server in
/// its charge, and removes the directory, unless the directory is to stay.
///
/// The kernel closes the pipe whenever this process ends, even by `SIGKILL`, where no
/// code of ours can run.
#[derive(Debug)]
pub(super) struct ServerGuard {
    shell: Child,
    /// The directory to remove; `None` if it is to stay.
    dir: Option<PathBuf>,
}

impl ServerGuard {
    /// Starts a guard, which removes `dir` in the end, if there is one. Make the directory only
    /// after this call: then it is guarded from its first instant.
    pub(super) fn of(dir: Option<&Path>) -> io::Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "keyfall-guard"])
            .arg(dir.unwrap_or(Path::new("")))
            // Out of reach of Ctrl-C at the terminal, which goes to the group of this process.
            .process_group(0)
            // Does not keep a directory of the user busy.
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let dir = dir.map(Path::to_owned);
        Ok(ServerGuard { shell, dir })
    }

    /// Puts `server` in the charge of the guard, which kills its process group in the end.
    pub(super) fn take_charge(&mut self, server: &Child) -> io::Result<()> {
        self.tell(&format!("{}\n", server.id()))
    }

    /// Tells the guard that the server has ended: its process id may soon belong to another
    /// process.
    pub(super) fn let_go(&mut self) -> io::Result<()> {
        self.tell("\n")
    }

    #[cfg(test)]
    pub(super) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.shell)
    }

    /// Sends a line to the guard.
    fn tell(&mut self, line: &str) -> io::Result<()> {
        match &mut self.shell.stdin {
            Some(pipe) => pipe.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for ServerGuard {
    /// Returns when the guard has killed the server and removed the directory.
    fn drop(&mut self) {
        // `wait` closes the pipe first.
        let cleaned = self.shell.wait().is_ok_and(|status| status.success());
        if let Some(dir) = &self.dir
            && !cleaned
        {
            // The guard was killed, so this process removes the directory.
            let _ = fs::remove_dir_all(dir);
        }
    }
}
