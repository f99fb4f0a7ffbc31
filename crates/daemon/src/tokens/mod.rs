//! Tokens, by which the HTTP API knows its callers and their rights.
//!
//! | part | contents |
//! |---|---|
//! | [`secret`] | the text of a token, and its stored form |
//! | [`grant`] | the rights of a token |
//! | [`mod@file`] | the file that keeps them |
//!
//! [`Tokens`] holds the present contents of the file.

mod file;
mod grant;
mod secret;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Timestamp;
use subtle::ConstantTimeEq;

pub use file::TokenFile;
pub use grant::{Grant, Scope};

use file::Stamp;

/// The shortest time between two looks at the file: a change takes effect within a second, also for
/// open requests that check their rights now and then.
const LOOK: Duration = Duration::from_millis(500);

/// The tokens of a file, which is read again when it changes.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    /// The shortest time between two looks at the file.
    look: Duration,
    known: Mutex<Known>,
}

type ById = HashMap<String, Arc<Grant>>;

#[derive(Debug)]
struct Known {
    grants: Arc<ById>,
    /// The stamp of the file that was accepted last.
    stamp: Option<Stamp>,
    /// Why the present file is refused; it is logged once. Empty if it is accepted.
    fault: String,
    looked: Instant,
}

impl Tokens {
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let stamp = Stamp::of(path);
        Ok(Tokens {
            path: path.to_owned(),
            look: LOOK,
            known: Mutex::new(Known {
                grants: Arc::new(read(path)?),
                stamp,
                fault: String::new(),
                looked: Instant::now(),
            }),
        })
    }

    /// The rights of the presented token, if it is known and has not expired. The check takes as
    /// long for any text of the same length.
    ///
    /// It looks at the file twice a second at the most. If the file is damaged, or gone, the known
    /// tokens stay, and an error is logged.
    pub fn check(&self, bearer: &str) -> Option<Arc<Grant>> {
        let presented = secret::hash(bearer);
        let grants = self.current();
        let grant = secret::id(bearer).and_then(|id| grants.get(id));
        // An unknown token is compared, too.
        let kept = grant.map_or([0; 32], |grant| grant.sha256);
        let is_same = bool::from(kept.ct_eq(&presented));
        let grant = grant.filter(|_| is_same)?;
        (!grant.is_expired(Timestamp::now())).then(|| grant.clone())
    }

    fn current(&self) -> Arc<ById> {
        let mut known = self.known.lock().expect("no panic while held");
        if known.looked.elapsed() >= self.look {
            known.looked = Instant::now();
            // The stamp is taken before the read: a later write gives another stamp the next time.
            let stamp = Stamp::of(&self.path);
            if stamp != known.stamp {
                match read(&self.path) {
                    Ok(grants) => {
                        tracing::info!(tokens = grants.len(), "the tokens were read again");
                        known.grants = Arc::new(grants);
                        known.stamp = stamp;
                        known.fault.clear();
                    }
                    // The stamp stays: the file may become readable without another stamp.
                    Err(error) => {
                        let fault = format!("{error:#}");
                        if fault != known.fault {
                            tracing::error!(
                                "the tokens have changed and cannot be used, so the old tokens \
                                 stay: {fault}"
                            );
                            known.fault = fault;
                        }
                    }
                }
            }
        }
        known.grants.clone()
    }
}

fn read(path: &Path) -> Result<ById> {
    let file = TokenFile::read(path)?;
    let by_id = |grant: Grant| (grant.id.clone(), Arc::new(grant));
    Ok(file.grants.into_iter().map(by_id).collect())
}

#[cfg(test)]
mod tests;
