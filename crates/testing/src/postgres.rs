//! A private PostgreSQL: its files and its socket are in a temporary folder, gone afterwards.
//!
//! The programs refuse to run as root; then they run as the user that Debian's package has made.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::patience::PATIENCE;

/// A PostgreSQL that ends with this value, and also if the test is killed.
pub struct Postgres {
    folder: PathBuf,
    /// Waits for the end of this process, and then ends the server.
    guard: Option<Child>,
    user: Option<(u32, u32)>,
}

/// The folder with its programs.
fn programs() -> PathBuf {
    if let Ok(path) = std::env::var("KEYFALL_POSTGRES_BIN") {
        return path.into();
    }
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut versions: Vec<PathBuf> = installed.flatten().map(|it| it.path()).collect();
    versions.sort();
    let newest = versions.pop();
    newest
        .expect("PostgreSQL is installed: run `make postgres`, or set KEYFALL_POSTGRES_BIN")
        .join("bin")
}

/// Group and user of `postgres`, if this is root.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |flag| {
        let printed = Command::new("id").args([flag, "postgres"]).output();
        let text = String::from_utf8(printed.expect("id runs").stdout).expect("a number");
        text.trim().parse().expect("the user postgres exists")
    };
    Some((id("-u"), id("-g")))
}

impl Postgres {
    /// Makes a database cluster and starts its server.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("keyfall-pg-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let user = other_user();
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid)).unwrap();
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let mut postgres = Postgres {
            folder,
            guard: None,
            user,
        };
        let mut make = postgres.program("initdb");
        make.args([
            "-N",
            "-A",
            "trust",
            "-U",
            "keyfall",
            "-E",
            "UTF8",
            "--locale=C",
        ]);
        let made = make.arg("-D").arg(postgres.data()).output().unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        postgres.begin();
        postgres
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(programs().join(name));
        self.as_user(&mut command);
        command
    }

    fn as_user(&self, command: &mut Command) {
        command.current_dir(&self.folder);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The folder of its socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts the server, which was killed. The disk is not waited for: no test loses power.
    ///
    /// # Panics
    /// If it does not start.
    pub fn begin(&mut self) {
        let end = Instant::now() + PATIENCE;
        self.guard = Some(self.spawn());
        while !self.answers() {
            let log = self.log();
            assert!(Instant::now() < end, "PostgreSQL starts: {log}");
            // The children of a server that was killed end a moment after it.
            if log.contains("pre-existing shared memory") {
                self.end();
                self.guard = Some(self.spawn());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// The server, in a shell that reads until this process is gone.
    fn spawn(&self) -> Child {
        let script = r#"
            "$1" -D "$2" -k "$3" -c listen_addresses= -c fsync=off -c max_connections=300 \
                -c log_min_messages=fatal >"$3/log" 2>&1 &
            server=$!
            read -r _
            kill -QUIT $server 2>/dev/null
            wait $server 2>/dev/null"#;
        let mut guard = Command::new("sh");
        guard.args(["-c", script, "guard"]);
        guard.arg(programs().join("postgres")).arg(self.data());
        guard.arg(&self.folder).stdin(Stdio::piped());
        self.as_user(&mut guard);
        guard.spawn().unwrap()
    }

    fn answers(&self) -> bool {
        let mut ask = self.program("psql");
        ask.args(["-h", self.folder.to_str().unwrap(), "-U", "keyfall"]);
        ask.args(["-c", "SELECT 1", "postgres"]);
        ask.output().is_ok_and(|it| it.status.success())
    }

    /// Runs statements, and returns what they print: a line for each row, `|` between the columns.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        let mut ask = self.program("psql");
        ask.args(["-h", self.folder.to_str().unwrap(), "-U", "keyfall"]);
        ask.args(["-v", "ON_ERROR_STOP=1", "-Atqc", statements, database]);
        let ran = ask.output().unwrap();
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8(ran.stdout).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Kills the server, as a power cut does. Its children end by themselves.
    pub fn kill(&mut self) {
        let pid = fs::read_to_string(self.data().join("postmaster.pid"));
        if let Some(pid) = pid.ok().as_deref().and_then(first_number)
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
        self.end();
    }

    /// Ends the guard, and with it the server.
    fn end(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            if let Some(mut stdin) = guard.stdin.take() {
                let _ = stdin.write_all(b"\n");
            }
            let _ = guard.wait();
        }
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!(
            "host={} user=keyfall dbname={database}",
            self.folder.display()
        )
    }
}

fn first_number(text: &str) -> Option<i32> {
    text.lines().next()?.trim().parse().ok()
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
