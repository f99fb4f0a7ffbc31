//! The log of Redis: every write that the data set still holds, in the order of Redis' own clock;
//! the writes of one script stay together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use keyfall_testing::resp::{self, Command};

/// The files of the log in this directory of a server, the latest last. Empty if the server keeps
/// no log.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let parts = fs::read_dir(dir.join("appendonlydir"))
        .into_iter()
        .flatten();
    let paths = parts.filter_map(|part| Some(part.ok()?.path()));
    let numbered = paths.filter_map(|path| Some((number(&path)?, path)));
    let mut logs: Vec<(u32, PathBuf)> = numbered.collect();
    logs.sort();
    // Before Redis 7 there is one file.
    let single = Some(dir.join("appendonly.aof")).filter(|file| file.is_file());
    logs.into_iter()
        .map(|(_, path)| path)
        .chain(single)
        .collect()
}

/// The number in `appendonly.aof.3.incr.aof`; `None` for a file that is no part of a log.
fn number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".incr.aof")?;
    name.rsplit('.').next()?.parse().ok()
}

/// Links these files into this directory, so that they stay even if Redis renames or removes them.
pub(crate) fn keep(logs: &[PathBuf], dir: &Path) -> io::Result<()> {
    let dir = dir.join("appendonlydir");
    fs::create_dir_all(&dir)?;
    for log in logs {
        let kept = dir.join(log.file_name().expect("it is a file"));
        if !kept.exists() && fs::hard_link(log, &kept).is_err() {
            // Another file system: then a copy has to do.
            fs::copy(log, &kept)?;
        }
    }
    Ok(())
}

/// All writes of a log, in order; one element holds the writes of a script, or of one command.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Vec<Command>>, String> {
    let mut blocks = Vec::new();
    let mut open: Option<Vec<Command>> = None;
    for file in files {
        let text = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut rest = &text[..];
        // The last write may be half written while Redis lives.
        while let Some(write) = resp::next(&mut rest) {
            match (write[0].to_ascii_uppercase().as_slice(), &mut open) {
                (b"MULTI", _) => open = Some(Vec::new()),
                (b"EXEC", _) => blocks.extend(open.take()),
                (_, Some(block)) => block.push(write),
                (_, None) => blocks.push(vec![write]),
            }
        }
    }
    Ok(blocks)
}
