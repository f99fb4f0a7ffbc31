//! The `keyfall` binary keeps its word and leaves nothing behind.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::runs::eventually;

/// A demo that plays in a process of its own.
struct Demo {
    child: Child,
    output: BufReader<ChildStdout>,
    socket: PathBuf,
}

impl Demo {
    /// Starts the demo, and reads the address of its Redis.
    fn start(seconds: u32) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_keyfall"))
            .args(["demo", "--seconds", &seconds.to_string()])
            .env("KEYFALL_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let socket = first.trim_end().split_once("redis+unix://");
        let socket = socket
            .unwrap_or_else(|| panic!("no address in {first:?}"))
            .1;
        Demo {
            child,
            output,
            socket: socket.into(),
        }
    }

    fn redis_lives(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    /// Reads on until a line holds `text`.
    fn read_until(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let length = self.output.read_line(&mut line).unwrap();
            assert!(length > 0, "it ended before it said {text:?}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the demo; returns its status and the rest of its output.
    fn end(&mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }

    async fn assert_nothing_is_left(&self) {
        let directory = self.socket.parent().unwrap();
        eventually("Redis and its directory are gone", async || {
            (!self.redis_lives() && !directory.exists()).then_some(())
        })
        .await;
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // If the test went well, it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number behind a label of the summary.
fn number(summary: &str, label: &str) -> u32 {
    let line = summary.lines().find(|line| line.starts_with(label));
    let line = line.unwrap_or_else(|| panic!("no {label} in {summary}"));
    let digits = line[label.len()..].trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().unwrap()
}

#[tokio::test]
async fn the_demo_finishes_and_its_books_balance() {
    let mut demo = Demo::start(6);
    assert!(demo.redis_lives());
    let (status, output) = demo.end();
    assert!(status.success(), "{status}: {output}");
    let (story, summary) = output.split_once("\nfired ").expect("a summary");
    let summary = format!("fired {summary}");
    for line in ["cancelled, it will never run", "postponed", "delivered"] {
        assert!(story.contains(line), "no {line:?} in {story}");
    }
    assert!(summary.contains(": balanced\n"), "{summary}");
    assert_eq!(number(&summary, "cancelled"), 1);
    assert_eq!(number(&summary, "dead"), 1);
    assert!(summary.contains("shop:pay:notice:3004"), "{summary}");
    // 30 orders and the postponed one; a crowd of 300; 10 runs of the other notices, 4 of them of
    // the notice that dies; 3 runs of the refund.
    assert!(number(&summary, "fired") >= 344, "{summary}");
    demo.assert_nothing_is_left().await;
}

#[tokio::test]
async fn ctrl_c_ends_the_demo_cleanly() {
    let mut demo = Demo::start(40);
    demo.read_until("after");
    // By now the demo listens for Ctrl-C.
    demo.read_until("shop:order:close:2001");
    demo.signal(Signal::INT);
    let (status, output) = demo.end();
    assert!(status.success(), "{status}: {output}");
    assert!(output.contains("interrupted"), "{output}");
    assert!(output.contains(": balanced\n"), "{output}");
    demo.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_killed_demo_leaves_neither_a_server_nor_a_directory() {
    let mut demo = Demo::start(600);
    demo.read_until("after");
    assert!(demo.redis_lives());
    demo.signal(Signal::KILL);
    let (status, _) = demo.end();
    assert!(!status.success());
    demo.assert_nothing_is_left().await;
}
