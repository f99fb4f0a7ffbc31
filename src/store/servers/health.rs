//! The health of a worker's Redis: each outage is logged once when it begins, and once when it
//! ends.
//!
//! Many parts of a worker meet the same outage. They report it here, and log for themselves
//! at `debug` only.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};

/// Shorter outages are not logged: a connection that broke and was opened again.
const BLIP: Duration = Duration::from_millis(100);

/// How long events go unheard before it is logged. Longer than the subscription takes to come back
/// after an outage, which has been logged already.
const DEAF: Duration = Duration::from_secs(3);

/// A call that was refused this long ago, and not made since, no longer counts as refused.
const FORGOTTEN: Duration = Duration::from_secs(40);

/// A reason why a server serves no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ailment {
    /// It does not answer.
    Away,
    /// It answers that it is loading, or that it is busy.
    Busy,
    /// It does not let this user in.
    Refusing,
    /// It takes no writes.
    ReadOnly,
    /// It takes no writes because it is a replica.
    Demoted,
}

/// A report on a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HealthReport {
    /// It does not serve, for this reason. Each [`Ailment`] is reported once until it is back.
    Away { error: String },
    /// It serves again, `after` this long.
    Back { after: Duration },
}

/// Receives the reports. Called without a lock held.
type Tell = dyn Fn(HealthReport) + Send + Sync;

/// The health of one server, as one worker sees it. All parts of the worker share it.
pub(crate) struct Health {
    /// Locked for moments only, and never while a report is made.
    state: Mutex<HealthState>,
    /// Receives the reports.
    tell: Box<Tell>,
}

/// The state of a [`Health`], behind its lock.
struct HealthState {
    /// The present outage.
    ill: Option<Illness>,
    /// When it last served. A request that was sent earlier and fails later says nothing new.
    served: Instant,
    /// When the latest failed request was sent.
    failed: Instant,
    /// True if the server was a replica at the last call.
    is_replica: bool,
    /// How often it was found to have become a replica.
    demotions: u64,
    /// The present gap in the events.
    deaf: Option<Deafness>,
    /// Subjects, usually ledgers, of which some calls are refused.
    broken: HashMap<String, Broken>,
}

/// An outage.
struct Illness {
    /// When the first request was sent that failed.
    since: Instant,
    /// The ailments that were reported, each once.
    told: Vec<Ailment>,
}

/// A gap in the events.
struct Deafness {
    /// When the subscription went down, or the latest outage was seen.
    since: Instant,
    /// True if it was logged.
    told: bool,
}

/// A subject with refused calls.
struct Broken {
    /// When the first of its calls was refused.
    since: Instant,
    /// When each call was last refused.
    calls: HashMap<&'static str, Instant>,
}

impl Health {
    /// A server that is well so far; `tell` gets the reports.
    pub(crate) fn new(tell: impl Fn(HealthReport) + Send + Sync + 'static) -> Self {
        Health {
            state: Mutex::new(HealthState {
                ill: None,
                served: Instant::now(),
                failed: Instant::now(),
                is_replica: false,
                demotions: 0,
                deaf: None,
                broken: HashMap::new(),
            }),
            tell: Box::new(tell),
        }
    }

    /// Notes that a request that was sent at `sent` failed for this reason.
    pub(in crate::store) fn fails(&self, ailment: Ailment, sent: Instant, error: &Error) {
        tracing::debug!(?ailment, %error, "Redis is unavailable");
        let mut state = self.lock();
        if sent < state.served {
            return;
        }
        state.failed = state.failed.max(sent);
        if ailment == Ailment::Demoted && !state.is_replica {
            state.is_replica = true;
            state.demotions += 1;
        }
        let ill = state.ill.get_or_insert(Illness {
            since: sent,
            told: Vec::new(),
        });
        if ill.told.contains(&ailment) || ill.since.elapsed() < BLIP {
            return;
        }
        ill.told.push(ailment);
        drop(state);
        let error = error.to_string();
        (self.tell)(HealthReport::Away { error });
    }

    /// Notes that a request that writes, sent at `sent`, was answered: the server serves, unless a
    /// later request failed.
    pub(in crate::store) fn serves(&self, sent: Instant) {
        let mut state = self.lock();
        if sent <= state.failed {
            return;
        }
        let now = Instant::now();
        state.served = now;
        state.is_replica = false;
        let ended = state.ill.take();
        drop(state);
        if let Some(ill) = ended.filter(|ill| !ill.told.is_empty()) {
            let after = now - ill.since;
            (self.tell)(HealthReport::Back { after });
        }
    }

    /// How often the server was found to be a replica so far; nothing while it is one. A replica
    /// announces changes that were made on its primary, and not all of them.
    pub(crate) fn demotions(&self) -> Option<u64> {
        let state = self.lock();
        (!state.is_replica).then_some(state.demotions)
    }

    /// Notes that the subscription is down.
    pub(crate) fn is_deaf(&self, error: &Error) {
        tracing::debug!(%error, "events do not arrive");
        let mut state = self.lock();
        let now = Instant::now();
        let ill = state.ill.is_some();
        let deaf = state.deaf.get_or_insert(Deafness {
            since: now,
            told: false,
        });
        if ill {
            // The outage is logged, and explains the gap.
            deaf.since = now;
        } else if !deaf.told && now - deaf.since >= DEAF {
            deaf.told = true;
            tracing::warn!(
                %error,
                "Redis is available, but events do not arrive; the reconciler still finds jobs"
            );
        }
    }

    /// Notes that the subscription is up.
    pub(crate) fn hears(&self) {
        let ended = self.lock().deaf.take();
        if let Some(deaf) = ended.filter(|deaf| deaf.told) {
            tracing::info!(after = ?deaf.since.elapsed(), "events arrive again");
        }
    }

    /// Notes that a call on this subject, usually a ledger, was answered or refused. The first
    /// refusal of a subject is logged, and so is the end of the last one.
    pub(in crate::store) fn note(
        &self,
        subject: &str,
        call: &'static str,
        refused: Option<&Error>,
    ) {
        let mut state = self.lock();
        let Some(error) = refused else {
            state.works(subject, call);
            return;
        };
        tracing::debug!(subject, call, %error, "refused");
        // An ailment of the whole server is logged already.
        if state.ill.is_some() || is_of_server(error) {
            return;
        }
        let now = Instant::now();
        let is_new = !state.broken.contains_key(subject);
        let broken = state
            .broken
            .entry(subject.to_owned())
            .or_insert_with(|| Broken {
                since: now,
                calls: HashMap::new(),
            });
        broken.calls.insert(call, now);
        if is_new {
            tracing::warn!(
                subject, call, %error,
                "Redis refuses this command; it is tried again until it succeeds"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().expect("no panic while held")
    }
}

impl HealthState {
    /// Notes that a call on a subject was answered.
    fn works(&mut self, subject: &str, call: &'static str) {
        let Some(broken) = self.broken.get_mut(subject) else {
            return;
        };
        broken.calls.remove(call);
        broken.calls.retain(|_, last| last.elapsed() < FORGOTTEN);
        if broken.calls.is_empty() {
            tracing::info!(
                subject, after = ?broken.since.elapsed(),
                "Redis accepts this command again"
            );
            self.broken.remove(subject);
        }
    }
}

/// True if an error concerns the whole server.
fn is_of_server(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::ReadOnly
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn watched() -> (Arc<Mutex<Vec<String>>>, Health) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let health = Health::new({
            let told = told.clone();
            move |report| {
                let text = match report {
                    HealthReport::Away { error } => error,
                    HealthReport::Back { .. } => "back".into(),
                };
                told.lock().unwrap().push(text);
            }
        });
        (told, health)
    }

    fn error(text: &str) -> Error {
        Error::new(ErrorKind::Unavailable, text)
    }

    #[test]
    fn each_reason_is_reported_once_and_the_end_once() {
        let (told, health) = watched();
        let sent = Instant::now();
        std::thread::sleep(BLIP + Duration::from_millis(5));
        for _ in 0..3 {
            health.fails(Ailment::Away, sent, &error("refused"));
        }
        for _ in 0..3 {
            health.fails(Ailment::Busy, Instant::now(), &error("loading"));
        }
        health.fails(Ailment::Away, Instant::now(), &error("refused"));
        let before = Instant::now();
        // The answer to a request that was sent before the latest failure.
        health.serves(sent);
        for _ in 0..2 {
            health.serves(Instant::now());
        }
        // This request was on its way while the server came back.
        health.fails(Ailment::Away, before, &error("late"));
        assert_eq!(*told.lock().unwrap(), ["refused", "loading", "back"]);
    }

    #[test]
    fn a_blip_is_not_reported() {
        let (told, health) = watched();
        health.fails(Ailment::Away, Instant::now(), &error("closed"));
        health.serves(Instant::now());
        assert_eq!(*told.lock().unwrap(), [""; 0]);
    }
}
