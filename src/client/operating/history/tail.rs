//! [`Tail`]: follows histories as they grow, over a connection of its own.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::{Happening, What, ms_of};
use crate::client::Unseen;
use crate::client::operating::partial::PartialView;
use crate::error::Result;
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::settings::ClientSettings;
use crate::store::{Added, Entry, HistoryStream, Store, is_of_absence};

/// The wait of one read for new entries, and the age at which the list of kinds is read again.
const WAIT: Duration = Duration::from_millis(1000);

/// The most entries of all histories in one read, and so the most that a tail holds: about a kibibyte
/// each.
const READ: usize = 512;

/// The number of histories in one read, each with one entry at least.
const STREAMS: usize = READ;

/// The most past changes that a tail begins with, and the most entries of one history that it
/// searches for them.
const MOST_LAST: usize = 1000;

/// Follows the histories of kinds; from [`Client::tail`](crate::Client::tail).
///
/// A kind that is used for the first time is followed from its beginning.
///
/// A tail holds at most 512 entries of about a kibibyte each, and the changes that one further
/// entry tells. It reads on when the caller has taken them.
pub struct Tail {
    store: Arc<Store>,
    call_timeout: Duration,
    /// How long one read waits for new entries.
    wait: Duration,
    /// The prefixes of the jobs that are followed; all jobs, if it is empty.
    wanted: Vec<Prefix>,
    /// The changes that are followed; all of them, if it is empty.
    only: HashSet<What>,
    /// The number of past changes that the tail begins with.
    last: usize,
    /// The last entry that was read from each history; `None` before the first read.
    behind: Option<BTreeMap<HistoryStream, String>>,
    /// When the list of kinds was last read.
    looked: Instant,
    /// The number of the next read; reads take turns on groups of histories.
    turn: usize,
    /// Histories that filled their share of the last read: they have more entries.
    full: BTreeSet<HistoryStream>,
    /// The servers that are away and were reported.
    away: BTreeSet<String>,
    /// The items that come before `entries`.
    news: VecDeque<Tidings>,
    /// The entries that were read, in the order of their times.
    entries: VecDeque<(Kind, Entry)>,
}

/// The items of a [`Tail`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tidings {
    /// A change to a job or a kind.
    Happened(Happening),
    /// Entries of this kind may be missing: they were trimmed before they could be read, or the
    /// history was deleted. More happened than could be read, or the tail was away for too long.
    Missed(Kind),
    /// One of several servers is away. Its entries follow when it is back.
    Unseen(Unseen),
}

impl Tail {
    /// A tail of all jobs, from now on. `store` has a connection of its own, because reads block
    /// it.
    pub(super) fn new(store: Arc<Store>, settings: &ClientSettings) -> Self {
        Tail {
            store,
            call_timeout: settings.call_timeout,
            // A longer wait for an answer would count as a hung connection.
            wait: WAIT.min(settings.link.response_timeout / 2),
            wanted: Vec::new(),
            only: HashSet::new(),
            last: 0,
            behind: None,
            looked: Instant::now(),
            turn: 0,
            full: BTreeSet::new(),
            away: BTreeSet::new(),
            news: VecDeque::new(),
            entries: VecDeque::new(),
        }
    }

    /// Follows only jobs whose keys begin with this text. Several prefixes add up. Defaults to all
    /// jobs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) if no key can begin with this text.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.wanted.push(Prefix::parse(prefix)?);
        Ok(self)
    }

    /// Follows only these changes. Several calls add up. Defaults to all changes.
    pub fn only(mut self, changes: impl IntoIterator<Item = What>) -> Self {
        self.only.extend(changes);
        self
    }

    /// Begins with the last `count` changes, at most 1,000; [`only`](Self::only) selects from these.
    /// With a prefix that extends into the id, only the last 1,000 entries of each history are
    /// searched. Defaults to 0.
    pub fn last(mut self, count: usize) -> Self {
        self.last = count.min(MOST_LAST);
        self
    }

    /// Notes the ends of the histories: the tail delivers the changes after this call. The first
    /// [`next`](Self::next) does so itself if `begin` was not called.
    ///
    /// # Errors
    /// If Redis does not answer in time, or this user may not read the histories.
    pub async fn begin(&mut self) -> Result<()> {
        if self.behind.is_none() {
            self.note_ends().await?;
        }
        Ok(())
    }

    /// Waits for the next item. Entries of one kind are in order.
    ///
    /// The call may be dropped and made again, and continues, also after an error.
    ///
    /// # Errors
    /// If Redis does not answer in time, or this user may not read the histories.
    pub async fn next(&mut self) -> Result<Tidings> {
        loop {
            if let Some(one) = self.ready() {
                return Ok(one);
            }
            self.read().await?;
        }
    }

    /// The next item that was already read; `None` if [`next`](Self::next) would have to wait.
    pub fn ready(&mut self) -> Option<Tidings> {
        loop {
            if let Some(one) = self.news.pop_front() {
                return Some(one);
            }
            let (kind, entry) = self.entries.pop_front()?;
            let told = self.told_by(&kind, &entry);
            self.news.extend(told.into_iter().map(Tidings::Happened));
        }
    }

    /// Reads one group of histories, or the histories that have more entries, or the list of kinds
    /// if its last read is too old.
    async fn read(&mut self) -> Result<()> {
        let Some(behind) = &self.behind else {
            return self.note_ends().await;
        };
        if self.looked.elapsed() >= WAIT {
            let streams = self.streams().await?;
            let behind = self.behind.get_or_insert_default();
            for stream in streams {
                behind.entry(stream).or_insert_with(|| "0-0".to_owned());
            }
            self.looked = Instant::now();
            return Ok(());
        }
        // One busy history among many has a small share of each read. The histories that have more
        // entries are read every other time, so that they hold up no other history.
        let full = std::mem::take(&mut self.full);
        let is_turn = full.is_empty();
        let all: Vec<(&HistoryStream, &str)> = behind
            .iter()
            .filter(|(stream, _)| is_turn || full.contains(stream))
            .map(|(stream, entry)| (stream, entry.as_str()))
            .collect();
        let parts = all.len().div_ceil(STREAMS).max(1);
        let Some(part) = all.chunks(STREAMS).nth(self.turn % parts) else {
            tokio::time::sleep(WAIT.saturating_sub(self.looked.elapsed())).await;
            return Ok(());
        };
        let wait = match is_turn {
            true => self.wait / u32::try_from(parts).unwrap_or(u32::MAX),
            false => Duration::ZERO,
        };
        let wait = u64::try_from(wait.as_millis()).unwrap_or(1).max(1);
        let page = page_of(part.len());
        let read = self.store.read_histories(part, page, wait, self.deadline());
        let added = read.await?;
        // A history of which nothing was read before has no missed entries.
        let looks = { added.iter() }.filter(|one| part[one.place].1 != "0-0");
        let looks = looks.map(async |one| {
            let (stream, entry) = part[one.place];
            let first = self.store.first_of_history(stream, self.deadline()).await?;
            let is_gone = first.is_some_and(|first| ms_of(&first) > ms_of(entry));
            Ok(is_gone.then(|| Tidings::Missed(stream.kind.clone())))
        });
        let missed: Result<Vec<Option<Tidings>>> = try_join_all(looks).await;
        let missed = missed?;
        let streams: Vec<HistoryStream> =
            part.iter().map(|(stream, _)| (*stream).clone()).collect();
        if is_turn {
            self.turn = self.turn.wrapping_add(1);
            let full = added.iter().filter(|one| one.entries.len() == page);
            self.full = full.map(|one| streams[one.place].clone()).collect();
        }
        self.news.extend(missed.into_iter().flatten());
        self.take(&streams, added);
        Ok(())
    }

    /// Starts the tail: reads the last entries, and notes the end of each history.
    async fn note_ends(&mut self) -> Result<()> {
        let mut behind = BTreeMap::new();
        let mut before = Vec::new();
        for stream in self.streams().await? {
            let (last, told) = match self.last_of(&stream).await {
                // Its entries follow when the server is back.
                Err(error) if self.store.is_several() && is_of_absence(&error) => {
                    let now = self.store.time(self.deadline()).await?;
                    (format!("{}-0", now.floor_ms()), Vec::new())
                }
                read => read?,
            };
            before.extend(told);
            behind.insert(stream, last);
            // Of the changes so far only the last `self.last` can be among the last of all
            // histories.
            before.sort_by_key(|one| one.at);
            let over = before.len().saturating_sub(self.last);
            before.drain(..over);
        }
        before.retain(|one| self.is_followed(one.what));
        self.news.extend(before.into_iter().map(Tidings::Happened));
        self.behind = Some(behind);
        self.looked = Instant::now();
        Ok(())
    }

    /// The last wanted changes of one history, the oldest first, and the id of its last entry; `0-0`
    /// if it is empty.
    async fn last_of(&self, stream: &HistoryStream) -> Result<(String, Vec<Happening>)> {
        // Most entries may be about other ids.
        let has_others =
            |prefix: &Prefix| prefix.covers(&stream.kind) && !prefix.of_id().is_empty();
        let mut entries = match self.last {
            0 => 0,
            _ if self.wanted.iter().any(has_others) => MOST_LAST,
            last => last,
        };
        let mut last = None;
        let (mut before, mut told) = ("+".to_owned(), Vec::new());
        loop {
            let limit = entries.clamp(1, READ);
            let read = self
                .store
                .last_of_history(stream, &before, limit, self.deadline());
            let page = read.await?;
            let newest = page.first().map_or("0-0", |entry| &entry.id);
            last.get_or_insert_with(|| newest.to_owned());
            for entry in page.iter().take(entries) {
                told.extend(self.told_by(&stream.kind, entry).into_iter().rev());
                if told.len() >= self.last {
                    break;
                }
            }
            entries = entries.saturating_sub(limit);
            match page.last() {
                Some(oldest) if page.len() == limit && entries > 0 && told.len() < self.last => {
                    before = format!("({}", oldest.id);
                }
                _ => break,
            }
        }
        told.truncate(self.last);
        told.reverse();
        Ok((last.unwrap_or_default(), told))
    }

    /// Queues new entries in the order of their times.
    fn take(&mut self, streams: &[HistoryStream], added: Vec<Added>) {
        let mut read = Vec::new();
        for Added { place, entries } in added {
            let stream = &streams[place];
            if let Some(last) = entries.last() {
                let behind = self.behind.get_or_insert_default();
                behind.insert(stream.clone(), last.id.clone());
            }
            let followed = entries
                .into_iter()
                .filter(|entry| self.is_followed(What::of(entry.what())));
            read.extend(followed.map(|entry| (stream.kind.clone(), entry)));
        }
        read.sort_by_key(|(_, entry)| ms_of(&entry.id).0);
        self.entries.extend(read);
    }

    /// The changes of the wanted jobs that an entry tells of.
    fn told_by(&self, kind: &Kind, entry: &Entry) -> Vec<Happening> {
        let lines = entry.lines(|id| self.is_wanted(kind, id)).into_iter();
        lines.map(|line| Happening::of(kind, line)).collect()
    }

    /// The histories of all shards of the followed kinds. Reports each server that is away once.
    async fn streams(&mut self) -> Result<Vec<HistoryStream>> {
        let (mut kinds, away) = self.store.kinds_seen(self.deadline()).await?;
        let unseen = PartialView::new(&self.store, away).unseen();
        let before = std::mem::take(&mut self.away);
        self.away = unseen.iter().map(|one| one.server.clone()).collect();
        let new = unseen
            .into_iter()
            .filter(|one| !before.contains(&one.server));
        self.news.extend(new.map(Tidings::Unseen));
        kinds.retain(|kind| {
            self.wanted.is_empty() || self.wanted.iter().any(|prefix| prefix.covers(kind))
        });
        let shards = |kind: Kind| {
            let ledgers = self.store.layout_of(kind.as_str()).ledgers();
            (0..ledgers).map(move |shard| HistoryStream {
                kind: kind.clone(),
                shard,
            })
        };
        Ok(kinds.into_iter().flat_map(shards).collect())
    }

    /// The deadline of one call; one read may make as many calls as there are kinds.
    fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    /// Whether a job is followed; an empty id means the kind.
    fn is_wanted(&self, kind: &Kind, id: &str) -> bool {
        let covers = |prefix: &Prefix| prefix.covers(kind) && id.starts_with(prefix.of_id());
        self.wanted.is_empty() || self.wanted.iter().any(covers)
    }

    fn is_followed(&self, what: What) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }
}

/// The number of entries of each history in one read of this many histories.
fn page_of(streams: usize) -> usize {
    READ / streams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_returns_no_more_entries_for_many_histories() {
        for streams in 1..=STREAMS {
            let page = page_of(streams);
            assert!(page >= 1 && page * streams <= READ, "{streams}");
        }
    }
}
