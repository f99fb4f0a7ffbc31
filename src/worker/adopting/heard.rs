//! Who looks at a key that something was heard of, why, and when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adopter::Adopter;
use super::location::JobLocation;
use crate::handler::MissingKey;
use crate::key::JobKey;
use crate::store::Why;
use crate::worker::served::ServedLedger;

/// After how long the second in rank looks, in case that the first is gone. What happened to a
/// key meanwhile needs one look.
const STAND_IN: Duration = Duration::from_millis(50);

impl Adopter {
    /// This happened to a key that matches one of the globs. Returns what ledgers are new here.
    pub(crate) fn hear(&self, key: &str, event: &[u8]) -> Vec<Arc<ServedLedger>> {
        // It takes its job along no more than an evicted trigger does.
        if event == b"evicted" {
            return Vec::new();
        }
        let key = match JobKey::parse(key) {
            Ok(key) => key,
            Err(error) => {
                self.strays.say_of_name(key, &error);
                return Vec::new();
            }
        };
        let Some(missing) = self.missing(&key) else {
            return Vec::new();
        };
        let new = self.meet(key.kind());
        let served = match self.home_of(&key) {
            Some(JobLocation::Here(served)) => served,
            // Whoever runs it until it has been moved has to know that.
            Some(JobLocation::WasHere(old)) => {
                if event == b"expired" && missing == MissingKey::Cancel {
                    self.hear_expired(&old, &key, missing);
                }
                return new;
            }
            Some(JobLocation::Elsewhere) => {
                self.leave(&key);
                return new;
            }
            None => return new,
        };
        match event {
            b"expired" => self.hear_expired(&served, &key, missing),
            b"del" | b"rename_from" | b"move_from" if self.hearing.demotions().is_some() => {
                self.look_in_turn(&served, key.id(), Why::Gone);
            }
            _ => self.look_in_turn(&served, key.id(), Why::Seen),
        }
        new
    }

    /// All hear of it, and two look.
    fn look_in_turn(&self, served: &Arc<ServedLedger>, id: &str, why: Why) {
        let rank = self.instances.rank_to_look(served, id);
        if rank.claims() {
            self.look_at(served, id, why, Instant::now());
        } else if rank.stands_in() {
            self.look_at(served, id, why, Instant::now() + STAND_IN);
        } else {
            self.others.keep(served, id, why);
        }
    }

    /// An instance is gone: it, and who stands in for it, may have been gone for a while.
    pub(crate) fn somebody_went(&self) {
        for (served, id, why) in self.others.take() {
            self.look_in_turn(&served, &id, why);
        }
    }

    /// This key expired. Where a missing key can mean that its job is cancelled, that is noted at
    /// once, since the job may begin later, and where nobody heard it. Elsewhere it is looked at if
    /// its job is not claimed soon: if it was brought forward and expired before anybody looked,
    /// the job is not known to be due.
    fn hear_expired(&self, served: &Arc<ServedLedger>, key: &JobKey, missing: MissingKey) {
        if missing == MissingKey::Cancel {
            self.expired.hear(key);
            self.look_in_turn(served, key.id(), Why::Over);
        } else if self.instances.rank_to_look(served, key.id()).claims() {
            let soon = Instant::now() + STAND_IN;
            self.look_at(served, key.id(), Why::Over, soon);
        } else {
            self.others.keep(served, key.id(), Why::Over);
        }
    }

    /// These jobs were claimed.
    pub(crate) fn claimed<'a>(&self, served: &ServedLedger, ids: impl Iterator<Item = &'a str>) {
        if !served.adopts {
            return;
        }
        let mut names = self.names.lock().expect("no panic while held");
        if let Some(noted) = names.get_mut(&served.index) {
            ids.for_each(|id| noted.names.forget_expired(id));
        }
    }

    /// A job was not due although its key expired: that may have been brought forward.
    pub(crate) fn expired(&self, served: &Arc<ServedLedger>, id: &str) {
        if served.adopts {
            self.look_at(served, id, Why::Over, Instant::now());
        }
    }
}
