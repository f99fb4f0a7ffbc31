//! `keyfall export`: all pending jobs and dead letters, one JSON object on each line.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use keyfall::Cursor;

use super::bookmark::{Bookmark, Mark};
use super::connect::Server;
use super::jobs::Jobs;
use super::plain::{plain, plain_json};
use super::progress::Progress;
use super::unseen;
use super::which::Among;
use keyfall_daemon::shapes::{Job, ListIn, PageOut, Payloads, State};

/// The most jobs of one call.
const PAGE: usize = 500;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    among: Among,

    /// The file to write; the standard output by default
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Keep the progress in this file; the same command again then goes on from there
    #[arg(long, value_name = "PATH", requires = "output")]
    cursor_file: Option<PathBuf>,

    /// Go on at the end of an earlier export
    #[arg(
        long,
        alias = "after",
        value_name = "CURSOR",
        conflicts_with = "cursor_file"
    )]
    cursor: Option<Position>,

    /// The output is JSON anyway
    #[arg(long = "json", hide = true)]
    _json: bool,

    #[command(flatten)]
    server: Server,
}

/// The position of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Position {
    In(State, Option<Cursor>),
    End,
}

/// The exported states, in this order: a job that changes its state meanwhile gets a later one,
/// except when a run fails.
const STATES: [State; 4] = [State::Pending, State::Running, State::Lapsed, State::Dead];

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let prefix = options.among.prefix();
    let of = format!("an export of {}", prefix.as_deref().unwrap_or("all"));
    let bookmark = Bookmark::new(options.cursor_file);
    let mark = bookmark.read(&of)?;
    let mut place = match &mark {
        Some(mark) => mark.after.parse().map_err(anyhow::Error::msg)?,
        None => options.cursor.unwrap_or(Position::In(STATES[0], None)),
    };
    if matches!(place, Position::End) {
        eprintln!(
            "this export was finished before, and nothing was written: for a new one, name \
             another output and another cursor file, or remove these"
        );
        return Ok(());
    }
    let jobs = options.server.connect().await?;
    let counts = jobs.count(prefix.as_deref()).await?;
    let total = counts.pending + counts.running + counts.lapsed + counts.dead;
    let mut sink = Sink::open(options.output, mark.and_then(|mark| mark.bytes))?;
    let progress = Progress::new(Some(total), "jobs");
    let (mut damaged, mut running) = (0, 0);
    while let Position::In(state, cursor) = place.clone() {
        let page = next(&jobs, prefix.as_deref(), state, cursor)
            .await
            .with_context(|| format!("it ended early: go on with `--cursor '{place}'`"))?;
        let (found, bad) = (page.jobs.len(), page.damaged.len());
        for job in page.jobs {
            match state {
                State::Running | State::Lapsed => {
                    if let Some(job) = interrupted(&jobs, job).await? {
                        sink.put(&job)?;
                        running += 1;
                    }
                }
                _ => sink.put(&job)?,
            }
        }
        for job in &page.damaged {
            progress.note(&format!("damaged: {}: {}", plain(&job.name), job.error));
        }
        damaged += bad;
        progress.advance(found + bad);
        let next = page.next.map(|cursor| cursor.parse()).transpose()?;
        place = place.then(next);
        bookmark.write(&Mark {
            of: of.clone(),
            after: place.to_string(),
            bytes: sink.flush()?,
        })?;
    }
    drop(progress);
    if running > 0 {
        eprintln!(
            "{running} jobs were running, and the export has them as pending: if no job may run \
             twice, pause the kinds and wait for the runs to end before an export"
        );
    }
    if damaged > 0 {
        bail!("{damaged} jobs are damaged, and the export lacks them: see `keyfall audit`");
    }
    Ok(())
}

async fn next(
    jobs: &Jobs,
    prefix: Option<&str>,
    state: State,
    cursor: Option<Cursor>,
) -> anyhow::Result<PageOut> {
    let wanted = ListIn {
        prefix: prefix.map(Into::into),
        state,
        limit: Some(PAGE),
        cursor: cursor.map(|cursor| cursor.to_string()),
        payloads: Payloads::Exact,
        ..ListIn::default()
    };
    let page = jobs.list(&wanted).await?;
    // A page that lacks some shards is refused as a whole.
    unseen::told(&page.unseen)?;
    Ok(page)
}

/// A running job in its state before the run; or its successor, which takes the place of its
/// retries. `None` if it was cancelled: it will not run again.
async fn interrupted(jobs: &Jobs, job: Job) -> anyhow::Result<Option<Job>> {
    if job.successor_due.is_some() {
        let key = job.key.parse()?;
        // The run may have ended by now, and then its successor is pending.
        let mut latest = jobs.get(&key).await?;
        let next = latest.successor.take();
        return Ok(Some(next.map_or(latest, |next| *next)));
    }
    if job.cancelled {
        return Ok(None);
    }
    Ok(Some(Job {
        attempts: job.attempts.saturating_sub(1),
        was: Some(job.state),
        state: State::Pending,
        ..job
    }))
}

/// The target of the lines.
struct Sink {
    to: BufWriter<Box<dyn Write>>,
    /// The file, and its length with the lines, in bytes.
    file: Option<(File, u64)>,
}

impl Sink {
    /// Appends behind the first `kept` bytes of an existing file: the bytes after them come from an
    /// export that ended before it could report them. Without `kept`, no file is overwritten.
    fn open(path: Option<PathBuf>, kept: Option<u64>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Sink {
                to: BufWriter::new(Box::new(io::stdout())),
                file: None,
            });
        };
        let shown = path.display();
        let mut options = File::options();
        let opened = options.write(true).create_new(kept.is_none()).open(&path);
        let mut file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                anyhow!("{shown} exists already: name another file, or remove it")
            }
            _ => anyhow::Error::new(error).context(format!("{shown} cannot be written")),
        })?;
        let kept = kept.unwrap_or(0);
        if file.metadata()?.len() < kept {
            bail!("{shown} is shorter than it was: remove the cursor file, and begin anew");
        }
        file.set_len(kept)?;
        file.seek(SeekFrom::Start(kept))?;
        Ok(Sink {
            to: BufWriter::new(Box::new(file.try_clone()?)),
            file: Some((file, kept)),
        })
    }

    fn put(&mut self, job: &Job) -> anyhow::Result<()> {
        let document = serde_json::to_string(job)?;
        let line = format!("{}\n", plain_json(&document));
        self.to.write_all(line.as_bytes())?;
        if let Some((_, bytes)) = &mut self.file {
            *bytes += line.len() as u64;
        }
        Ok(())
    }

    /// Returns the length of the file in bytes, once the disk has them, too.
    fn flush(&mut self) -> io::Result<Option<u64>> {
        self.to.flush()?;
        let Some((file, bytes)) = &self.file else {
            return Ok(None);
        };
        file.sync_data()?;
        Ok(Some(*bytes))
    }
}

impl Position {
    /// The position after a page that names the start of the next one.
    fn then(self, next: Option<Cursor>) -> Self {
        let Position::In(state, _) = self else {
            return Position::End;
        };
        if next.is_some() {
            return Position::In(state, next);
        }
        let behind = STATES.iter().skip_while(|one| **one != state).nth(1);
        behind.map_or(Position::End, |state| Position::In(*state, None))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::In(state, None) => f.write_str(state.word()),
            Position::In(state, Some(cursor)) => write!(f, "{}@{cursor}", state.word()),
            Position::End => f.write_str("end"),
        }
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "end" {
            return Ok(Position::End);
        }
        let (word, cursor) = match text.split_once('@') {
            Some((word, cursor)) => (word, Some(cursor.parse::<Cursor>())),
            None => (text, None),
        };
        let state = STATES.into_iter().find(|state| state.word() == word);
        let state = state
            .ok_or_else(|| format!("{text:?} is not a place: use one that an export printed"))?;
        let cursor = cursor.transpose().map_err(|error| error.to_string())?;
        Ok(Position::In(state, cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_from_its_text() {
        for text in [
            "pending",
            "pending@pending:a:b:c:17:x@y",
            "running",
            "dead",
            "dead@dead:a:b:c::",
            "end",
        ] {
            let place: Position = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        assert!("pending@".parse::<Position>().is_err());
        assert!("retrying".parse::<Position>().is_err());
    }

    #[test]
    fn an_export_goes_through_all_states() {
        let cursor: Cursor = "dead:a:b:c::".parse().unwrap();
        let place = Position::In(State::Pending, None).then(None);
        assert_eq!(place, Position::In(State::Running, None));
        let place = place.then(None).then(None);
        assert_eq!(place, Position::In(State::Dead, None));
        let place = place.then(Some(cursor.clone()));
        assert_eq!(place, Position::In(State::Dead, Some(cursor)));
        assert_eq!(place.then(None), Position::End);
    }
}
