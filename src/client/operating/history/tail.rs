//! Following what is done to jobs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Happening, ms_of};
use crate::client::Unseen;
use crate::client::operating::partial::PartialView;
use crate::error::Result;
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::settings::ClientSettings;
use crate::store::{Added, HistoryStream, Store, is_of_absence};

/// How long one read waits for news, and how old the list of kinds may be.
const WAIT: Duration = Duration::from_millis(1000);

/// How many entries of each history one read brings at the most, and how many in all: some
/// kibibyte each.
const PAGE: usize = 1000;
const READ: usize = 16_384;

/// How many histories one read is about.
const STREAMS: usize = 512;

/// Follows the histories of kinds; from [`Client::tail`](crate::Client::tail).
///
/// Kinds that are used for the first time are followed from their beginning.
pub struct Tail {
    store: Arc<Store>,
    call_timeout: Duration,
    wait: Duration,
    wanted: Vec<Prefix>,
    last: usize,
    /// The last entry of each history that was read; none before the first read.
    behind: Option<BTreeMap<HistoryStream, String>>,
    /// When the kinds were last looked up.
    looked: Instant,
    /// Which of the reads that share the kinds comes next.
    turn: usize,
    /// The servers that are away, as far as that was told.
    away: BTreeSet<String>,
    news: VecDeque<Tidings>,
}

/// What [`Tail::next`] brings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tidings {
    /// Something was done.
    Happened(Happening),
    /// Entries of this kind may have been trimmed before they could be read, or its history was
    /// deleted: more happened, or the tail was away for too long.
    Missed(Kind),
    /// One of several servers is away. What happens there is told when it is there again.
    Unseen(Unseen),
}

impl Tail {
    pub(super) fn new(store: Arc<Store>, settings: &ClientSettings) -> Self {
        Tail {
            store,
            call_timeout: settings.call_timeout,
            // An answer that is waited for longer counts as a connection that hangs.
            wait: WAIT.min(settings.link.response_timeout / 2),
            wanted: Vec::new(),
            last: 0,
            behind: None,
            looked: Instant::now(),
            turn: 0,
            away: BTreeSet::new(),
            news: VecDeque::new(),
        }
    }

    /// Only jobs whose key begins so. Called several times, it widens what is followed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) if no key can begin so.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.wanted.push(Prefix::parse(prefix)?);
        Ok(self)
    }

    /// Begins with the last so many things that happened, 1,000 at the most; with a prefix that
    /// reaches into the id, as far as the last 1,000 entries tell of them. Defaults to none.
    pub fn last(mut self, count: usize) -> Self {
        self.last = count.min(PAGE);
        self
    }

    /// The next thing that happened; waits for it. What comes of one kind is in order.
    ///
    /// It may be dropped and called again, and goes on where it was, after an error as well.
    ///
    /// # Errors
    /// If Redis does not answer in time, or this user may not read the histories.
    pub async fn next(&mut self) -> Result<Tidings> {
        loop {
            if let Some(one) = self.news.pop_front() {
                return Ok(one);
            }
            self.read().await?;
        }
    }

    /// What has been read and not yet been taken.
    pub fn ready(&mut self) -> Option<Tidings> {
        self.news.pop_front()
    }

    async fn read(&mut self) -> Result<()> {
        let Some(behind) = &self.behind else {
            return self.begin().await;
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
        let all: Vec<(&HistoryStream, &str)> = behind
            .iter()
            .map(|(stream, entry)| (stream, entry.as_str()))
            .collect();
        let parts = all.len().div_ceil(STREAMS).max(1);
        let Some(part) = all.chunks(STREAMS).nth(self.turn % parts) else {
            tokio::time::sleep(WAIT.saturating_sub(self.looked.elapsed())).await;
            return Ok(());
        };
        let wait = self.wait / u32::try_from(parts).unwrap_or(u32::MAX);
        let wait = u64::try_from(wait.as_millis()).unwrap_or(1).max(1);
        let read = self
            .store
            .read_histories(part, page_of(part.len()), wait, self.deadline());
        let added = read.await?;
        let mut missed = Vec::new();
        for one in &added {
            let (stream, entry) = part[one.place];
            let first = self.store.first_of_history(stream, self.deadline()).await?;
            if entry != "0-0" && first.is_some_and(|first| ms_of(&first) > ms_of(entry)) {
                missed.push(Tidings::Missed(stream.kind.clone()));
            }
        }
        let streams: Vec<HistoryStream> =
            part.iter().map(|(stream, _)| (*stream).clone()).collect();
        self.turn = self.turn.wrapping_add(1);
        self.news.extend(missed);
        self.take(&streams, added);
        Ok(())
    }

    /// From here on all that happens is read.
    async fn begin(&mut self) -> Result<()> {
        let mut behind = BTreeMap::new();
        let mut before = Vec::new();
        for stream in self.streams().await? {
            let kind = &stream.kind;
            // Of which most may be about other ids.
            let has_others = |prefix: &Prefix| prefix.covers(kind) && !prefix.of_id().is_empty();
            let entries = match self.last {
                0 => 0,
                _ if self.wanted.iter().any(has_others) => PAGE,
                last => last,
            };
            let read = self
                .store
                .last_of_history(&stream, entries, self.deadline());
            let (last, lines) = match read.await {
                // What happens there is told when the server is there again.
                Err(error) if self.store.is_several() && is_of_absence(&error) => {
                    let now = self.store.time(self.deadline()).await?;
                    (format!("{}-0", now.floor_ms()), Vec::new())
                }
                read => read?,
            };
            let told = lines.into_iter().map(|line| Happening::of(kind, line));
            before.extend(told.filter(|one| self.is_wanted(one)));
            behind.insert(stream, last);
            // What is not among the last of these is not among the last of all.
            before.sort_by_key(|one| one.at);
            let over = before.len().saturating_sub(self.last);
            before.drain(..over);
        }
        self.news.extend(before.into_iter().map(Tidings::Happened));
        self.behind = Some(behind);
        self.looked = Instant::now();
        Ok(())
    }

    fn take(&mut self, streams: &[HistoryStream], added: Vec<Added>) {
        let mut told = Vec::new();
        for Added {
            place, last, lines, ..
        } in added
        {
            let stream = &streams[place];
            let lines = lines.into_iter();
            let lines = lines.map(|line| Happening::of(&stream.kind, line));
            told.extend(lines.filter(|one| self.is_wanted(one)));
            let behind = self.behind.get_or_insert_default();
            behind.insert(stream.clone(), last);
        }
        told.sort_by_key(|one| one.at);
        self.news.extend(told.into_iter().map(Tidings::Happened));
    }

    /// The histories of all shards of the kinds that are followed. Tells who is away, once.
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

    /// Of one call: there may be as many as there are kinds.
    fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    fn is_wanted(&self, one: &Happening) -> bool {
        let id = one.id.as_deref().unwrap_or("");
        let covers = |prefix: &Prefix| prefix.covers(&one.kind) && id.starts_with(prefix.of_id());
        self.wanted.is_empty() || self.wanted.iter().any(covers)
    }
}

/// How many entries of each of so many histories one read brings.
fn page_of(streams: usize) -> usize {
    (READ / streams).min(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_brings_no_more_however_many_histories_it_is_about() {
        assert_eq!(page_of(1), PAGE);
        for streams in 1..=STREAMS {
            let page = page_of(streams);
            assert!(page >= 32 && page * streams <= READ, "{streams}");
        }
    }
}
