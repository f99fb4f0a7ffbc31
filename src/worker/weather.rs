//! Says once what is wrong with Redis, and once that it is over.
//!
//! During an outage every part of a worker meets the same fault, again and again. Each reports
//! it here, or has the store report it, and goes on.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::notice::{Notice, Notices};
use crate::error::{Error, ErrorKind};
use crate::store::OnFault;

/// For how long no event may be heard, while Redis answers otherwise, before it is told.
const DEAF: Duration = Duration::from_secs(2);

/// What is known to be wrong.
pub(crate) struct Weather {
    notices: Notices,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outage: Option<Outage>,
    deafness: Option<Deafness>,
}

struct Outage {
    since: Instant,
    kind: ErrorKind,
}

struct Deafness {
    since: Instant,
    error: Error,
    told: bool,
}

impl Weather {
    pub(crate) fn new(notices: Notices) -> Arc<Self> {
        Arc::new(Weather {
            notices,
            state: Mutex::default(),
        })
    }

    /// What a store calls with every fault.
    pub(crate) fn on_fault(self: &Arc<Self>) -> OnFault {
        let weather = self.clone();
        Arc::new(move |error| weather.fault(error))
    }

    /// A call failed. Whoever made it tries again, if that can help.
    pub(crate) fn fault(&self, error: &Error) {
        let kind = match error.kind() {
            ErrorKind::OutcomeUnknown => ErrorKind::Unavailable,
            kind => kind,
        };
        let mut state = self.lock();
        let since = match &state.outage {
            Some(known) if known.kind == kind => return,
            Some(known) => known.since,
            None => Instant::now(),
        };
        state.outage = Some(Outage { since, kind });
        drop(state);
        self.notices.tell(&Notice::Away {
            kind,
            reason: error.to_string(),
        });
    }

    /// A beat arrived, which Redis takes only if it is there and takes writes.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        let outage = state.outage.take();
        if let Some(deafness) = &mut state.deafness {
            if outage.is_some() {
                // The outage explains the silence so far.
                deafness.since = Instant::now();
            } else if !deafness.told && deafness.since.elapsed() > DEAF {
                deafness.told = true;
                let error = &deafness.error;
                tracing::warn!(%error, "events are not heard; jobs are found by sweeping");
            }
        }
        drop(state);
        if let Some(outage) = outage {
            self.notices.tell(&Notice::Back {
                after: outage.since.elapsed(),
            });
        }
    }

    /// Events are not heard.
    pub(crate) fn hears_nothing(&self, error: Error) {
        let mut state = self.lock();
        if state.deafness.is_none() {
            state.deafness = Some(Deafness {
                since: Instant::now(),
                error,
                told: false,
            });
        }
    }

    /// Events are heard.
    pub(crate) fn hears(&self) {
        let deafness = self.lock().deafness.take();
        if deafness.is_some_and(|deafness| deafness.told) {
            tracing::info!("events are heard again");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> (Arc<Weather>, Arc<Mutex<Vec<Notice>>>) {
        let told: Arc<Mutex<Vec<Notice>>> = Arc::default();
        let list = told.clone();
        let notices = Notices::to(move |notice| list.lock().unwrap().push(notice.clone()));
        (Weather::new(notices), told)
    }

    #[test]
    fn an_outage_is_told_once_and_its_end_once() {
        let (weather, told) = told();
        weather.clear();
        let refused = Error::new(ErrorKind::Unavailable, "refused");
        for _ in 0..5 {
            weather.on_fault()(&refused);
            weather.fault(&Error::new(ErrorKind::OutcomeUnknown, "timed out"));
        }
        weather.fault(&Error::new(ErrorKind::ReadOnly, "a replica"));
        weather.fault(&Error::new(ErrorKind::ReadOnly, "a replica"));
        weather.clear();
        weather.clear();
        let told = told.lock().unwrap();
        let [
            Notice::Away { reason, .. },
            Notice::Away { kind, .. },
            Notice::Back { .. },
        ] = &told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!((reason.as_str(), *kind), ("refused", ErrorKind::ReadOnly));
    }
}
