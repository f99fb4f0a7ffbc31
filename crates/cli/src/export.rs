//! `keyfall export`: all pending jobs and dead letters, one JSON object on each line.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use keyfall::Cursor;
use serde::Deserialize;

use super::bookmark::{Bookmark, Mark};
use super::connect::Server;
use super::jobs::Jobs;
use super::out::stdout;
use super::plain::{plain, plain_json};
use super::progress::Progress;
use super::stop::Stop;
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
    In(Look, Option<Cursor>),
    End,
}

/// A look at the jobs of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Pending,
    Running,
    Lapsed,
    Dead,
    /// At pending jobs once more, for those that the export lacks.
    Again,
}

/// The looks, in this order: a job that is done with a state meanwhile gets one of a later look. It
/// becomes pending again when a run leaves a retry, a successor or a next occurrence, and when a
/// dead letter is requeued.
const LOOKS: [Look; 5] = [
    Look::Pending,
    Look::Running,
    Look::Lapsed,
    Look::Dead,
    Look::Again,
];

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let prefix = options.among.prefix();
    let of = format!("an export of {}", prefix.as_deref().unwrap_or("all"));
    let bookmark = Bookmark::new(options.cursor_file);
    let mark = bookmark.read(&of)?;
    let mut place = match &mark {
        Some(mark) => mark.after.parse().map_err(anyhow::Error::msg)?,
        None => options.cursor.unwrap_or(Position::In(LOOKS[0], None)),
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
    let kept = mark.and_then(|mark| mark.bytes);
    let mut sink = Sink::open(options.output.clone(), kept)?;
    let mut written = Written::default();
    if let (Some(path), Some(kept)) = (&options.output, kept) {
        written.read(path, kept)?;
    }
    let progress = Progress::new(Some(total), "jobs");
    let (mut damaged, mut running) = (0, 0);
    while let Position::In(look, cursor) = place.clone() {
        let early = || format!("it ended early: go on with `--cursor '{place}'`");
        let page = next(&jobs, prefix.as_deref(), look.state(), cursor)
            .await
            .with_context(early)?;
        if look != Look::Again {
            progress.advance(page.jobs.len() + page.damaged.len());
        }
        for job in page.jobs {
            let job = match look {
                Look::Running | Look::Lapsed => {
                    let job = interrupted(&jobs, job).await.with_context(early)?;
                    running += u64::from(job.is_some());
                    job
                }
                _ => Some(job),
            };
            let Some(job) = job else {
                continue;
            };
            let is_new = look == Look::Dead || written.add(&job.key);
            if is_new || look != Look::Again {
                sink.put(&job)?;
            }
        }
        for job in &page.damaged {
            if look == Look::Dead || written.add(&job.name) {
                progress.note(&format!("damaged: {}: {}", plain(&job.name), job.error));
                damaged += 1;
            }
        }
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
/// retries. `None` if neither will run any more: it was cancelled, or has ended by now. A dead
/// letter follows in its own look.
async fn interrupted(jobs: &Jobs, mut job: Job) -> anyhow::Result<Option<Job>> {
    if job.successor_due.is_some() {
        // Lists do not show the successor.
        let key = job.key.parse()?;
        job = match jobs.get(&key).await {
            Ok(latest) => latest,
            Err(error) if Stop::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(next) = job.successor.take() {
            return Ok(Some(*next));
        }
    }
    match job.state {
        State::Dead => Ok(None),
        // The run has ended by now, and this is its successor, which may run as well.
        State::Pending | State::Retrying | State::Held => Ok(Some(job)),
        State::Running | State::Lapsed if job.cancelled => Ok(None),
        State::Running | State::Lapsed => Ok(Some(Job {
            attempts: job.attempts.saturating_sub(1),
            was: Some(job.state),
            state: State::Pending,
            ..job
        })),
    }
}

/// The keys of the pending jobs in the export, and the names of the damaged ones, as hashes: five
/// million take less than 100 MB.
#[derive(Default)]
struct Written {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Written {
    /// Returns false if the export has this one.
    fn add(&mut self, name: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(name))
    }

    /// Adds the jobs in the first `kept` bytes of the output, from an earlier part of the export.
    fn read(&mut self, path: &Path, kept: u64) -> anyhow::Result<()> {
        #[derive(Deserialize)]
        struct Line {
            key: String,
            state: State,
        }

        let shown = path.display();
        let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
        for line in BufReader::new(file.take(kept)).lines() {
            let line = line.with_context(|| format!("{shown} cannot be read"))?;
            let line: Line = serde_json::from_str(&line).with_context(|| {
                format!("{shown} is no export any more: remove it and the cursor file")
            })?;
            if line.state != State::Dead {
                self.add(&line.key);
            }
        }
        Ok(())
    }
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
                to: BufWriter::new(Box::new(stdout())),
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
        let Position::In(look, _) = self else {
            return Position::End;
        };
        if next.is_some() {
            return Position::In(look, next);
        }
        let behind = LOOKS.iter().skip_while(|one| **one != look).nth(1);
        behind.map_or(Position::End, |look| Position::In(*look, None))
    }
}

impl Look {
    /// The state of its jobs.
    fn state(self) -> State {
        match self {
            Look::Pending | Look::Again => State::Pending,
            Look::Running => State::Running,
            Look::Lapsed => State::Lapsed,
            Look::Dead => State::Dead,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Look::Again => "again",
            look => look.state().word(),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::In(look, None) => f.write_str(look.word()),
            Position::In(look, Some(cursor)) => write!(f, "{}@{cursor}", look.word()),
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
        let look = LOOKS.into_iter().find(|look| look.word() == word);
        let look =
            look.ok_or_else(|| format!("{text:?} is not a place: use one that an export printed"))?;
        let cursor = cursor.transpose().map_err(|error| error.to_string())?;
        Ok(Position::In(look, cursor))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use axum::body::Body;
    use axum::http::Response;
    use keyfall_daemon::shapes::Time;

    use super::super::jobs::answers::{self, found, refused};
    use super::*;

    #[test]
    fn a_position_is_read_back_from_its_text() {
        for text in [
            "pending",
            "pending@pending:a:b:c:17:x@y",
            "running",
            "dead",
            "dead@dead:a:b:c::",
            "again",
            "again@pending:a:b:c:17:x@y",
            "end",
        ] {
            let place: Position = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        assert!("pending@".parse::<Position>().is_err());
        assert!("retrying".parse::<Position>().is_err());
    }

    #[test]
    fn an_export_looks_at_all_states_and_at_pending_jobs_once_more() {
        let cursor: Cursor = "dead:a:b:c::".parse().unwrap();
        let place = Position::In(Look::Pending, None).then(None);
        assert_eq!(place, Position::In(Look::Running, None));
        let place = place.then(None).then(None);
        assert_eq!(place, Position::In(Look::Dead, None));
        let place = place.then(Some(cursor.clone()));
        assert_eq!(place, Position::In(Look::Dead, Some(cursor)));
        let place = place.then(None);
        assert_eq!(place, Position::In(Look::Again, None));
        assert_eq!(place.then(None), Position::End);
    }

    /// A job in its second attempt.
    fn job(state: State) -> Job {
        let due = Time(SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000));
        let mut job = Job::new("a:b:c:1", due, b"1");
        job.state = state;
        job.attempts = 2;
        job
    }

    /// What an export has of a running job with a successor, after this look at the job alone.
    async fn exported(answer: Response<Body>) -> anyhow::Result<Option<Job>> {
        let listed = Job {
            successor_due: Some(job(State::Pending).due),
            ..job(State::Running)
        };
        interrupted(&answers::jobs([answer]), listed).await
    }

    #[tokio::test]
    async fn a_run_that_ends_during_the_export_leaves_its_successor_as_it_is_by_then() {
        let next = Job {
            successor: Some(Box::new(job(State::Pending))),
            ..job(State::Running)
        };
        let next = exported(found(&next)).await.unwrap().unwrap();
        assert_eq!((next.state, next.was), (State::Pending, None));
        let retried = exported(found(&job(State::Retrying))).await;
        assert_eq!(retried.unwrap().unwrap().state, State::Retrying);
        for state in [State::Running, State::Lapsed] {
            let job = exported(found(&job(state))).await.unwrap().unwrap();
            let told = (job.state, job.was, job.attempts);
            assert_eq!(told, (State::Pending, Some(state), 1));
        }
        // It is in the export as a dead letter, or there is nothing left.
        let dead = exported(found(&job(State::Dead))).await;
        assert!(dead.unwrap().is_none());
        let gone = exported(refused(404, "job_absent", 1)).await;
        assert!(gone.unwrap().is_none());
        let away = exported(refused(503, "unavailable", 1)).await;
        assert!(Stop::is_passing(&away.unwrap_err()));
    }
}
