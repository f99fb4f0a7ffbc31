//! `keyfall export`: all pending jobs and dead letters, one JSON object on each line.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use keyfall::{Client, Cursor, JobState, Page};

use super::bookmark::{Bookmark, Mark};
use super::connect::Server;
use super::job::JobLine;
use super::progress::Progress;
use super::which::select;

/// How many jobs one call brings at the most.
const PAGE: usize = 500;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// What their keys begin with, such as app1:trans:notice: with the colon at its end; all
    /// there are, unless it is given
    prefix: Option<String>,

    /// The file to write; the standard output by default
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,

    /// Keep in this file how far it is; the same command again then goes on from there
    #[arg(long, value_name = "PATH", requires = "output")]
    cursor_file: Option<PathBuf>,

    /// Go on where an earlier export ended
    #[arg(long, value_name = "PLACE", conflicts_with = "cursor_file")]
    after: Option<Place>,

    #[command(flatten)]
    server: Server,
}

/// How far an export is: first what is pending, then what is dead.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Pending(Option<Cursor>),
    Dead(Option<Cursor>),
    End,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let of = format!(
        "an export of {}",
        options.prefix.as_deref().unwrap_or("all")
    );
    let bookmark = Bookmark::new(options.cursor_file);
    let mark = bookmark.read(&of)?;
    let mut place = match &mark {
        Some(mark) => mark.after.parse().map_err(anyhow::Error::msg)?,
        None => options.after.unwrap_or(Place::Pending(None)),
    };
    let client = options.server.connect().await?;
    let counts = select(&client, options.prefix.as_deref()).count().await?;
    let mut sink = Sink::open(options.output, mark.and_then(|mark| mark.bytes))?;
    let progress = Progress::new(Some(counts.pending + counts.dead), "jobs");
    let mut damaged = 0;
    while place != Place::End {
        let page = next(&client, options.prefix.as_deref(), &place)
            .await
            .with_context(|| format!("it ended early: go on with `--after '{place}'`"))?;
        for job in &page.jobs {
            sink.put(&JobLine::of(job))?;
        }
        for job in &page.damaged {
            progress.note(&format!(
                "damaged: {}: {}",
                job.name.escape_debug(),
                job.error
            ));
        }
        damaged += page.damaged.len();
        progress.advance(page.jobs.len() + page.damaged.len());
        place = place.then(page.next);
        bookmark.write(&Mark {
            of: of.clone(),
            after: place.to_string(),
            bytes: sink.flush()?,
        })?;
    }
    drop(progress);
    let running = counts.running + counts.lapsed;
    if running > 0 {
        eprintln!(
            "{running} jobs were running and are not in it: pause the kinds, and let the runs end, \
             to have all"
        );
    }
    if damaged > 0 {
        bail!("{damaged} jobs are damaged and not in it: see `keyfall audit`");
    }
    Ok(())
}

async fn next(client: &Client, prefix: Option<&str>, place: &Place) -> keyfall::Result<Page> {
    let (state, cursor) = match place {
        Place::Pending(cursor) => (JobState::Pending, cursor),
        Place::Dead(cursor) => (JobState::Dead, cursor),
        Place::End => unreachable!("there is no page at the end"),
    };
    let mut list = select(client, prefix).list(state).limit(PAGE);
    if let Some(cursor) = cursor {
        list = list.after(cursor.clone());
    }
    list.await
}

/// Where the lines go.
struct Sink {
    to: BufWriter<Box<dyn Write>>,
    /// And how many bytes it has with them.
    file: Option<(File, u64)>,
}

impl Sink {
    /// Behind the first `kept` bytes of a file that is there: what follows them was written by an
    /// export that ended before it could say so. Without `kept`, no file is overwritten.
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
                anyhow!("{shown} is there already: name another file, or remove it")
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

    fn put(&mut self, job: &JobLine) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(job)?;
        line.push(b'\n');
        self.to.write_all(&line)?;
        if let Some((_, bytes)) = &mut self.file {
            *bytes += line.len() as u64;
        }
        Ok(())
    }

    /// Returns how many bytes the file has, when the disk has them, too.
    fn flush(&mut self) -> io::Result<Option<u64>> {
        self.to.flush()?;
        let Some((file, bytes)) = &self.file else {
            return Ok(None);
        };
        file.sync_data()?;
        Ok(Some(*bytes))
    }
}

impl Place {
    /// Behind a page that says where the next one begins.
    fn then(self, next: Option<Cursor>) -> Self {
        match (self, next) {
            (Place::Pending(_), None) => Place::Dead(None),
            (Place::Pending(_), next) => Place::Pending(next),
            (Place::Dead(_), next @ Some(_)) => Place::Dead(next),
            (Place::Dead(_) | Place::End, _) => Place::End,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Pending(None) => f.write_str("pending"),
            Place::Dead(None) => f.write_str("dead"),
            Place::Pending(Some(cursor)) => write!(f, "pending@{cursor}"),
            Place::Dead(Some(cursor)) => write!(f, "dead@{cursor}"),
            Place::End => f.write_str("end"),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cursor = |text: &str| {
            let cursor = text.parse::<Cursor>();
            cursor.map(Some).map_err(|error| error.to_string())
        };
        match text.split_once('@') {
            None if text == "pending" => Ok(Place::Pending(None)),
            None if text == "dead" => Ok(Place::Dead(None)),
            None if text == "end" => Ok(Place::End),
            Some(("pending", rest)) => cursor(rest).map(Place::Pending),
            Some(("dead", rest)) => cursor(rest).map(Place::Dead),
            _ => Err(format!(
                "{text:?} is no place: use one that an export named"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_text() {
        for text in [
            "pending",
            "pending@pending:a:b:c:17:x@y",
            "dead",
            "dead@dead:a:b:c::",
            "end",
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        assert!("pending@".parse::<Place>().is_err());
        assert!("running".parse::<Place>().is_err());
    }

    #[test]
    fn it_goes_from_the_pending_to_the_dead_to_the_end() {
        let cursor: Cursor = "dead:a:b:c::".parse().unwrap();
        let place = Place::Pending(None).then(None);
        assert_eq!(place, Place::Dead(None));
        let place = place.then(Some(cursor.clone()));
        assert_eq!(place, Place::Dead(Some(cursor)));
        assert_eq!(place.then(None), Place::End);
    }
}
