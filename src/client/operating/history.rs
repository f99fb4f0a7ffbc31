//! Histories: the changes to jobs and kinds, as the ledgers record them.
//!
//! A [`Happening`] is one entry of a history. `tail` follows histories as they grow; `words` writes
//! entries as sentences.

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

/// The most pages of a history that are read for one job.
const PAGES: usize = 400;

/// The history of one job.
pub(super) struct HistoryEntry {
    /// The number of entries that the kind keeps.
    pub(super) kept: u64,
    /// The time of the oldest entry that was read.
    pub(super) reaches: Option<SystemTime>,
    /// The entries about the job and about its kind, the oldest first.
    pub(super) happenings: Vec<Happening>,
}

/// A change to a job or to a kind, from a history; from [`Client::happenings`] and
/// [`Client::tail`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Happening {
    /// The kind of the job.
    pub kind: Kind,
    /// The id of the job; `None` for a change to the kind.
    pub id: Option<String>,
    /// The change.
    pub what: What,
    /// The time, by Redis' clock.
    pub at: SystemTime,
    /// The process that made it, as `host:process`. Empty if only the record of the job tells of
    /// it.
    pub by: String,
    /// The due time of the job after the change; for a claim or a takeover, the due time that it
    /// had.
    pub due: Option<SystemTime>,
    /// For a claim: how the job was found.
    pub source: Option<Source>,
    /// For a failed attempt: its number, counted from 1. For a takeover: the number of attempts
    /// begun since the last run ended.
    pub attempt: Option<u32>,
    /// For the end of a run: the time since its claim.
    pub took: Option<Duration>,
    /// The number of the dead letter.
    pub letter: Option<u64>,
    /// The error of the attempt, the reason of the dead letter, or the finding of an audit; cut to
    /// about 200 bytes. If the change came through the plain key of an adopted job: the change of
    /// that key, such as `its key was set`.
    pub note: Option<String>,
}

macro_rules! what {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// The changes to a job or a kind that a history records.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum What {
            $($(#[$doc])* $name,)*
            /// A change that this version does not know.
            Unknown,
        }

        impl What {
            /// All changes that this version knows.
            pub const ALL: &[What] = &[$(What::$name,)*];

            /// The word for it, such as `scheduled`.
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
    /// The job was scheduled, and no job had its key.
    Scheduled = "scheduled",
    /// The job was scheduled, and replaced a pending one.
    Replaced = "replaced",
    /// The job was scheduled during a run of its key, and follows that run.
    Succeeds = "succeeds",
    /// The run before the job has ended: the job is pending now.
    Follows = "follows",
    /// A run of a recurring job has ended: its next occurrence is pending now.
    Recurs = "recurs",
    /// The job got another due time.
    Postponed = "postponed",
    /// The job was made due at once.
    Fired = "fired",
    /// The job got another payload.
    Updated = "updated",
    /// The job was cancelled, and is gone.
    Cancelled = "cancelled",
    /// The job was cancelled during its run: the run is told to stop.
    Stopping = "stopping",
    /// An instance claimed the job.
    Claimed = "claimed",
    /// The lease had lapsed, and another instance claimed the job.
    Lapsed = "lapsed",
    /// The job ended with success.
    Done = "done",
    /// The job ended without a run, because it was too late; the note says how late.
    Skipped = "skipped",
    /// An attempt failed, and is retried.
    Failed = "failed",
    /// The run asked to run again, without a failure.
    Again = "again",
    /// The run was snoozed.
    Snoozed = "snoozed",
    /// The job was returned before it ran.
    Returned = "returned",
    /// The run is not repeated: a newer schedule takes its place.
    Superseded = "superseded",
    /// The job became a dead letter.
    Buried = "buried",
    /// A dead letter became pending again.
    Requeued = "requeued",
    /// A dead letter was deleted.
    Deleted = "deleted",
    /// The job or dead letter was restored from a backup.
    Restored = "restored",
    /// The job came from another shard during a reshard.
    Moved = "moved",
    /// An audit repaired a flaw.
    Repaired = "repaired",
    /// The kind was paused.
    Paused = "paused",
    /// The pause of the kind ended.
    Resumed = "resumed",
    /// The [limit](Client::limit) of the kind was set.
    Limited = "limited",
    /// The limit of the kind was removed.
    Unlimited = "unlimited",
}

impl What {
    /// Parses a word of [`as_str`](Self::as_str).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`], with the list of words, if it is none of them.
    pub fn parse(word: &str) -> Result<Self> {
        What::known(word).ok_or_else(|| {
            let words: Vec<&str> = What::ALL.iter().map(|what| what.as_str()).collect();
            Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{word:?} is not a change in a history: write one of {}",
                    words.join(", ")
                ),
            )
        })
    }

    /// The change for a word of a history; [`What::Unknown`] for an unknown word.
    fn of(word: &str) -> Self {
        What::known(word).unwrap_or(What::Unknown)
    }

    fn known(word: &str) -> Option<Self> {
        let mut all = What::ALL.iter().copied();
        all.find(|what| what.as_str() == word)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Happening {
    /// Reads one line of a history.
    pub(super) fn of(kind: &Kind, line: Line) -> Self {
        let what = What::of(&line.what);
        let number: Option<u64> = line.number.parse().ok();
        let more: Option<u64> = line.more.parse().ok();
        let is_letter = matches!(what, What::Buried | What::Deleted);
        let is_of_kind = matches!(
            what,
            What::Paused | What::Resumed | What::Limited | What::Unlimited
        );
        let has_run = !matches!(what, What::Claimed | What::Lapsed);
        let (attempt, note) = match what {
            What::Failed | What::Buried => match line.note.split_once(' ') {
                Some((attempt, error)) => (attempt.parse().ok(), error.to_owned()),
                None => (None, line.note),
            },
            What::Lapsed => (more.and_then(|claims| claims.try_into().ok()), line.note),
            _ => match words::done_to_key(&line.note) {
                Some(done) => (None, done.to_string()),
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

    /// An entry from a step in the record of a job.
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

    /// The key of the job; `None` for a change to the kind.
    pub fn key(&self) -> Option<JobKey> {
        self.kind.key(self.id.as_deref()?).ok()
    }

    /// For a claim or a takeover: the time from the due time to the claim; `None` for other
    /// changes.
    pub fn lag(&self) -> Option<Duration> {
        if !matches!(self.what, What::Claimed | What::Lapsed) {
            return None;
        }
        // If the clock of the server went back, the lag is zero.
        Some(self.at.duration_since(self.due?).unwrap_or_default())
    }
}

/// The time and the number of an entry, `ms-number`.
fn ms_of(entry: &str) -> (u64, u64) {
    let (ms, number) = entry.split_once('-').unwrap_or((entry, "0"));
    (ms.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

/// A call to [`Selection::keep_history`]; sent when it is awaited. Answers the kinds, in order.
#[must_use = "nothing is changed until it is awaited"]
pub struct KeepHistory<'a> {
    selection: Selection<'a>,
    entries: u64,
}

impl<'a> Selection<'a> {
    /// Sets the number of entries that the histories of these kinds keep, up to 1,000,000. With 0,
    /// the history is deleted and nothing more is written. Returns the kinds.
    ///
    /// The setting applies to kinds that exist; a kind that is used for the first time later gets
    /// the default. One entry tells one transition of all jobs that one call changed, in at most
    /// about a kibibyte. A prefix that extends into the id is refused. If one of several servers is
    /// away, the call changes the other servers and fails: repeat it when the server is back.
    ///
    /// # Errors
    /// When it is awaited: if the prefix is not valid or extends into the id, `entries` is above
    /// 1,000,000, Redis does not answer in time, or one of several servers is away.
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
    /// The number of entries that the history of a kind, `app:module:biz`, keeps; 0 if it is off.
    ///
    /// # Errors
    /// If the kind is not valid, or Redis does not answer in time.
    pub async fn history_kept(&self, kind: &str) -> Result<u64> {
        let kind = Kind::parse(kind)?;
        let kind_shards = self.kind_shards_to_look(kind.as_str())?;
        kind_shards.shard_clients()[0]
            .ledger
            .kept(self.deadline())
            .await
    }

    /// The history of all jobs that had this key, the oldest first.
    ///
    /// # Errors
    /// If the key is not valid, or Redis does not answer in time.
    pub async fn happenings(&self, key: impl IntoJobKey) -> Result<Vec<Happening>> {
        let key = key.into_job_key()?;
        Ok(self.told_of(&key, self.deadline()).await?.happenings)
    }

    /// Reads the history of one job, from the newest page to the oldest.
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

    /// The same, in one ledger.
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

    /// Follows the changes to jobs from now on, over a connection of its own. Nothing is read
    /// before [`Tail::next`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_that_a_script_tells_is_a_change_and_is_described() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap();
        let paths = folder.map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| path.is_file()) {
            let script = std::fs::read_to_string(&path).unwrap();
            for told in script.split("(story, '").skip(1) {
                let word = told.split('\'').next().unwrap();
                assert_ne!(
                    What::of(word),
                    What::Unknown,
                    "`What` in src/client/operating/history.rs lacks {word:?}, which {} tells",
                    path.display()
                );
            }
        }
        let described = include_str!("../../../lua/lib/history.lua");
        for what in What::ALL {
            assert!(
                described.contains(what.as_str()),
                "the head of lua/lib/history.lua lacks {:?}",
                what.as_str()
            );
        }
    }
}
