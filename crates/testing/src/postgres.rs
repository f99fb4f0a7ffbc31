//! A private PostgreSQL: its files and its socket are in a temporary folder, gone afterwards.
//!
//! The programs refuse to run as root; then they run as the user that Debian's package has made.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::patience::PATIENCE;

/// A PostgreSQL that ends with this value, and also if the test is killed.
pub struct Postgres {
    folder: PathBuf,
    /// Waits for the end of this process, and then ends the server.
    guard: Option<Child>,
    user: Option<(u32, u32)>,
    port: u16,
    /// Further settings, `name=value`.
    settings: Vec<String>,
    /// Whether it has the folder `small`, a disk of [`SMALL`] that only it sees.
    has_small_disk: bool,
}

/// The size of the small disk.
const SMALL: &str = "24m";

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
        let mut postgres = Postgres::prepare();
        postgres.begin();
        postgres
    }

    /// The same, with a tablespace `small` on a small disk. `None` where no file system may be mounted:
    /// that takes root.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with_small_disk() -> Option<Self> {
        let tried = Command::new("unshare").args(["--mount", "true"]).output();
        if !tried.is_ok_and(|it| it.status.success()) {
            return None;
        }
        let mut postgres = Postgres::prepare();
        fs::create_dir(postgres.small()).unwrap();
        postgres.has_small_disk = true;
        postgres.begin();
        let make = format!(
            "CREATE TABLESPACE small LOCATION '{}'",
            postgres.small().display()
        );
        postgres.sql("postgres", &make);
        Some(postgres)
    }

    /// The same over TCP, at this port of 127.0.0.1, with TLS by these files, PEM. Clients need TLS and
    /// the password of their role.
    ///
    /// # Panics
    /// If it does not start.
    pub fn with_tls(port: u16, chain: &str, key: &str) -> Self {
        let mut postgres = Postgres::prepare();
        postgres.port = port;
        let access = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
        for (name, text) in [
            ("chain.pem", chain),
            ("key.pem", key),
            ("pg_hba.conf", access),
        ] {
            let file = postgres.data().join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((uid, gid)) = postgres.user {
                chown(&file, Some(uid), Some(gid)).unwrap();
            }
        }
        for setting in ["listen_addresses=127.0.0.1", "ssl=on"] {
            postgres.settings.push(setting.into());
        }
        for (name, file) in [("ssl_cert_file", "chain.pem"), ("ssl_key_file", "key.pem")] {
            postgres.settings.push(format!("{name}={file}"));
        }
        postgres.begin();
        postgres
    }

    /// Makes a database cluster.
    fn prepare() -> Self {
        let name = format!("keyfall-pg-{:016x}", rand::random::<u64>());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let user = other_user();
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid)).unwrap();
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let postgres = Postgres {
            folder,
            guard: None,
            user,
            port: 5432,
            settings: Vec::new(),
            has_small_disk: false,
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

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!(".s.PGSQL.{}", self.port))
    }

    fn small(&self) -> PathBuf {
        self.folder.join("small")
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

    /// The server, in a shell that reads until this process is gone, and deletes the folder then:
    /// a server that all tests share is never dropped.
    fn spawn(&self) -> Child {
        let script = r#"
            program=$1 data=$2 folder=$3
            shift 3
            "$program" -D "$data" -k "$folder" -c listen_addresses= -c fsync=off \
                -c max_connections=300 -c log_min_messages=fatal "$@" >"$folder/log" 2>&1 &
            server=$!
            read -r _ && is_told=yes
            kill -QUIT $server 2>/dev/null
            wait $server 2>/dev/null
            [ -n "${is_told-}" ] || rm -rf "$folder""#;
        let mut guard = match (self.has_small_disk, self.user) {
            (true, Some((uid, gid))) => {
                // The disk is gone with the last process of its namespace.
                let mount = format!(
                    "mount -t tmpfs -o size={SMALL},uid={uid},gid={gid},mode=0700 small \"$0\" \
                     && exec setpriv --reuid {uid} --regid {gid} --clear-groups \"$@\""
                );
                let mut guard = Command::new("unshare");
                guard
                    .args(["--mount", "sh", "-c", &mount])
                    .arg(self.small());
                guard.arg("sh").current_dir(&self.folder);
                guard
            }
            _ => {
                let mut guard = Command::new("sh");
                self.as_user(&mut guard);
                guard
            }
        };
        guard.args(["-c", script, "guard"]);
        guard.arg(programs().join("postgres")).arg(self.data());
        guard.arg(&self.folder).stdin(Stdio::piped());
        guard.args(["-p", &self.port.to_string()]);
        let settings = self.settings.iter();
        guard.args(settings.flat_map(|setting| ["-c", setting]));
        guard.spawn().unwrap()
    }

    fn answers(&self) -> bool {
        let mut ask = self.program("psql");
        ask.args(["-h", self.folder.to_str().unwrap(), "-U", "keyfall"]);
        ask.args(["-p", &self.port.to_string()]);
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
        ask.args(["-p", &self.port.to_string()]);
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
            "host={} port={} user=keyfall dbname={database}",
            self.folder.display(),
            self.port
        )
    }
}

fn first_number(text: &str) -> Option<i32> {
    text.lines().next()?.trim().parse().ok()
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end();
        // The children of a server that was killed still write while they end.
        let end = Instant::now() + PATIENCE;
        while fs::remove_dir_all(&self.folder).is_err_and(|it| it.kind() != ErrorKind::NotFound)
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
