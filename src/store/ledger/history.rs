//! The history of a ledger: a capped stream that tells people what was done with its jobs. Scripts
//! write it as their last step and ignore failures; the functions here read it, follow it, and set
//! its length.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::error::Result;
use crate::key::Kind;
use crate::names::Names;
use crate::store::ledger::number;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{KEEP, STORY};
use crate::store::{Lane, Ledger, Server, Store, Word, from_value};

/// How many entries a ledger keeps by default. It equals `KEPT` in `lua/lib/history.lua`.
pub(crate) const KEPT: u64 = 5_000;

/// How many entries one call looks through. Each entry names a kibibyte of jobs at the most.
const PAGE: usize = 500;

/// One transition of one job. The words are listed in `lua/lib/history.lua`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The id of the entry, `ms-number`, by the clock of Redis.
    pub(crate) entry: String,
    /// The transition, such as `scheduled` or `claimed`.
    pub(crate) what: String,
    /// The process that called, `host:pid`.
    pub(crate) by: String,
    /// The id of the job; empty if the entry is about the kind.
    pub(crate) id: String,
    /// The first word of the transition, such as a due time in Unix milliseconds; `-` if it has
    /// none.
    pub(crate) number: String,
    /// The second word of the transition, such as the milliseconds that a run took; `-` if it has
    /// none.
    pub(crate) more: String,
    /// The note, such as the error of a failed attempt; may be empty.
    pub(crate) note: String,
}

/// A page of the history of one job, the newest line first.
#[derive(Debug)]
pub(crate) struct StoryPage {
    /// How many entries the history keeps.
    pub(crate) kept: u64,
    /// The entry behind which the next page begins; `None` at the end.
    pub(crate) next: Option<String>,
    /// The lines about the job and about its kind.
    pub(crate) lines: Vec<Line>,
}

/// The name of the history of one shard of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HistoryStream {
    /// The kind.
    pub(crate) kind: Kind,
    /// The shard, from 0.
    pub(crate) shard: u16,
}

impl HistoryStream {
    /// The key of the stream.
    fn key(&self, names: &Names) -> String {
        names.ledger(&self.kind, self.shard).history
    }
}

/// The interval at which histories on a cluster, or on several servers, are read.
const POLL: Duration = Duration::from_millis(250);

/// One entry of a history, as Redis stores it. It is about a kibibyte at the most. Its lines can take
/// a hundred times as much memory, so they are made when they are needed.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The id of the entry, `ms-number`, by the clock of Redis.
    pub(crate) id: String,
    /// The names and values in turn.
    fields: Vec<Vec<u8>>,
}

/// New entries of one history, as `XREAD` answers them.
#[derive(Debug)]
pub(crate) struct Added {
    /// The index of the history in the request.
    pub(crate) place: usize,
    /// The entries, the oldest first; never empty.
    pub(crate) entries: Vec<Entry>,
}

impl Ledger {
    /// The name of the history of this ledger.
    pub(crate) fn stream(&self) -> HistoryStream {
        HistoryStream {
            kind: self.kind().clone(),
            shard: self.place().shard,
        }
    }

    /// A page of the history of a job, before the entry `before`, or from the newest one if that is
    /// `+`; `lua/story.lua`. One call looks through 500 entries, so a page may be empty and still
    /// have a next one.
    pub(crate) async fn story(&self, id: &str, before: &str, until: Instant) -> Result<StoryPage> {
        let keys: [&str; 2] = [&self.names.calls, &self.names.history];
        let mut cmd = self.call(&STORY, &keys, [].into_iter());
        cmd.arg(id).arg(before).arg(PAGE);
        let mut reply = self.eval(&STORY, &cmd, until).await?.reply;
        let mut page = StoryPage {
            kept: reply.number()?,
            next: Some(reply.text()?).filter(|next| !next.is_empty()),
            lines: Vec::new(),
        };
        while !reply.is_exhausted() {
            page.lines.push(Line {
                entry: reply.text()?,
                what: reply.text()?,
                by: reply.text()?,
                id: id.to_owned(),
                number: reply.text()?,
                more: reply.text()?,
                note: reply.text()?,
            });
        }
        Ok(page)
    }

    /// Sets how many entries the history keeps from now on; `lua/keep.lua`. A history that is too
    /// long is cut with its next entry. It works while Redis is full.
    pub(crate) async fn keep(&self, lane: &mut Lane, entries: u64, until: Instant) -> Result<()> {
        let n = &self.names;
        let keys: [&str; 3] = [&n.calls, &n.lanes, &n.history];
        let mut cmd = self.call(&KEEP, &keys, [].into_iter());
        number(&mut cmd, lane);
        cmd.arg(entries);
        let answers = self.eval_items(&KEEP, &cmd, 1, until).await?;
        match answers[0].answer {
            Word::Kept => Ok(()),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// How many entries the history keeps.
    pub(crate) async fn kept(&self, until: Instant) -> Result<u64> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.calls).arg("history");
        let kept: Option<u64> = from_value(self.server.command(&get, until).await?)?;
        Ok(kept.unwrap_or(KEPT))
    }
}

impl Entry {
    /// The transition; empty if another program wrote the entry.
    pub(crate) fn what(&self) -> &str {
        let what = self.values().map_or(&[][..], |[what, ..]| what);
        std::str::from_utf8(what).unwrap_or_default()
    }

    /// The lines of the jobs with these ids, job by job; an entry about the kind has the id `""`. An
    /// entry that another program wrote has none.
    pub(crate) fn lines(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Line> {
        let Some([what, by, jobs, note]) = self.values() else {
            return Vec::new();
        };
        let text = String::from_utf8_lossy;
        let line = |id: &str, number: &str, more: &str| Line {
            entry: self.id.clone(),
            what: text(what).into_owned(),
            by: text(by).into_owned(),
            id: id.into(),
            number: number.into(),
            more: more.into(),
            note: text(note).into_owned(),
        };
        let jobs = text(jobs);
        if jobs.is_empty() {
            let of_kind = is_wanted("").then(|| line("", "-", "-"));
            return of_kind.into_iter().collect();
        }
        // A colon separates groups, because no id is a colon.
        let alike = jobs.split(" : ").filter_map(|alike| {
            let mut words = alike.split(' ');
            let (number, more) = (words.next()?, words.next()?);
            Some(words.map(move |id| (id, number, more)))
        });
        let wanted = alike.flatten().filter(|(id, ..)| is_wanted(id));
        wanted
            .map(|(id, number, more)| line(id, number, more))
            .collect()
    }

    /// The values of `what`, `by`, `jobs` and `note`.
    fn values(&self) -> Option<[&[u8]; 4]> {
        let [_, what, _, by, _, jobs, _, note] = &self.fields[..] else {
            return None;
        };
        Some([what, by, jobs, note])
    }
}

/// Entries in the form of Redis.
type RawEntries = Vec<(String, Vec<Vec<u8>>)>;

fn entries_of(raw: RawEntries) -> Vec<Entry> {
    let entry = |(id, fields)| Entry { id, fields };
    raw.into_iter().map(entry).collect()
}

impl Added {
    /// New entries; `None` if there are none.
    fn new(place: usize, entries: RawEntries) -> Option<Self> {
        let entries = entries_of(entries);
        (!entries.is_empty()).then_some(Added { place, entries })
    }
}

impl Store {
    /// New entries of several histories. Each is given with the id of the last known entry, and
    /// `limit` entries of each are read at the most. Waits up to `wait_ms` milliseconds for the
    /// first one; the result is empty if none came.
    ///
    /// A single server waits in one blocking `XREAD`; a cluster, and several servers, are read four
    /// times a second.
    pub(crate) async fn read_histories(
        &self,
        behind: &[(&HistoryStream, &str)],
        limit: usize,
        wait_ms: u64,
        until: Instant,
    ) -> Result<Vec<Added>> {
        if self.is_cluster() || self.is_several() {
            return self.poll_histories(behind, limit, wait_ms, until).await;
        }
        let server = self.only()?;
        let names: Vec<String> = behind
            .iter()
            .map(|(stream, _)| stream.key(&self.names))
            .collect();
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT").arg(limit).arg("BLOCK").arg(wait_ms);
        read.arg("STREAMS").arg(&names);
        for (_, entry) in behind {
            read.arg(entry);
        }
        let answer: Option<Vec<(String, RawEntries)>> =
            from_value(server.command(&read, until).await?)?;
        let mut added = Vec::new();
        for (name, entries) in answer.unwrap_or_default() {
            let place = names.iter().position(|own| *own == name);
            added.extend(place.and_then(|place| Added::new(place, entries)));
        }
        Ok(added)
    }

    /// As [`Self::read_histories`], for histories in several slots or on several servers. No single
    /// command waits for all of them, so they are read every [`POLL`].
    async fn poll_histories(
        &self,
        behind: &[(&HistoryStream, &str)],
        limit: usize,
        wait_ms: u64,
        until: Instant,
    ) -> Result<Vec<Added>> {
        let wait = (Instant::now() + Duration::from_millis(wait_ms)).min(until);
        loop {
            let added = self.on_each(until, |it, until| {
                let is_here = |stream: &HistoryStream| {
                    !self.is_several() || self.place_of(&stream.kind, stream.shard) == it.place()
                };
                let all = behind.iter().enumerate();
                let here = all.filter(|(_, (stream, _))| is_here(stream));
                let here = here.map(|(place, (stream, entry))| (place, *stream, *entry));
                Box::pin(it.read_histories(here.collect(), limit, until))
            });
            let added = added.await.of_those_there()?.into_iter().flatten();
            let added: Vec<Added> = added.collect();
            let next = Instant::now() + POLL;
            if !added.is_empty() || behind.is_empty() || next > wait {
                return Ok(added);
            }
            sleep_until(next.into()).await;
        }
    }

    /// The last `entries` entries of a history that come before the end `before`, such as `+` or
    /// `(ms-number`; the newest first.
    pub(crate) async fn last_of_history(
        &self,
        stream: &HistoryStream,
        before: &str,
        entries: usize,
        until: Instant,
    ) -> Result<Vec<Entry>> {
        let mut read = redis::cmd("XREVRANGE");
        read.arg(stream.key(&self.names));
        read.arg(before).arg("-").arg("COUNT").arg(entries);
        let home = self.home_of(&stream.kind, stream.shard);
        let found: RawEntries = from_value(home.command(&read, until).await?)?;
        Ok(entries_of(found))
    }

    /// The id of the oldest entry of a history; `None` if the history is empty.
    pub(crate) async fn first_of_history(
        &self,
        stream: &HistoryStream,
        until: Instant,
    ) -> Result<Option<String>> {
        let mut read = redis::cmd("XRANGE");
        read.arg(stream.key(&self.names));
        read.arg("-").arg("+").arg("COUNT").arg(1);
        let home = self.home_of(&stream.kind, stream.shard);
        let found: RawEntries = from_value(home.command(&read, until).await?)?;
        Ok(found.into_iter().next().map(|it| it.0))
    }
}

impl Server {
    /// The new entries of histories on one server or cluster, given as index, history and last
    /// known entry. It does not wait.
    async fn read_histories(
        &self,
        behind: Vec<(usize, &HistoryStream, &str)>,
        limit: usize,
        until: Instant,
    ) -> Result<Vec<Added>> {
        if behind.is_empty() {
            return Ok(Vec::new());
        }
        let mut reads = redis::pipe();
        for (_, stream, entry) in &behind {
            let read = reads.cmd("XREAD").arg("COUNT").arg(limit);
            read.arg("STREAMS").arg(stream.key(&self.names)).arg(*entry);
        }
        type StreamReply = Option<Vec<(String, RawEntries)>>;
        let answers: Vec<StreamReply> = from_value(self.pipeline(&reads, until).await?)?;
        let found = behind.into_iter().zip(answers);
        let added = found.filter_map(|((place, ..), found)| Added::new(place, found?.pop()?.1));
        Ok(added.collect())
    }
}
