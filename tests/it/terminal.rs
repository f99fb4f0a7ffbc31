//! Output and questions of commands that appear only at a terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use keyfall::NewJob;
use keyfall_testing::files::Folder;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::runs::PATIENCE;
use crate::site::{HOUR, Site};

/// A command that runs at a terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// The output so far.
    seen: String,
}

impl Terminal {
    fn run(site: &Site, args: &[&str], env: &[(&str, &str)]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let mut options = OpenOptions::new();
        let theirs = options.read(true).write(true);
        let theirs = theirs.open(name.to_str().unwrap()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command.args(args).env("KEYFALL_REDIS_URL", &site.url);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        command.envs(env.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn();
        // The command keeps its own ends of the terminal, and so does this test.
        drop(command);
        drop(theirs);
        let keyboard = File::from(ours);
        let mut reader = keyboard.try_clone().unwrap();
        let (tell, screen) = channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Closing the terminal ends the read with an error.
            while let Ok(read @ 1..) = reader.read(&mut part) {
                let _ = tell.send(part[..read].to_vec());
            }
        });
        Terminal {
            child: child.unwrap(),
            keyboard,
            screen,
            seen: String::new(),
        }
    }

    /// Waits until the terminal shows this.
    fn shows(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let part = self.screen.recv_timeout(PATIENCE);
            let part = part.unwrap_or_else(|error| panic!("{error}: {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&part);
        }
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for the end of the command; returns the exit code and the whole output.
    fn ends(mut self) -> (i32, String) {
        loop {
            match self.screen.recv_timeout(PATIENCE) {
                Ok(part) => self.seen += &String::from_utf8_lossy(&part),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {:?}", self.seen),
            }
        }
        let code = self.child.wait().unwrap().code().unwrap();
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the test went well, it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the text has a sequence that sets a colour or a weight.
fn is_coloured(text: &str) -> bool {
    text.split('\x1b').skip(1).any(|sequence| {
        let end = sequence.find(|c: char| c.is_ascii_alphabetic());
        end.is_some_and(|at| sequence[at..].starts_with('m'))
    })
}

async fn with_jobs(app: &str, count: usize) -> Site {
    let site = Site::new(app).await;
    let jobs = site.keys(count).map(|key| NewJob::new(key, &1).after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_cancel_asks_first_and_accepts_a_no() {
    let site = with_jobs("tty_ask", 3).await;
    let prefix = format!("{}:", site.kind());
    for (answer, code, left) in [("n", 1, 3), ("", 1, 3), ("what?", 1, 3), ("Yes", 0, 0)] {
        let mut terminal = Terminal::run(&site, &["cancel", "--prefix", &prefix], &[]);
        terminal.shows("this cancels 3 jobs");
        terminal.shows("Go on? [y/N] ");
        terminal.types(&format!("{answer}\n"));
        let (ended, shown) = terminal.ends();
        assert_eq!(ended, code, "{answer}: {shown}");
        assert_eq!(shown.contains("nothing was done"), code == 1, "{shown}");
        assert_eq!(site.stats().await.pending, left, "{answer}");
    }
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_have_lines_and_errors_have_colours_unless_disabled() {
    let site = with_jobs("tty_table", 2).await;
    let prefix = format!("{}:", site.kind());
    for env in [&[][..], &[("NO_COLOR", "1")]] {
        let (code, shown) = Terminal::run(&site, &["list", &prefix], env).ends();
        assert_eq!(code, 0, "{shown}");
        assert!(shown.contains('│'), "{shown}");
        assert!(!is_coloured(&shown), "{shown:?}");
        let (code, shown) = Terminal::run(&site, &["list", "--limit", "x"], env).ends();
        assert_eq!(code, 2, "{shown}");
        assert_eq!(is_coloured(&shown), env.is_empty(), "{shown:?}");
    }
    // The log warns of a foreign value under the name.
    let key = site.key("theirs");
    let _: String = site.command(&["SET", &key, "theirs"]).await;
    for (env, expected) in [
        (&[("KEYFALL_LOG", "warn")][..], true),
        (&[("KEYFALL_LOG", "warn"), ("NO_COLOR", "1")], false),
    ] {
        let args = ["schedule", &key, "--after", "1h"];
        let (code, shown) = Terminal::run(&site, &args, env).ends();
        assert_eq!(code, 0, "{shown}");
        assert!(shown.contains("foreign value"), "{shown}");
        assert_eq!(is_coloured(&shown), expected, "{shown:?}");
    }
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bar_shows_the_progress_of_an_import_and_disappears() {
    let site = with_jobs("tty_bar", 600).await;
    let folder = Folder::new("tty-bar");
    let file = folder.path("jobs");
    let prefix = format!("{}:", site.kind());
    let args = ["export", &prefix, "-o", &file];
    let (code, shown) = Terminal::run(&site, &args, &[]).ends();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains(" of 600 jobs"), "{shown:?}");
    let bytes = folder.read("jobs").len();
    for env in [&[][..], &[("NO_COLOR", "1")]] {
        let args = ["import", &file, "--pace", "2000/s"];
        let mut terminal = Terminal::run(&site, &args, env);
        terminal.shows(&format!(" of {bytes} bytes"));
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0, "{shown}");
        assert!(!is_coloured(&shown), "{shown:?}");
        let last = shown.rsplit(['\r', '\n']).find(|line| !line.is_empty());
        assert!(
            last.unwrap().contains("600 were there already"),
            "{shown:?}"
        );
    }
    site.assert_balanced().await;
}
