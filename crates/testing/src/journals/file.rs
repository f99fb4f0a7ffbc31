//! The calls, answers and runs of each process, in one file for each process, which only grows.
//!
//! A line is written with a single call, so a process that is killed leaves all lines but
//! perhaps the end of its last one. Times are of the machine's monotonic clock, which all
//! processes share and no fault can set.

use std::fs::File;
use std::io::Write;
use std::marker::PhantomData;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A time of the machine's monotonic clock, in µs.
pub type Micros = u64;

/// The time now, asked of the kernel directly: libraries that fake the clock of a process do not
/// change it.
pub fn now() -> Micros {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000
}

/// When it is so many ms after 1970 by the wall clock, which no fault sets for this process.
pub fn at_unix_ms(ms: u64) -> Micros {
    let wall = clock_gettime(ClockId::Realtime);
    let wall = wall.tv_sec.cast_unsigned() * 1_000_000 + wall.tv_nsec.cast_unsigned() / 1000;
    (now() + ms * 1000).saturating_sub(wall)
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Noted<T> {
    pub at: Micros,
    pub what: T,
}

/// A journal that is being written, of events that a suite has words for.
pub struct FileJournal<T> {
    file: File,
    events: PhantomData<fn(T)>,
}

impl<T: Serialize> FileJournal<T> {
    pub fn open(dir: &Path, process: &str) -> Self {
        let path = dir.join(format!("{process}.journal"));
        let file = File::options().create(true).append(true).open(path);
        FileJournal {
            file: file.expect("the directory of the journals is writable"),
            events: PhantomData,
        }
    }

    /// Writes an event down with the present time. Returns when the kernel has it.
    pub fn note(&self, what: T) {
        self.note_at(now(), what);
    }

    pub fn note_at(&self, at: Micros, what: T) {
        let mut line = serde_json::to_vec(&Noted { at, what }).expect("a line is plain data");
        line.push(b'\n');
        (&self.file)
            .write_all(&line)
            .expect("the journal is writable");
    }
}

/// All journals of a directory, each with the name of its process.
pub fn read_all<T: DeserializeOwned>(dir: &Path) -> Vec<(String, Vec<Noted<T>>)> {
    let files = std::fs::read_dir(dir).expect("the directory is there");
    let journals = files.filter_map(|file| {
        let path = file.expect("it is readable").path();
        let process = path.file_name()?.to_str()?.strip_suffix(".journal")?;
        Some((process.to_owned(), read(&path)))
    });
    let mut journals: Vec<_> = journals.collect();
    journals.sort_by(|a, b| a.0.cmp(&b.0));
    journals
}

fn read<T: DeserializeOwned>(path: &Path) -> Vec<Noted<T>> {
    let text = std::fs::read(path).expect("it is readable");
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // The text behind the last line end is empty, or a line that a killed process could not finish.
    lines.pop();
    let parse = |line: &&[u8]| {
        serde_json::from_slice(line).unwrap_or_else(|error| {
            let line = String::from_utf8_lossy(line);
            panic!("{}: {line:?} is not a line: {error}", path.display())
        })
    };
    lines.iter().map(parse).collect()
}
