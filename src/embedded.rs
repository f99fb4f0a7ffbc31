//! A private Redis for demos and tests: a real server, started as a child process, and
//! gone with its parent.
//!
//! ```
//! use keyfall::embedded::Embedded;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Embedded::start().await?;
//! let client = redis::Client::open(server.url())?;
//! let mut connection = client.get_multiplexed_async_connection().await?;
//! let () = redis::cmd("PING").query_async(&mut connection).await?;
//! # Ok(())
//! # }
//! ```
//!
//! It listens on a unix socket in a directory that only this user may enter, so that any
//! number of them run side by side, and it is configured by the `redis.conf` that Keyfall
//! ships. It needs a `redis-server` or `valkey-server` on this machine, 6.2 or later.
//!
//! # What is left behind
//!
//! Unless you say where its data is to be [kept](Options::keep), nothing: neither a process nor a directory, on drop, on Ctrl-C, and when this process
//! is killed. A small shell process guards each server. It holds the end of a pipe that
//! the kernel closes when this process ends, in whatever way, and then it kills the server
//! and removes the directory. On drop that is done when `drop` returns; otherwise within
//! some milliseconds.

mod binary;
mod guard;
#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::sleep;

use self::guard::ServerGuard;
use crate::error::{Error, ErrorKind, Result};

const CONFIG: &str = include_str!("../redis.conf");
const CONFIG_FILE: &str = "redis.conf";
const SOCKET_FILE: &str = "redis.sock";
const LOG_FILE: &str = "redis.log";
const LOCK_FILE: &str = "lock";

/// The longest path of a unix socket: 103 bytes on macOS, 107 on Linux.
const MAX_SOCKET_BYTES: usize = 103;

/// Includes the time to load the data after a restart.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a server may take to end when it is asked to; then it is killed.
const END_LIMIT: Duration = Duration::from_secs(10);

const POLL: Duration = Duration::from_millis(2);

/// How often it is looked whether a server has ended that nobody told to.
const WATCH: Duration = Duration::from_millis(200);

/// Lines of the server's log that an error quotes.
const LOG_LINES: usize = 20;

/// Becomes the server when it reads a line, and ends without one. The line is sent when
/// the guard knows of the process: at no instant does a server run unguarded.
const LAUNCH: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// A Redis of one's own, which ends when this value is dropped.
///
/// See the [module](self) for what it is and how it is cleaned up.
#[derive(Debug)]
pub struct Embedded {
    binary: PathBuf,
    args: Vec<OsString>,
    dir: PathBuf,
    /// Absent after [`kill_server`](Self::kill_server).
    server: Option<Child>,
    guard: ServerGuard,
    /// Of a directory that is kept. Dropped last, when the server has ended.
    lock: Option<File>,
}

/// How to start an [`Embedded`] server. Made by [`Embedded::options`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    binary: Option<PathBuf>,
    args: Vec<OsString>,
    keep: Option<PathBuf>,
}

impl Options {
    /// The server's binary: a path, or a name to be looked up in `PATH`.
    ///
    /// Defaults to what the environment variable `KEYFALL_REDIS_BIN` says, then to
    /// `redis-server` and to `valkey-server`, whichever `PATH` has first in this order.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Arguments for the server, added to those of earlier calls: settings of
    /// `redis.conf` with two dashes, as in `args(["--maxmemory", "16mb"])`. They win over
    /// those that Keyfall sets.
    ///
    /// Defaults to none.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Where the server keeps its data, and its socket beside them: a directory of its own,
    /// which is made if it is not there and stays when the server is gone. The next server that
    /// is started there finds the data again. One at a time can use it.
    ///
    /// Defaults to a new directory, which goes with the server.
    pub fn keep(mut self, dir: impl Into<PathBuf>) -> Self {
        self.keep = Some(dir.into());
        self
    }

    /// Starts the server, and returns when it answers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] when there is no server to start, and the message says how
    /// to install one; or when the directory cannot be kept. [`ErrorKind::Unavailable`] when it
    /// does not start; the message ends with its log.
    pub async fn start(self) -> Result<Embedded> {
        let binary = binary::find(self.binary.as_deref())?;
        let (dir, lock) = match &self.keep {
            Some(dir) => {
                let (dir, lock) = kept_dir(dir)?;
                (dir, Some(lock))
            }
            None => (private_dir(&env::temp_dir()), None),
        };
        let guard = ServerGuard::of(self.keep.is_none().then_some(&dir))
            .map_err(|e| unavailable("the guard of the embedded Redis cannot start").because(e))?;
        // From here on, dropping it cleans up.
        let mut embedded = Embedded {
            binary,
            args: self.args,
            dir,
            server: None,
            guard,
            lock,
        };
        embedded.prepare().map_err(|e| {
            let dir = embedded.dir.display();
            unavailable(format!(
                "the embedded Redis cannot write to its directory {dir}; \
                 set TMPDIR to one that is writable: {e}"
            ))
            .because(e)
        })?;
        embedded.launch().await?;
        Ok(embedded)
    }
}

impl Embedded {
    /// Starts a server with the default [options](Self::options).
    ///
    /// # Errors
    /// Those of [`Options::start`].
    pub async fn start() -> Result<Self> {
        Self::options().start().await
    }

    /// For a server with a binary or arguments of your choice.
    pub fn options() -> Options {
        Options::default()
    }

    /// Where it listens: `redis+unix:///tmp/keyfall-1f3c…/redis.sock`. The same after a
    /// restart.
    pub fn url(&self) -> String {
        unix_url(&self.dir.join(SOCKET_FILE))
    }

    /// The server's process id; `None` after [`kill_server`](Self::kill_server).
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Waits until the server has ended by itself, because somebody told it to or killed it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the system does not tell.
    pub async fn wait(&mut self) -> Result<()> {
        while self.server.is_some() && self.ended()?.is_none() {
            sleep(WATCH).await;
        }
        Ok(())
    }

    /// All that the server has logged since the first start.
    pub fn log(&self) -> String {
        match fs::read(self.dir.join(LOG_FILE)) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(e) => format!("(the log cannot be read: {e})"),
        }
    }

    /// Asks the server to end, waits for it, and removes its data, unless they are kept.
    ///
    /// Dropping does the same, but kills the server, and blocks its thread meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the system refuses; it is dropped all the same.
    pub async fn stop(mut self) -> Result<()> {
        self.end(Signal::TERM).await
    }

    /// Kills the server with `SIGKILL`, as a crash would, and returns when it has ended.
    /// Its files stay for [`restart`](Self::restart).
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the system refuses.
    pub async fn kill_server(&mut self) -> Result<()> {
        self.end(Signal::KILL).await
    }

    /// Starts the server anew, on the same socket and with the data it has written; if it
    /// still runs, it is asked to end first. Returns when it answers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], as [`Options::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.end(Signal::TERM).await?;
        self.launch().await
    }

    fn prepare(&self) -> io::Result<()> {
        if self.lock.is_none() {
            DirBuilder::new().mode(0o700).create(&self.dir)?;
        }
        File::create(self.dir.join(LOG_FILE))?;
        fs::write(self.dir.join(CONFIG_FILE), CONFIG)
    }

    async fn launch(&mut self) -> Result<()> {
        self.spawn().map_err(|e| {
            unavailable(format!("the embedded Redis cannot be started: {e}")).because(e)
        })?;
        self.answers().await
    }

    fn spawn(&mut self) -> io::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(LOG_FILE))?;
        let server = Command::new("/bin/sh")
            .args(["-c", LAUNCH, "keyfall-launch"])
            .arg(&self.binary)
            .arg(CONFIG_FILE)
            .args(["--port", "0", "--unixsocket", SOCKET_FILE])
            .args(["--unixsocketperm", "700", "--daemonize", "no"])
            .args(&self.args)
            .current_dir(&self.dir)
            // A group of its own: Ctrl-C at the terminal must reach us first, so that we
            // can still finish our work with Redis.
            .process_group(0)
            .stdin(Stdio::piped())
            // Not `--logfile`: what is wrong with a setting goes to stderr.
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let server = self.server.insert(server);
        self.guard.take_charge(server)?;
        match server.stdin.take() {
            Some(mut go) => go.write_all(b"\n"),
            None => Ok(()),
        }
    }

    /// Waits until the server answers, has ended, or has taken too long.
    async fn answers(&mut self) -> Result<()> {
        let client = redis::Client::open(self.url())
            .map_err(|e| unavailable("the embedded Redis cannot be reached").because(e))?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let failure = match ping(&client).await {
                Ok(()) => return Ok(()),
                // It asks for the password that its arguments gave it: so it is there.
                Err(failure) if failure.code() == Some("NOAUTH") => return Ok(()),
                Err(failure) => failure,
            };
            if let Some(status) = self.ended()? {
                return Err(unavailable(format!(
                    "the embedded Redis ended while it started ({status}); {}",
                    self.last_words()
                )));
            }
            if Instant::now() > deadline {
                return Err(unavailable(format!(
                    "the embedded Redis did not answer within {START_LIMIT:?}; {}",
                    self.last_words()
                ))
                .because(failure));
            }
            sleep(POLL).await;
        }
    }

    /// Sends `signal` to the server, if it runs, and waits for its end.
    async fn end(&mut self, signal: Signal) -> Result<()> {
        self.signal(signal);
        let deadline = Instant::now() + END_LIMIT;
        while self.server.is_some() && self.ended()?.is_none() {
            if Instant::now() > deadline {
                self.signal(Signal::KILL);
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// How the server ended, if it has; told once.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(server) = &mut self.server else {
            return Ok(None);
        };
        let failed = |e: io::Error| {
            unavailable("the process of the embedded Redis cannot be watched").because(e)
        };
        let status = server.try_wait().map_err(failed)?;
        if status.is_some() {
            self.server = None;
            self.guard.let_go().map_err(failed)?;
        }
        Ok(status)
    }

    /// To the whole group: a server that rewrites its log has a child.
    fn signal(&self, signal: Signal) {
        if let Some(server) = &self.server {
            // Fails only if it has ended, and whoever sends a signal waits for the end.
            let _ = kill_process_group(Pid::from_child(server), signal);
        }
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        format!("its log ends with\n{}", last.join("\n"))
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(server) = &mut self.server {
            let _ = server.wait();
            let _ = self.guard.let_go();
        }
        // The guard is dropped next, and takes the directory with it.
    }
}

/// A new path in `temp`, or in `/tmp` where the socket's path would be too long there.
fn private_dir(temp: &Path) -> PathBuf {
    let name = format!("keyfall-{:016x}", rand::random::<u64>());
    match std::path::absolute(temp.join(&name)) {
        Ok(dir) if dir.join(SOCKET_FILE).as_os_str().len() <= MAX_SOCKET_BYTES => dir,
        _ => Path::new("/tmp").join(name),
    }
}

/// The whole path of a directory to be kept, which is made if it is not there, and the lock on
/// it: two servers would write to one log.
fn kept_dir(dir: &Path) -> Result<(PathBuf, File)> {
    let cannot = |what: String| Error::new(ErrorKind::InvalidSetting, what);
    let shown = dir.display();
    let open = || {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir)?;
        let dir = dir.canonicalize()?;
        let lock = File::create(dir.join(LOCK_FILE))?;
        Ok((dir, lock))
    };
    let (dir, lock) = open().map_err(|error: io::Error| {
        cannot(format!("{shown} cannot be used for data: {error}")).because(error)
    })?;
    if dir.join(SOCKET_FILE).as_os_str().len() > MAX_SOCKET_BYTES {
        return Err(cannot(format!(
            "the path of {shown} is too long for a unix socket in it, which may have \
             {MAX_SOCKET_BYTES} bytes: choose a shorter one"
        )));
    }
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        cannot(format!(
            "another embedded Redis runs in {shown}: use that one, or choose another directory"
        ))
    })?;
    Ok((dir, lock))
}

fn unix_url(socket: &Path) -> String {
    let mut url = String::from("redis+unix://");
    for &byte in socket.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

async fn ping(client: &redis::Client) -> redis::RedisResult<()> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    redis::cmd("PING").query_async(&mut connection).await
}

fn unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}
