//! What was done to jobs, as the ledgers tell it: typed, and followed as it happens.

mod tail;
mod words;

use std::fmt;
use std::future::IntoFuture;
use std::time::{Duration, Instant, SystemTime};

pub use self::tail::{Tail, Tidings};
pub(crate) use self::words::span;
use crate::client::{Client, Pending, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey, Kind};
use crate::source::Source;
use crate::store::{Lane, Ledger, Line};
use crate::time::UnixMs;

/// The most entries that a history keeps.
const MOST: u64 = 1_000_000;

/// How many pages of a history are looked through for one job.
const PAGES: usize = 400;

/// What the history tells of a job.
pub(super) struct HistoryEntry {
    /// How many entries the kind keeps.
    pub(super) kept: u64,
    /// When the oldest thing happened that was looked at.
    pub(super) reaches: Option<SystemTime>,
    /// The oldest first; what was done to the kind included.
    pub(super) happenings: Vec<Happening>,
}

/// Something that was done to a job, or to a kind, as the history tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Happening {
    /// The kind of the job.
    pub kind: Kind,
    /// The id of the job; none where it was done to the kind.
    pub id: Option<String>,
    /// What was done.
    pub what: What,
    /// When, by Redis' clock.
    pub at: SystemTime,
    /// Who did it: `host:process`. Empty where only the record of the job tells of it.
    pub by: String,
    /// When the job is due by that; of a claim and a takeover, when it was.
    pub due: Option<SystemTime>,
    /// Of a claim: how the job was found.
    pub source: Option<Source>,
    /// Of an attempt that failed: its number, counted from 1. Of a takeover: how many attempts
    /// were begun since a run of it last ended.
    pub attempt: Option<u32>,
    /// Of a run that ended: how long ago it was claimed.
    pub took: Option<Duration>,
    /// The number of the dead letter.
    pub letter: Option<u64>,
    /// How the attempt failed, why the job was buried, or what was found in an audit; cut to some
    /// 200 bytes. Of what came through the plain key of an adopted job: what was done to that, such
    /// as `its key was set`.
    pub note: Option<String>,
}

macro_rules! what {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// What can be done to a job, or to a kind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum What {
            $($(#[$doc])* $name,)*
            /// Something that this version does not know.
            Unknown,
        }

        impl What {
            /// All that this version knows.
            pub const ALL: &[What] = &[$(What::$name,)*];

            /// In one word, such as `scheduled`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(What::$name => $word,)*
                    What::Unknown => "unknown",
                }
            }
        }
    };
}

what! {
    /// It was scheduled, and there was none of the name.
    Scheduled = "scheduled",
    /// It was scheduled in the place of one that was pending.
    Replaced = "replaced",
    /// It was scheduled while one of the name runs, and will follow it.
    Succeeds = "succeeds",
    /// The run before it has ended, and it is pending.
    Follows = "follows",
    /// It got another due time.
    Postponed = "postponed",
    /// It was made due at once.
    Fired = "fired",
    /// It got another payload.
    Updated = "updated",
    /// It is gone, because somebody cancelled it.
    Cancelled = "cancelled",
    /// It was cancelled while it runs: the run is told to stop.
    Stopping = "stopping",
    /// An instance got it to run.
    Claimed = "claimed",
    /// Its lease had lapsed, and another instance got it to run.
    Lapsed = "lapsed",
    /// It ended well.
    Done = "done",
    /// An attempt failed, and another one follows.
    Failed = "failed",
    /// It asked to run again, and nothing had failed.
    Again = "again",
    /// It asked to be put off.
    Snoozed = "snoozed",
    /// It was given back before it ran.
    Returned = "returned",
    /// Its run is not repeated: a newer schedule takes its place.
    Superseded = "superseded",
    /// It became a dead letter.
    Buried = "buried",
    /// A dead letter became pending again.
    Requeued = "requeued",
    /// A dead letter was deleted.
    Deleted = "deleted",
    /// It came back from a backup.
    Restored = "restored",
    /// It came from another shard of its kind, which was resharded.
    Moved = "moved",
    /// An audit mended something.
    Repaired = "repaired",
    /// The kind was paused.
    Paused = "paused",
    /// The pause of the kind ended.
    Resumed = "resumed",
}

impl What {
    /// Reads one of the words of [`as_str`](Self::as_str).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`], naming the words that there are.
    pub fn parse(word: &str) -> Result<Self> {
        let found = What::ALL.iter().find(|what| what.as_str() == word);
        found.copied().ok_or_else(|| {
            let words: Vec<&str> = What::ALL.iter().map(|what| what.as_str()).collect();
            Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{word:?} is nothing that a history tells of: write one of {}",
                    words.join(", ")
                ),
            )
        })
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Happening {
    pub(super) fn of(kind: &Kind, line: Line) -> Self {
        let what = What::parse(&line.what).unwrap_or(What::Unknown);
        let number: Option<u64> = line.number.parse().ok();
        let more: Option<u64> = line.more.parse().ok();
        let is_letter = matches!(what, What::Buried | What::Deleted);
        let is_of_kind = matches!(what, What::Paused | What::Resumed);
        let has_run = !matches!(what, What::Claimed | What::Lapsed);
        let (attempt, note) = match what {
            What::Failed | What::Buried => match line.note.split_once(' ') {
                Some((attempt, error)) => (attempt.parse().ok(), error.to_owned()),
                None => (None, line.note),
            },
            What::Lapsed => (more.and_then(|claims| claims.try_into().ok()), line.note),
            _ => match words::done_to_key(&line.note) {
                Some(done) => (None, done.to_owned()),
                None => (None, line.note),
            },
        };
        Happening {
            kind: kind.clone(),
            id: Some(line.id).filter(|id| !is_of_kind && !id.is_empty()),
            what,
            at: UnixMs(ms_of(&line.entry).0).to_system(),
            by: line.by,
            due: number
                .filter(|_| !is_letter)
                .map(|ms| UnixMs(ms).to_system()),
            source: Source::of_letter(&line.more).filter(|_| what == What::Claimed),
            attempt,
            took: more.filter(|_| has_run).map(Duration::from_millis),
            letter: number.filter(|_| is_letter),
            note: Some(note).filter(|note| !note.is_empty()),
        }
    }

    /// As the record of a job tells it.
    pub(super) fn by_record(key: &JobKey, what: What, at: SystemTime) -> Self {
        Happening {
            kind: Kind::parse(key.kind()).expect("the kind of a key"),
            id: Some(key.id().to_owned()),
            what,
            at,
            by: String::new(),
            due: None,
            source: None,
            attempt: None,
            took: None,
            letter: None,
            note: None,
        }
    }

    /// The job; none where it was done to the kind.
    pub fn key(&self) -> Option<JobKey> {
        self.kind.key(self.id.as_deref()?).ok()
    }

    /// How long after its due time a job was claimed, of a claim and a takeover.
    pub fn lag(&self) -> Option<Duration> {
        if !matches!(self.what, What::Claimed | What::Lapsed) {
            return None;
        }
        // A server's clock that went back makes nothing early.
        Some(self.at.duration_since(self.due?).unwrap_or_default())
    }
}

/// The time and the number of an entry, `ms-number`.
fn ms_of(entry: &str) -> (u64, u64) {
    let (ms, number) = entry.split_once('-').unwrap_or((entry, "0"));
    (ms.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

/// A call to [`Selection::keep_history`]; sent when it is awaited.
#[must_use = "nothing is changed until it is awaited"]
pub struct KeepHistory<'a> {
    selection: Selection<'a>,
    entries: u64,
}

impl<'a> Selection<'a> {
    /// How many entries the histories of these kinds keep from now on: up to a million. With 0
    /// nothing is written any more, and what was is deleted. Returns the kinds.
    ///
    /// This is about the kinds that exist: one that is used for the first time later keeps as many
    /// as any. An entry tells of one transition and of all jobs that a call made it with, in about
    /// a kibibyte at the most. A prefix that reaches into the id is refused. Where one of several
    /// servers is away, it is done on the others, and the call fails: make it again when that one is
    /// there.
    pub fn keep_history(self, entries: u64) -> KeepHistory<'a> {
        KeepHistory {
            selection: self,
            entries,
        }
    }
}

impl<'a> IntoFuture for KeepHistory<'a> {
    type Output = Result<Vec<Kind>>;
    type IntoFuture = Pending<'a, Vec<Kind>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let prefix = self.selection.prefix?.of_kinds("given a history")?;
            if self.entries > MOST {
                return Err(Error::new(
                    ErrorKind::InvalidSetting,
                    format!(
                        "`entries` is {}, and a history keeps {MOST} at the most: it takes up to a \
                         kibibyte of Redis' memory for each",
                        self.entries
                    ),
                ));
            }
            let client = self.selection.client;
            let until = client.deadline();
            let (kinds, mut view) = client.kinds_in_view(&prefix, until).await?;
            for kind in &kinds {
                for shard_client in client.kind_shards_to_look(kind.as_str())?.all() {
                    let (ledger, mut lane) = (&shard_client.ledger, Lane::new());
                    let keep = ledger.keep(&mut lane, self.entries, until);
                    view.see(ledger, keep).await?;
                }
            }
            view.all_done()?;
            Ok(kinds)
        })
    }
}

impl Client {
    /// How many entries the history of a kind, `app:module:biz`, keeps; 0 if it has none.
    ///
    /// # Errors
    /// If the kind is not valid or Redis does not answer in time.
    pub async fn history_kept(&self, kind: &str) -> Result<u64> {
        let kind = Kind::parse(kind)?;
        let kind_shards = self.kind_shards_to_look(kind.as_str())?;
        kind_shards.shard_clients()[0]
            .ledger
            .kept(self.deadline())
            .await
    }

    /// What the history tells of a job, of all that had its name, the oldest first.
    ///
    /// # Errors
    /// If the key is not valid or Redis does not answer in time.
    pub async fn happenings(&self, key: impl IntoJobKey) -> Result<Vec<Happening>> {
        let key = key.into_job_key()?;
        Ok(self.told_of(&key, self.deadline()).await?.happenings)
    }

    /// Pages through the history, the newest first, for a job.
    pub(super) async fn told_of(&self, key: &JobKey, until: Instant) -> Result<HistoryEntry> {
        let kind = Kind::parse(key.kind())?;
        let kind_shards = self.kind_shards_now(&kind, until).await?;
        let mut told = self
            .told_by(&kind_shards.shard_client(key.id()).ledger, key, until)
            .await?;
        if let Some(old) = kind_shards.old_shard_client(key.id()) {
            let before = self.told_by(&old.ledger, key, until).await?;
            told.happenings.extend(before.happenings);
            told.happenings.sort_by_key(|it| it.at);
            told.reaches = told.reaches.min(before.reaches);
        }
        Ok(told)
    }

    /// Pages through the history of one ledger.
    async fn told_by(&self, ledger: &Ledger, key: &JobKey, until: Instant) -> Result<HistoryEntry> {
        let mut told = HistoryEntry {
            kept: 0,
            reaches: None,
            happenings: Vec::new(),
        };
        let mut before = "+".to_owned();
        for _ in 0..PAGES {
            let page = ledger.story(key.id(), &before, until).await?;
            told.kept = page.kept;
            let lines = page.lines.into_iter();
            let lines = lines.map(|line| Happening::of(ledger.kind(), line));
            told.happenings.extend(lines);
            let Some(next) = page.next else {
                let stream = ledger.stream();
                let first = self.0.store.first_of_history(&stream, until);
                before = first.await?.unwrap_or_default();
                break;
            };
            before = next;
        }
        told.reaches = Some(ms_of(&before).0)
            .filter(|ms| *ms > 0)
            .map(|ms| UnixMs(ms).to_system());
        told.happenings.reverse();
        Ok(told)
    }

    /// Follows what is done to jobs, from now on, on a connection of its own.
    ///
    /// ```no_run
    /// # async fn example(client: &keyfall::Client) -> keyfall::Result<()> {
    /// use keyfall::Tidings;
    ///
    /// let mut tail = client.tail().prefix("app1:trans:")?.last(20);
    /// loop {
    ///     match tail.next().await? {
    ///         Tidings::Happened(it) => println!("{} {} {it:?}", it.what, it.kind),
    ///         Tidings::Missed(kind) => println!("{kind}: more happened than could be read"),
    ///         _ => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub fn tail(&self) -> Tail {
        let settings = &self.0.settings;
        Tail::new(self.0.store.beside(&settings.link), settings)
    }
}
