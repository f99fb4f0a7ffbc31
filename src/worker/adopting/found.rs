//! Looks at keys that were found, as fast as their ledgers take them.

use std::collections::HashMap;

use super::adopter::{AT_ONCE, AdoptReply, Adopter, KeyBatch};
use super::location::JobLocation;
use crate::error::{ErrorKind, Result};
use crate::key::JobKey;
use crate::store::{Why, Word};

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
