//! The `keyfall` binary, called as by people and programs.

use std::process::Stdio;

use keyfall_testing::process::TalkingProcess;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::site::Site;

/// The exit code and the output of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A command with these arguments, without a Redis.
pub(crate) fn keyfall<S: AsRef<str>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command.args(args.iter().map(AsRef::as_ref));
    command.env_remove("KEYFALL_LOG").env("TZ", "UTC");
    for name in ["KEYFALL_REDIS_URL", "KEYFALL_API", "KEYFALL_TOKEN"] {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

impl Ran {
    pub(crate) async fn of(mut command: Command) -> Self {
        let output = command.output().await.unwrap();
        Ran {
            code: output.status.code().expect("it ends by itself"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The JSON values of the output, one a line.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.code, 0, "{self:?}");
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The only JSON value of the output.
    #[track_caller]
    pub(crate) fn value(&self) -> Value {
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{self:?}");
        lines.remove(0)
    }

    /// Asserts that the command ended with this code and error text, and printed no output.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, hint: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(hint), "no {hint:?} in {self:?}");
        assert_eq!(self.out, "");
    }
}

/// A daemon that does not run jobs itself.
pub(crate) struct Daemon {
    _process: TalkingProcess,
    /// `http://127.0.0.1:port`
    pub(crate) url: String,
}

impl Site {
    /// A daemon on the Redis of this site.
    pub(crate) fn daemon(&self, flags: &[&str]) -> Daemon {
        self.daemon_at("127.0.0.1:0", flags)
    }

    /// The same daemon, at this address.
    pub(crate) fn daemon_at(&self, address: &str, flags: &[&str]) -> Daemon {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command
            .args(["serve", "--http-listen", address])
            .args(["--redis-url", &self.url])
            .args(["--pull", "nobody:has:these:*"])
            .args(flags);
        let process = TalkingProcess::spawn(command);
        let line = process.line();
        let url = line.strip_prefix("listening on ").unwrap().to_owned();
        let _process = process;
        Daemon { _process, url }
    }

    /// The same site, with commands that go through a daemon.
    pub(crate) fn through_a_daemon(mut self) -> Self {
        self.daemon = Some(self.daemon(&[]));
        self
    }

    /// A command with these arguments on the jobs of this site.
    fn keyfall<S: AsRef<str>>(&self, args: &[S]) -> Command {
        let mut command = keyfall(args);
        match &self.daemon {
            Some(daemon) => command.env("KEYFALL_API", &daemon.url),
            None => command.env("KEYFALL_REDIS_URL", &self.url),
        };
        command
    }

    /// Runs a command on the Redis of this site; words are separated by blanks.
    pub(crate) async fn run(&self, words: &str) -> Ran {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.run_args(&words).await
    }

    pub(crate) async fn run_args<S: AsRef<str>>(&self, args: &[S]) -> Ran {
        Ran::of(self.keyfall(args)).await
    }

    /// Runs a command with this standard input.
    pub(crate) async fn run_reading(&self, words: &str, input: &[u8]) -> Ran {
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut command = self.keyfall(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The command may end before it has read the whole input.
        let _ = stdin.write_all(input).await;
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        Ran {
            code: output.status.code().expect("it ends by itself"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
