//! Jobs as `keyfall export` writes them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::Context;

use super::entry::Entry;
use super::{Batch, Read};
use crate::stop::Stop;

/// The most lines of a batch.
const LINES: usize = 500;

pub(super) struct Lines {
    from: Box<dyn BufRead>,
    /// The number of the last line that was read.
    number: u64,
    /// The size of the file, in bytes.
    pub(super) size: Option<u64>,
}

impl Lines {
    /// `-` is the standard input. `after` is the number of lines that are done.
    pub(super) fn open(path: &Path, after: Option<&str>) -> anyhow::Result<Self> {
        let (from, size): (Box<dyn BufRead>, _) = if path == Path::new("-") {
            (Box::new(BufReader::new(io::stdin())), None)
        } else {
            let file = File::open(path);
            let file = file.with_context(|| format!("{} cannot be read", path.display()))?;
            let size = file.metadata()?.len();
            (Box::new(BufReader::new(file)), Some(size))
        };
        let mut lines = Lines {
            from,
            number: 0,
            size,
        };
        let done = after.unwrap_or("0").parse::<u64>();
        let done = done.map_err(|_| {
            Stop::wrong("`--cursor` is the number of lines that are done: write it as a number")
        })?;
        while lines.number < done && lines.line()?.is_some() {}
        Ok(lines)
    }

    pub(super) fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        let mut batch = Batch::default();
        while batch.jobs.len() < LINES {
            let Some(line) = self.line().context("the input cannot be read")? else {
                break;
            };
            batch.size += line.len();
            if !line.trim_ascii().is_empty() {
                batch.jobs.push(Read {
                    place: format!("line {}", self.number),
                    job: Entry::parse(&line).map_err(Into::into),
                });
            }
        }
        batch.after = self.number.to_string();
        Ok((batch.size > 0).then_some(batch))
    }

    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        if self.from.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(line))
    }
}
