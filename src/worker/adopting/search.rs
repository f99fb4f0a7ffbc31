//! Finds keys that were set while nobody listened, and those that were taken away.
//!
//! One instance at a time searches, page by page, and leaves Redis most of its time. Whoever comes
//! after it goes on where it was, or has nothing to do. Keys that were found are looked at as fast as
//! their ledgers take them.

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

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long nobody else searches, should this one be gone after a page. Two that search at the
/// same time, because a page took longer, do no harm.
const TURN: Duration = Duration::from_secs(2);

/// How often one who has to wait asks again; and after a fault.
const AGAIN: Duration = Duration::from_millis(500);

/// The pause after a page, at least, and in proportion to how long it took to find: the expiry
/// cycle of Redis and everybody's calls come first. To that is added what it took to adopt it.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSES: u32 = 4;

/// What a server answers, or this if it is full.
fn unless_full<T>(answer: Result<T>, otherwise: T) -> Result<T> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Full => Ok(otherwise),
        answer => answer,
    }
}

/// Searches one server after each gap.
pub(crate) struct KeySearch {
    server: Arc<Server>,
    adopter: Arc<Adopter>,
    instance: String,
    asked: Notify,
}

impl KeySearch {
    pub(crate) fn new(adopter: Arc<Adopter>) -> Arc<Self> {
        Arc::new(KeySearch {
            server: adopter.server.clone(),
            instance: adopter.instances.id().to_owned(),
            adopter,
            asked: Notify::new(),
        })
    }

    /// Something may have been done to keys unheard, until now.
    pub(crate) fn begin(&self) {
        self.asked.notify_one();
    }

    /// Searches whenever it is asked to, for ever.
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
                        tracing::debug!(glob, %error, "keys to adopt could not be searched for");
                        failed.push(glob);
                        sleep(AGAIN).await;
                    }
                }
                globs = failed;
            }
            self.look_for_missing().await;
        }
    }

    /// By Redis' clock: a search that begins later finds all that went unheard.
    async fn now(&self) -> UnixMs {
        loop {
            match self.server.time(Instant::now() + PATIENCE).await {
                Ok(now) => return now.floor_ms(),
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    /// Sees to it that one whole search for this glob has begun since then, and has ended.
    async fn search(&self, glob: &str, since: UnixMs) -> Result<()> {
        let until = || Instant::now() + PATIENCE;
        loop {
            let known = self.server.search_progress(glob, until()).await?;
            // By a clock that was set back since, one of before seems to be to come.
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
                    // A full server keeps no note; then whoever comes next begins anew.
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
                // What there was no room for is looked at again, and so is what comes after it.
                return match are_all_read {
                    true => Ok(()),
                    false => Err(Error::new(ErrorKind::Full, "there is no room for all keys")),
                };
            }
        }
    }

    /// Whether it is this instance that searches. Where nobody can say so, since the server is
    /// full, all may.
    async fn has_turn(&self) -> Result<bool> {
        let until = Instant::now() + PATIENCE;
        unless_full(
            self.server.may_search(&self.instance, TURN, until).await,
            true,
        )
    }

    /// Has those looked at whose keys should be there, on routes to which a missing key means that
    /// the job is cancelled.
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
                // What is wrong with one ledger does not keep it from the others.
                let Ok((next, ids)) = page else {
                    break;
                };
                let keys = ids.iter().filter_map(|id| served.key(id)).collect();
                let Ok(missing) = self.server.missing_of(keys, until).await else {
                    break;
                };
                let later = Instant::now() + NOTED_WITHIN;
                for key in missing {
                    // It may have been brought forward and have expired a moment ago; by then
                    // whoever heard it has had that noted. One whose time comes meanwhile may
                    // expire, and its job may be running.
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
    /// There are these keys. Returns when those that are adopted have been looked at, so that
    /// whoever goes on behind them misses none; or when one ledger cannot take them, and the rest
    /// shall not wait for it. Whether there was room for all.
    ///
    /// # Errors
    /// If they are to be found again.
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
                        // What is behind large values; or what a full server has no room for, which
                        // is refused when it comes alone.
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
