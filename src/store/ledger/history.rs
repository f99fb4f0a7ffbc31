//! The history of a ledger: what was done, for people to read.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::error::Result;
use crate::key::Kind;
use crate::names::Names;
use crate::store::ledger::number;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{KEEP, STORY};
use crate::store::{Lane, Ledger, Server, Store, Word, from_value};

/// How many entries a ledger keeps that was told nothing else: `KEPT` in `lua/lib/history.lua`.
pub(crate) const KEPT: u64 = 5_000;

/// How many entries one call looks through. Each tells of a kibibyte of jobs at the most.
const PAGE: usize = 500;

/// Of one transition, what is told of one job; the words are those of `lua/lib/history.lua`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// `ms-number`, by Redis' clock.
    pub(crate) entry: String,
    pub(crate) what: String,
    pub(crate) by: String,
    /// Empty where it is about the kind.
    pub(crate) id: String,
    pub(crate) number: String,
    pub(crate) more: String,
    pub(crate) note: String,
}

/// A page of what the history tells of a job, the newest first.
#[derive(Debug)]
pub(crate) struct StoryPage {
    /// How many entries the kind keeps.
    pub(crate) kept: u64,
    /// Where the next page begins, if there is one.
    pub(crate) next: Option<String>,
    pub(crate) lines: Vec<Line>,
}

/// The history of one shard of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HistoryStream {
    pub(crate) kind: Kind,
    pub(crate) shard: u16,
}

impl HistoryStream {
    fn key(&self, names: &Names) -> String {
        names.ledger(&self.kind, self.shard).history
    }
}

/// How often the histories of a cluster are read.
const POLL: Duration = Duration::from_millis(250);

/// What was added to one history, as `XREAD` answers.
#[derive(Debug)]
pub(crate) struct Added {
    /// Where it stands among those that were asked for.
    pub(crate) place: usize,
    /// The last entry that was read.
    pub(crate) last: String,
    pub(crate) lines: Vec<Line>,
}

impl Ledger {
    /// Its history.
    pub(crate) fn stream(&self) -> HistoryStream {
        HistoryStream {
            kind: self.kind().clone(),
            shard: self.place().shard,
        }
    }

    /// A page of what the history tells of a job; `lua/story.lua`.
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

    /// How many entries the history keeps from now on; `lua/keep.lua`.
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

impl Added {
    /// What entries tell, if there are some.
    fn new(place: usize, entries: RawEntries) -> Option<Self> {
        Some(Added {
            place,
            last: entries.last()?.0.clone(),
            lines: entries.iter().flat_map(lines_of).collect(),
        })
    }
}

/// Entries as Redis answers them: id, and fields with their values in turn.
type RawEntries = Vec<(String, Vec<Vec<u8>>)>;

impl Store {
    /// What was added to these histories, each behind an entry; waits for some, `wait_ms` at the
    /// most. Up to `limit` entries of each.
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

    /// The same of histories in several slots, which no command waits for.
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

    /// The last lines of a history that was written by now, the oldest first, and the last entry;
    /// `0-0` if it is empty.
    pub(crate) async fn last_of_history(
        &self,
        stream: &HistoryStream,
        entries: usize,
        until: Instant,
    ) -> Result<(String, Vec<Line>)> {
        let mut read = redis::cmd("XREVRANGE");
        read.arg(stream.key(&self.names));
        read.arg("+").arg("-").arg("COUNT").arg(entries.max(1));
        let home = self.home_of(&stream.kind, stream.shard);
        let found: RawEntries = from_value(home.command(&read, until).await?)?;
        let last = found.first().map_or("0-0".to_owned(), |it| it.0.clone());
        let wanted = found.iter().take(entries).rev();
        Ok((last, wanted.flat_map(lines_of).collect()))
    }

    /// The oldest entry of a history, if it has one.
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
    /// What was added to histories of one server, or one cluster, by their places.
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
        type Found = Option<Vec<(String, RawEntries)>>;
        let answers: Vec<Found> = from_value(self.pipeline(&reads, until).await?)?;
        let found = behind.into_iter().zip(answers);
        let added = found.filter_map(|((place, ..), found)| Added::new(place, found?.pop()?.1));
        Ok(added.collect())
    }
}

/// What one entry tells, job by job. An entry that somebody else wrote tells nothing.
fn lines_of((entry, fields): &(String, Vec<Vec<u8>>)) -> Vec<Line> {
    let [_, what, _, by, _, jobs, _, note] = &fields[..] else {
        return Vec::new();
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let line = |id: &str, number: &str, more: &str| Line {
        entry: entry.clone(),
        what: text(what),
        by: text(by),
        id: id.into(),
        number: number.into(),
        more: more.into(),
        note: text(note),
    };
    let jobs = text(jobs);
    if jobs.is_empty() {
        return vec![line("", "-", "-")];
    }
    // No id is a colon.
    let alike = jobs.split(" : ").filter_map(|alike| {
        let mut words = alike.split(' ');
        let (number, more) = (words.next()?, words.next()?);
        Some(words.map(move |id| (id, number, more)))
    });
    alike
        .flatten()
        .map(|(id, number, more)| line(id, number, more))
        .collect()
}
