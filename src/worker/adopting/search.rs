//! The key search: finds keys that were set or removed while nobody listened.
//!
//! One instance at a time searches a server, page by page, and leaves Redis most of its time. The
//! next instance continues where it stopped, or has nothing to do. Found keys are looked at as fast
//! as their ledgers take them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::adopter::{AT_ONCE, AdoptReply, Adopter, KeyBatch};
use super::confirm::NOTED_WITHIN;
use super::location::JobLocation;
use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;
use crate::store::{Progress, Server, Why, Word};
use crate::time::UnixMs;

/// Time limit of one page.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an instance has its turn after each page; an instance that is gone loses it then. If a
/// page takes longer, two instances search at the same time, which does no harm.
const TURN: Duration = Duration::from_secs(2);

/// How long an instance waits before it asks for its turn again; also the pause after a fault.
const AGAIN: Duration = Duration::from_millis(500);

/// Shortest pause after a page: the expiry cycle of Redis and other calls come first.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause after a page is at least this many times as long as the scan of the page took, plus
/// the time that the adoption of its keys took.
const PAUSES: u32 = 4;

/// Replaces the error of a full server with `otherwise`.
fn unless_full<T>(answer: Result<T>, otherwise: T) -> Result<T> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Full => Ok(otherwise),
        answer => answer,
    }
}

/// Searches the keys of one server after each gap in its events.
pub(crate) struct KeySearch {
    server: Arc<Server>,
    adopter: Arc<Adopter>,
    instance: String,
    asked: Notify,
}

impl KeySearch {
    /// A search that waits for a request.
    pub(crate) fn new(adopter: Arc<Adopter>) -> Arc<Self> {
        Arc::new(KeySearch {
            server: adopter.server.clone(),
            instance: adopter.instances.id().to_owned(),
            adopter,
            asked: Notify::new(),
        })
    }

    /// Requests a search, because changes may have gone unheard until now.
    pub(crate) fn begin(&self) {
        self.asked.notify_one();
    }

    /// Searches after each request and each gap, for ever. A search that fails is repeated.
    pub(crate) async fn run(&self) {
        loop {
            tokio::select! {
                () = self.asked.notified() => {}
                () = self.adopter.hearing.missed() => {}
            }
            let mut globs: Vec<String> = self.adopter.globs().collect();
            if globs.is_empty() {
                continue;
            }
            let since = self.now().await;
            while !globs.is_empty() {
                let mut failed = Vec::new();
                for glob in globs {
                    if let Err(error) = self.search(&glob, since).await {
                        tracing::debug!(glob, %error, "the search for keys to adopt failed");
                        failed.push(glob);
                        sleep(AGAIN).await;
                    }
                }
                globs = failed;
            }
            self.look_for_missing().await;
        }
    }

    /// The time of the server. A search that begins later finds all changes that went unheard
    /// before.
    async fn now(&self) -> UnixMs {
        loop {
            match self.server.time(Instant::now() + PATIENCE).await {
                Ok(now) => return now.floor_ms(),
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    /// Returns when a whole search for this glob, by any instance, has begun after `since` and
    /// ended.
    ///
    /// # Errors
    /// If a call fails, or the server has no room for all keys.
    async fn search(&self, glob: &str, since: UnixMs) -> Result<()> {
        let until = || Instant::now() + PATIENCE;
        loop {
            let known = self.server.search_progress(glob, until()).await?;
            // If the server's clock was set back, an old search seems to begin in the future.
            let now = self.server.time(until()).await?.floor_ms();
            let known = known.filter(|progress| since <= progress.began && progress.began <= now);
            if known
                .as_ref()
                .is_some_and(|progress| progress.cursor.is_none())
            {
                return Ok(());
            }
            if !self.has_turn().await? {
                sleep(AGAIN).await;
                continue;
            }
            let mut progress = known.unwrap_or(Progress {
                began: now,
                cursor: Some("0".to_owned()),
            });
            let mut are_all_read = true;
            let mut renewed = Instant::now();
            while let Some(cursor) = &progress.cursor {
                let began = Instant::now();
                let (next, keys) = self.server.scan_keys(glob, cursor, until()).await?;
                let found = Instant::now();
                are_all_read &= self.adopter.find(&keys).await?;
                let pause = (found - began) * PAUSES + found.elapsed();
                progress.cursor = next;
                if are_all_read {
                    // A full server keeps no note; then the next instance starts from the
                    // beginning.
                    let noted = self.server.note_search(glob, &progress, until()).await;
                    unless_full(noted, ())?;
                }
                sleep(PAUSE.max(pause)).await;
                if renewed.elapsed() > TURN / 3 {
                    renewed = Instant::now();
                    if !self.has_turn().await? {
                        break;
                    }
                }
            }
            self.server.end_search(&self.instance, until()).await?;
            if progress.cursor.is_none() {
                // Keys that found no room are looked at again, and so are the keys after them.
                return match are_all_read {
                    true => Ok(()),
                    false => Err(Error::new(ErrorKind::Full, "there is no room for all keys")),
                };
            }
        }
    }

    /// Whether this instance has the turn to search. If the server is full, it keeps no turns, and
    /// every instance may search.
    async fn has_turn(&self) -> Result<bool> {
        let until = Instant::now() + PATIENCE;
        unless_full(
            self.server.may_search(&self.instance, TURN, until).await,
            true,
        )
    }

    /// Looks at the jobs whose plain keys are missing, on routes where a missing key cancels the
    /// job.
    async fn look_for_missing(&self) {
        for served in self.adopter.served_ledgers.all().iter() {
            let is_here = served.ledger.server() == self.server.place();
            if !is_here || !self.adopter.cancels_missing(served) {
                continue;
            }
            let mut cursor = Some("0".to_owned());
            while let Some(at) = cursor {
                let until = Instant::now() + PATIENCE;
                let now = served.ledger.clock().now();
                let now = now.map_or(UnixMs(0), |now| now.floor_ms());
                let page = served.ledger.adopted(&at, now, until).await;
                served.ledger.note("adopted", &page);
                // An error in one ledger does not stop the search in the others.
                let Ok((next, ids)) = page else {
                    break;
                };
                let keys = ids.iter().filter_map(|id| served.key(id)).collect();
                let Ok(missing) = self.server.missing_of(keys, until).await else {
                    break;
                };
                let later = Instant::now() + NOTED_WITHIN;
                for key in missing {
                    // The key may have been brought forward and have expired a moment ago; the
                    // instance that heard that has noted it by `later`. A key whose time comes
                    // meanwhile may expire too, and its job may be running.
                    self.adopter.look_at(served, key.id(), Why::Missed, later);
                }
                if !self.adopter.has_room(served).await {
                    break;
                }
                cursor = next;
                sleep(PAUSE).await;
            }
        }
    }
}

impl Adopter {
    /// Looks at these keys, as far as routes adopt them. Returns when all have been looked at, so
    /// that a search that continues behind them misses none; or when a ledger has no room for its
    /// keys, so that the other ledgers need not wait for it. Returns whether there was room for
    /// all.
    ///
    /// # Errors
    /// If a call fails and the keys have to be found again.
    pub(super) async fn find(&self, keys: &[String]) -> Result<bool> {
        let mut found: HashMap<usize, KeyBatch> = HashMap::new();
        let keys = keys.iter().map(|key| JobKey::parse(key.as_str()));
        for key in keys.filter_map(std::result::Result::ok) {
            if self.missing(&key).is_none() {
                continue;
            }
            self.meet(key.kind());
            let served = match self.home_of(&key) {
                Some(JobLocation::Here(served)) => served,
                Some(JobLocation::Elsewhere) => {
                    self.leave(&key);
                    continue;
                }
                Some(JobLocation::WasHere(_)) | None => continue,
            };
            let batch = found.entry(served.index).or_insert_with(|| KeyBatch {
                served,
                items: Vec::new(),
            });
            batch.items.push((key, Why::Seen));
        }
        let mut fit = true;
        for KeyBatch { served, mut items } in found.into_values() {
            let mut is_new = true;
            while !items.is_empty() {
                let rest = items.split_off(items.len().min(AT_ONCE));
                let batch = KeyBatch {
                    served: served.clone(),
                    items,
                };
                let AdoptReply { batch, answers } = self.call(batch, is_new).await;
                is_new = false;
                items = rest;
                match answers {
                    Ok(answers) => {
                        // Keys behind large values were not read, or a full server had no room for
                        // all at once; such a server refuses a key that comes alone.
                        let all = batch.items.into_iter().zip(answers);
                        let unread = all.filter(|(_, it)| it.answer == Word::Unread);
                        items.extend(unread.map(|(item, _)| item));
                    }
                    Err(error) if error.kind() == ErrorKind::Full => fit = false,
                    Err(error) if error.is_retryable() => return Err(error),
                    answers => self.land(AdoptReply { batch, answers }),
                }
            }
        }
        Ok(fit)
    }
}
