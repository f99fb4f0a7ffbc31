//! A private Redis for demos and tests: a real server, started as a child process, which ends with
//! its parent.
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
//! It listens on a unix socket in a directory that only this user may enter, so that any number of
//! servers can run side by side. Its configuration is the `redis.conf` that Keyfall ships. It needs
//! a `redis-server` or `valkey-server` on this machine, version 6.2 or later.
//!
//! # Clean-up
//!
//! Neither a process nor a directory is left behind: not on drop, not on Ctrl-C, and not when this
//! process is killed. Only a directory that you choose with [`Options::keep`] stays.
//!
//! A small shell process guards each server. It reads from a pipe that the kernel closes when this
//! process ends, in whatever way; then it kills the server and removes the directory. On drop, both
//! are done when `drop` returns; otherwise within some milliseconds.

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

/// The configuration of the server; [`Options::args`] override it.
const CONFIG: &str = include_str!("../redis.conf");
/// The names of files in the directory of the server.
const CONFIG_FILE: &str = "redis.conf";
const SOCKET_FILE: &str = "redis.sock";
const LOG_FILE: &str = "redis.log";
/// Locked by the process that uses a kept directory.
const LOCK_FILE: &str = "lock";

/// The longest path of a unix socket, in bytes: 103 on macOS. Linux allows 107.
const MAX_SOCKET_BYTES: usize = 103;

/// How long a server may take to answer after its start. Includes the time to load its data.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a server may take to end on request, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The pause between two tries while a server starts or ends.
const POLL: Duration = Duration::from_millis(2);

/// The pause between two checks whether a server has ended by itself.
const WATCH: Duration = Duration::from_millis(200);

/// How many lines of the server's log an error quotes.
const LOG_LINES: usize = 20;

/// The shell that becomes the server when it reads a line, and ends if its input is closed. The
/// line is sent when the guard knows the process: so no server ever runs unguarded.
const LAUNCH: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// A private Redis server, which ends when this value is dropped.
///
/// The [module](self) says how it is configured and cleaned up.
///
/// ```no_run
/// use keyfall::embedded::Embedded;
///
/// # async fn example() -> keyfall::Result<()> {
/// let mut server = Embedded::start().await?;
/// let client = keyfall::Client::connect(&server.url()).await?;
/// // A crash, as a test may need it: the data stay.
/// server.kill_server().await?;
/// server.restart().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Embedded {
    /// The path of the server's binary.
    binary: PathBuf,
    /// Further arguments for the server.
    args: Vec<OsString>,
    /// The directory with its socket, its log and its data.
    dir: PathBuf,
    /// The process of the server. `None` after its end, as after
    /// [`kill_server`](Self::kill_server).
    server: Option<Child>,
    guard: ServerGuard,
    /// The lock on a directory that is kept. It is dropped last, when the server has ended.
    lock: Option<DirLock>,
}

/// Options of an [`Embedded`] server, made by [`Embedded::options`].
///
/// ```no_run
/// use keyfall::embedded::Embedded;
///
/// # async fn example() -> keyfall::Result<()> {
/// let server = Embedded::options()
///     .binary("valkey-server")
///     .args(["--maxmemory", "16mb"])
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Options {
    binary: Option<PathBuf>,
    args: Vec<OsString>,
    keep: Option<PathBuf>,
}

impl Options {
    /// The binary of the server: a path, or a name in `PATH`.
    ///
    /// Defaults to the value of the environment variable `KEYFALL_REDIS_BIN`, or else to
    /// `redis-server` in `PATH`, or else to `valkey-server` in `PATH`.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Adds arguments for the server: settings of `redis.conf` with two dashes, as in
    /// `args(["--maxmemory", "16mb"])`. They override the settings of Keyfall.
    ///
    /// Defaults to no arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The directory for the data and the socket of the server. It is made if it does not exist,
    /// and stays after the end of the server: the next server with this directory finds the data
    /// again. One server at a time can use it, and its path must leave room for a socket: 103 bytes
    /// in all.
    ///
    /// Defaults to a new directory, which is removed with the server.
    pub fn keep(mut self, dir: impl Into<PathBuf>) -> Self {
        self.keep = Some(dir.into());
        self
    }

    /// Starts the server, and returns when it answers; it may take up to 30 s to load its data.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidSetting`] if no binary is found; the message says how to install one.
    ///   Also if the directory to keep cannot be used, or another server uses it.
    /// - [`ErrorKind::Unavailable`] if the server does not start; the message ends with its log.
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
        // From here on, dropping the value cleans up.
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
                 set TMPDIR to a writable directory: {e}"
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
    /// As [`Options::start`].
    pub async fn start() -> Result<Self> {
        Self::options().start().await
    }

    /// Options, to choose the binary, the arguments or the directory.
    pub fn options() -> Options {
        Options::default()
    }

    /// The URL of the server, such as `redis+unix:///tmp/keyfall-1f3c…/redis.sock`. It stays the
    /// same after a restart.
    pub fn url(&self) -> String {
        unix_url(&self.dir.join(SOCKET_FILE))
    }

    /// The process id of the server; `None` after [`kill_server`](Self::kill_server).
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Waits until the server ends by itself, because another process shuts it down or kills it.
    /// Returns at once if it has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the system cannot tell the state of the process.
    pub async fn wait(&mut self) -> Result<()> {
        while self.server.is_some() && self.ended()?.is_none() {
            sleep(WATCH).await;
        }
        Ok(())
    }

    /// The log of the server since its first start, or a line that says why it cannot be read.
    pub fn log(&self) -> String {
        match fs::read(self.dir.join(LOG_FILE)) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(e) => format!("(the log cannot be read: {e})"),
        }
    }

    /// Asks the server to end, waits for its end, and removes its data, unless they are kept. A
    /// server that does not end within 10 s is killed.
    ///
    /// Dropping the value kills the server at once instead, and blocks the thread meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the system cannot tell the state of the process; the value is
    /// dropped all the same.
    pub async fn stop(mut self) -> Result<()> {
        self.end(Signal::TERM).await
    }

    /// Kills the server with `SIGKILL`, like a crash, and returns when it has ended. Its files stay
    /// for [`restart`](Self::restart).
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the system cannot tell the state of the process.
    pub async fn kill_server(&mut self) -> Result<()> {
        self.end(Signal::KILL).await
    }

    /// Starts the server again, on the same socket and with the data that it has written. A server
    /// that still runs is asked to end first. Returns when the server answers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server does not start; the message ends with its log.
    pub async fn restart(&mut self) -> Result<()> {
        self.end(Signal::TERM).await?;
        self.launch().await
    }

    /// Makes the directory, and writes the configuration into it.
    fn prepare(&self) -> io::Result<()> {
        if self.lock.is_none() {
            DirBuilder::new().mode(0o700).create(&self.dir)?;
        }
        File::create(self.dir.join(LOG_FILE))?;
        fs::write(self.dir.join(CONFIG_FILE), CONFIG)
    }

    /// Starts the process, and waits until it answers.
    async fn launch(&mut self) -> Result<()> {
        self.spawn().map_err(|e| {
            unavailable(format!("the embedded Redis cannot be started: {e}")).because(e)
        })?;
        self.answers().await
    }

    /// Starts the process under the guard, with the log as its output.
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
            // A process group of its own: Ctrl-C at the terminal must not end Redis while this
            // process finishes its work.
            .process_group(0)
            .stdin(Stdio::piped())
            // Not `--logfile`: errors in settings go to stderr.
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

    /// Waits until the server answers.
    ///
    /// # Errors
    /// If it ends instead, or takes longer than [`START_LIMIT`].
    async fn answers(&mut self) -> Result<()> {
        let client = redis::Client::open(self.url())
            .map_err(|e| unavailable("the embedded Redis cannot be reached").because(e))?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let failure = match ping(&client).await {
                Ok(()) => return Ok(()),
                // It asks for the password that its arguments set: so it answers.
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

    /// Sends `signal` to the server, if it runs, and waits for its end. Kills it after
    /// [`END_LIMIT`].
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

    /// The exit status of a server that has ended, once; `None` before and after. Tells the guard
    /// of the end.
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

    /// Sends `signal` to the process group of the server: a server that rewrites its log has a
    /// child.
    fn signal(&self, signal: Signal) {
        if let Some(server) = &self.server {
            // Fails only if the server has ended, and all callers wait for its end anyway.
            let _ = kill_process_group(Pid::from_child(server), signal);
        }
    }

    /// The last lines of the log, for an error text.
    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        format!("its log ends with\n{}", last.join("\n"))
    }
}

/// The lock on a directory, which ends with this value.
#[derive(Debug)]
struct DirLock(File);

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that another thread starts at this moment has a
        // copy of it until it becomes its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(server) = &mut self.server {
            let _ = server.wait();
            let _ = self.guard.let_go();
        }
        // The guard is dropped next, and removes the directory.
    }
}

/// A new random path in `temp`, or in `/tmp` if the path of a socket in `temp` would be too long.
fn private_dir(temp: &Path) -> PathBuf {
    let name = format!("keyfall-{:016x}", rand::random::<u64>());
    match std::path::absolute(temp.join(&name)) {
        Ok(dir) if dir.join(SOCKET_FILE).as_os_str().len() <= MAX_SOCKET_BYTES => dir,
        _ => Path::new("/tmp").join(name),
    }
}

/// Makes a directory to keep, if it does not exist, and locks it: two servers in it would write to
/// one log. Returns its absolute path, and the lock.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if it cannot be made or written to, if its path is too long for a
/// socket, or if another server uses it.
fn kept_dir(dir: &Path) -> Result<(PathBuf, DirLock)> {
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
             {MAX_SOCKET_BYTES} bytes: choose a shorter path"
        )));
    }
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        cannot(format!(
            "another embedded Redis uses {shown}: connect to that Redis, or choose another \
             directory"
        ))
    })?;
    Ok((dir, DirLock(lock)))
}

/// The URL of a unix socket, with `%XX` for all but letters, digits and `/-_.~`.
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
