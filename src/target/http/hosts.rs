//! Limits and circuit breakers of hosts: the number of simultaneous calls to each host, and pauses
//! of hosts that are down. Hosts do not affect each other.
//!
//! A call asks for a [`Pass`] with [`Hosts::enter`], and gives it back with its result, which moves
//! the breaker of its host:
//!
//! | state | event | next state |
//! |---|---|---|
//! | up | the limit of failures in a row | paused for 1 s |
//! | paused | a call after the pause | tried: this call is the trial |
//! | paused | no call for the longest pause after it | up |
//! | tried | a failure | paused for twice as long, up to the limit |
//! | tried | the trial is broken off | paused, and over at once |
//! | any | a success, however late | up |
//!
//! A job that meets a paused or busy host is put off, and no attempt is counted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::handler::Breakers;

/// The first pause of a host that is down. Each later pause is twice as long, up to the limit.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest wait of a job for its turn at a host. The job holds a slot of the worker meanwhile.
const TURN: Duration = Duration::from_secs(1);

/// How long a job is put off because its host is busy, on average.
const CROWDED: Duration = Duration::from_secs(1);

/// With this many hosts in the table, idle hosts without failures are forgotten. If many remain,
/// idle hosts are next forgotten when the table is twice as large.
const REMEMBERED: usize = 1000;

/// The limits that hold for each host.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostLimits {
    /// The most simultaneous calls to a host; `None` for no limit.
    pub(super) concurrency: Option<usize>,
    /// The number of failures in a row after which a host is paused.
    pub(super) failures: u32,
    /// The longest pause. A host without a call for this long after its pause counts as new.
    pub(super) longest_pause: Duration,
}

/// All hosts that a target calls, by name and port.
#[derive(Debug)]
pub(super) struct Hosts {
    limits: HostLimits,
    known: Mutex<HostTable>,
}

/// The state of the known hosts.
#[derive(Debug)]
struct HostTable {
    hosts: HashMap<String, Host>,
    /// The number of hosts at which idle hosts are forgotten.
    forget_at: usize,
}

/// One host: its turns, and whether it works.
#[derive(Debug)]
struct Host {
    /// `None` without a limit of calls.
    turns: Option<Turns>,
    state: HostState,
}

/// The places for calls to one host, and for jobs that wait for such a place.
#[derive(Debug, Clone)]
struct Turns {
    calls: Arc<Semaphore>,
    /// As many jobs may wait as may call, so that there is always a next one.
    waiting: Arc<Semaphore>,
}

/// The breaker of one host.
#[derive(Debug, Clone, Copy)]
enum HostState {
    /// The host is called. `failures` is the number of failed calls since the last success, `last`
    /// the time of the last failure.
    Up {
        failures: u32,
        last: Option<Instant>,
    },
    /// The host gets no calls `until` then; the first call after it is a trial.
    Paused { until: Instant, pause: Duration },
    /// A trial is under way; `pause` was the last pause.
    Tried { pause: Duration },
}

impl HostState {
    /// A host without known failures.
    const NEW: HostState = HostState::Up {
        failures: 0,
        last: None,
    };
}

/// The right to call a host once. [`ends`](Self::ends) reports the result. A pass that is dropped
/// without it says nothing about the host: the worker stops, or has lost the lease.
#[derive(Debug)]
pub(super) struct Pass {
    hosts: Arc<Hosts>,
    name: String,
    verdict: CallResult,
    /// The call is a trial, which finds out whether a paused host works again.
    is_trial: bool,
    /// The place among the simultaneous calls, kept until the call ends.
    _turn: Option<OwnedSemaphorePermit>,
}

/// The refusal of a call: its reason, and the time after which to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PutOff {
    pub(super) after: Duration,
    /// True for a host that is down, false for a busy one.
    pub(super) is_down: bool,
}

/// The state of a host, as one call has shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallResult {
    /// The host answered.
    Up,
    /// The host could not be connected to, did not answer in time, or says itself that it is down.
    Down,
    /// Nothing is known: the call did not reach the host, through no fault of the host, or had less
    /// time than its route gives.
    Unknown,
}

impl Hosts {
    /// An empty table with these limits.
    pub(super) fn new(limits: HostLimits) -> Arc<Self> {
        Arc::new(Hosts {
            limits,
            known: Mutex::new(HostTable {
                hosts: HashMap::new(),
                forget_at: REMEMBERED,
            }),
        })
    }

    #[cfg(test)]
    /// The limits, for tests of the settings.
    pub(super) fn limits(&self) -> HostLimits {
        self.limits
    }

    /// Waits for a turn at this host, for a second at most, and no longer than `patience`: the
    /// caller needs time for the call itself.
    ///
    /// # Errors
    /// If the host is down, or its turns do not come in time.
    pub(super) async fn enter(
        self: &Arc<Self>,
        name: &str,
        patience: Duration,
    ) -> Result<Pass, PutOff> {
        let down = |after| PutOff {
            after,
            is_down: true,
        };
        let looked = self.with(name, |host| host.look().map(|()| host.turns.clone()));
        let turns = looked.map_err(down)?;
        let turn = match turns {
            None => None,
            Some(turns) => {
                let turn = turns.next(patience.min(TURN)).await;
                Some(turn.ok_or_else(|| PutOff {
                    after: scattered(CROWDED),
                    is_down: false,
                })?)
            }
        };
        // The host may have gone down during the wait.
        let is_trial = self.with(name, Host::admit).map_err(down)?;
        Ok(Pass {
            hosts: self.clone(),
            name: name.to_owned(),
            verdict: CallResult::Unknown,
            is_trial,
            _turn: turn,
        })
    }

    /// The time after which to ask for a paused host again; `None` if it may be called now.
    pub(super) fn pause_of(&self, name: &str) -> Option<Duration> {
        self.with(name, |host| host.look()).err()
    }

    /// Calls `look` with a host, which is added if it is unknown; its table is locked meanwhile.
    fn with<T>(&self, name: &str, look: impl FnOnce(&mut Host) -> T) -> T {
        let mut known = self.lock();
        let HostTable { hosts, forget_at } = &mut *known;
        if !hosts.contains_key(name) {
            if hosts.len() >= *forget_at {
                hosts.retain(|_, host| !host.is_as_new(&self.limits));
                // Not again at each new name, while many hosts are down.
                *forget_at = REMEMBERED.max(2 * hosts.len());
            }
            hosts.insert(name.to_owned(), Host::new(&self.limits));
        }
        let host = hosts.get_mut(name).expect("it was put there");
        if host.is_given_up(&self.limits) {
            host.state = HostState::NEW;
        }
        look(host)
    }

    /// Locks the table. No lock is held across an `await`.
    fn lock(&self) -> MutexGuard<'_, HostTable> {
        self.known.lock().expect("no panic while held")
    }
}

impl Breakers for Hosts {
    fn open(&self) -> Vec<String> {
        let known = self.lock();
        let down = known.hosts.iter();
        let down = down.filter(|(_, host)| host.is_down(&self.limits));
        down.map(|(name, _)| name.clone()).collect()
    }

    fn close(&self, host: &str) -> bool {
        let mut known = self.lock();
        let found = known.hosts.get_mut(host);
        let Some(down) = found.filter(|host| host.is_down(&self.limits)) else {
            return false;
        };
        down.state = HostState::NEW;
        tracing::info!(
            host,
            "the host is called again, because an operator closed its breaker"
        );
        true
    }
}

impl Host {
    /// A host without a history, with places by these limits.
    fn new(limits: &HostLimits) -> Self {
        let turns = |calls| Turns {
            calls: Arc::new(Semaphore::new(calls)),
            waiting: Arc::new(Semaphore::new(calls)),
        };
        Host {
            turns: limits.concurrency.map(turns),
            state: HostState::NEW,
        }
    }

    /// # Errors
    /// The time after which to ask again, if the host may not be called now. It is scattered, so
    /// that the jobs of a host do not all come back at once.
    fn look(&self) -> Result<(), Duration> {
        match self.state {
            HostState::Up { .. } => Ok(()),
            HostState::Tried { pause } => Err(scattered(pause)),
            HostState::Paused { until, pause } => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                // Not all at the same time.
                Err(left + scattered(pause / 4))
            }
        }
    }

    /// Like [`look`](Self::look), and makes the first call after a pause the trial. Returns whether
    /// this call is the trial.
    fn admit(&mut self) -> Result<bool, Duration> {
        self.look()?;
        let HostState::Paused { pause, .. } = self.state else {
            return Ok(false);
        };
        self.state = HostState::Tried { pause };
        Ok(true)
    }

    /// Whether the breaker is open: the host is paused or on trial.
    fn is_down(&self, limits: &HostLimits) -> bool {
        !matches!(self.state, HostState::Up { .. }) && !self.is_given_up(limits)
    }

    /// Whether a paused host has had no trial for so long that it cannot have jobs any more: jobs
    /// that were put off would have come back.
    fn is_given_up(&self, limits: &HostLimits) -> bool {
        match self.state {
            HostState::Paused { until, .. } => until.elapsed() >= limits.longest_pause,
            _ => false,
        }
    }

    /// Changes the state by the result of a call. A late result of an earlier call counts as well.
    fn judge(&mut self, name: &str, verdict: CallResult, limits: &HostLimits) {
        let pause_of = |pause: Duration| {
            let pause = pause.min(limits.longest_pause);
            let until = Instant::now() + pause;
            HostState::Paused { until, pause }
        };
        self.state = match (self.state, verdict) {
            (HostState::Up { .. }, CallResult::Up) => HostState::NEW,
            (_, CallResult::Up) => {
                tracing::info!(host = name, "the host answers again");
                HostState::NEW
            }
            (HostState::Up { failures, .. }, CallResult::Down)
                if failures + 1 >= limits.failures =>
            {
                tracing::warn!(
                    host = name,
                    failures = limits.failures,
                    "the host is down, and is not called for a while: its jobs wait, and no \
                     attempt is counted"
                );
                pause_of(FIRST_PAUSE)
            }
            (HostState::Up { failures, .. }, CallResult::Down) => HostState::Up {
                failures: failures + 1,
                last: Some(Instant::now()),
            },
            (HostState::Tried { pause }, CallResult::Down) => pause_of(pause * 2),
            // The next call is the trial.
            (HostState::Tried { pause }, CallResult::Unknown) => HostState::Paused {
                until: Instant::now(),
                pause,
            },
            (state, _) => state,
        };
    }

    /// Whether the host can be forgotten without loss: no call holds its turns, and its failures
    /// are old.
    fn is_as_new(&self, limits: &HostLimits) -> bool {
        let idle = |turns: &Turns| Arc::strong_count(&turns.calls) == 1;
        let says_nothing = match self.state {
            HostState::Up { last, .. } => {
                last.is_none_or(|at| at.elapsed() >= limits.longest_pause)
            }
            _ => self.is_given_up(limits),
        };
        says_nothing && self.turns.as_ref().is_none_or(idle)
    }
}

impl Turns {
    /// Waits for a place for a call. `None` if it takes longer than `patience`, or if all places
    /// for waiting jobs are taken.
    async fn next(self, patience: Duration) -> Option<OwnedSemaphorePermit> {
        if let Ok(turn) = self.calls.clone().try_acquire_owned() {
            return Some(turn);
        }
        let _waiting = self.waiting.try_acquire_owned().ok()?;
        let turn = timeout(patience, self.calls.acquire_owned()).await;
        turn.ok()?.ok()
    }
}

impl Pass {
    /// Whether the call is a trial of a paused host.
    pub(super) fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// Reports the result of the call, and frees its place.
    pub(super) fn ends(mut self, verdict: CallResult) {
        self.verdict = verdict;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let (verdict, limits) = (self.verdict, self.hosts.limits);
        self.hosts
            .with(&self.name, |host| host.judge(&self.name, verdict, &limits));
    }
}

/// A random time from half of `pause` to one and a half of it.
fn scattered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + rand::random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn hosts(concurrency: Option<usize>) -> Arc<Hosts> {
        Hosts::new(HostLimits {
            concurrency,
            failures: 3,
            longest_pause: 3 * SECOND,
        })
    }

    async fn call(hosts: &Arc<Hosts>, name: &str, verdict: CallResult) {
        hosts
            .enter(name, TURN)
            .await
            .expect("it may be called")
            .ends(verdict);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_down_gets_one_trial_call() {
        let hosts = hosts(None);
        for verdict in [
            CallResult::Down,
            CallResult::Down,
            CallResult::Up,
            CallResult::Down,
        ] {
            call(&hosts, "a", verdict).await;
        }
        call(&hosts, "a", CallResult::Unknown).await;
        call(&hosts, "a", CallResult::Down).await;
        // Two failures in a row are not three; a call under way is not waited for.
        let late = hosts.enter("a", TURN).await.unwrap();
        // A call without a reported result says nothing about the host.
        drop(hosts.enter("a", TURN).await.unwrap());
        assert!(hosts.enter("a", TURN).await.is_ok());
        call(&hosts, "a", CallResult::Down).await;
        for (pause, verdict) in [
            (SECOND, CallResult::Down),
            (2 * SECOND, CallResult::Down),
            (3 * SECOND, CallResult::Unknown),
            (Duration::ZERO, CallResult::Down),
            (3 * SECOND, CallResult::Down),
        ] {
            if !pause.is_zero() {
                let wait = hosts.enter("a", TURN).await.unwrap_err().after;
                assert!(wait >= pause && wait <= 2 * pause, "{pause:?}: {wait:?}");
            }
            call(&hosts, "b", CallResult::Down).await;
            call(&hosts, "b", CallResult::Up).await;
            tokio::time::advance(pause).await;
            let trying = hosts.enter("a", TURN).await.unwrap();
            assert!(trying.is_trial());
            let wait = hosts.enter("a", TURN).await.unwrap_err().after;
            assert!(wait >= SECOND / 2 && wait < 5 * SECOND, "{wait:?}");
            trying.ends(verdict);
        }
        // Any answer of the host counts, however late.
        late.ends(CallResult::Up);
        let both = (hosts.enter("a", TURN).await, hosts.enter("a", TURN).await);
        assert!(both.0.is_ok() && both.1.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_whose_breaker_is_closed_by_hand_is_called_at_once() {
        let hosts = hosts(None);
        for _ in 0..3 {
            call(&hosts, "a", CallResult::Down).await;
        }
        assert!(hosts.enter("a", TURN).await.unwrap_err().is_down);
        assert!(hosts.pause_of("a").is_some() && hosts.pause_of("b").is_none());
        assert_eq!(hosts.open(), ["a"]);
        assert!(!hosts.close("b") && hosts.close("a") && !hosts.close("a"));
        assert!(hosts.open().is_empty());
        assert!(!hosts.enter("a", TURN).await.unwrap().is_trial());
        // The next pause needs as many failures as the first.
        for _ in 0..2 {
            call(&hosts, "a", CallResult::Down).await;
            assert!(hosts.open().is_empty());
        }
        call(&hosts, "a", CallResult::Down).await;
        // The breaker is open during a trial, too.
        tokio::time::advance(2 * SECOND).await;
        let trying = hosts.enter("a", TURN).await.unwrap();
        assert_eq!(hosts.open(), ["a"]);
        assert!(hosts.close("a") && hosts.open().is_empty());
        trying.ends(CallResult::Down);
        assert!(hosts.open().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_a_limit_of_calls_and_of_waiting_ones() {
        let hosts = hosts(Some(1));
        let first = hosts.enter("a", TURN).await.unwrap();
        let next = tokio::spawn({
            let hosts = hosts.clone();
            async move {
                hosts
                    .enter("a", TURN)
                    .await
                    .map(|pass| pass.ends(CallResult::Up))
            }
        });
        tokio::task::yield_now().await;
        let third = hosts.enter("a", TURN).await;
        let third = third.unwrap_err();
        assert!(third.after <= 2 * CROWDED && !third.is_down);
        call(&hosts, "b", CallResult::Up).await;
        first.ends(CallResult::Up);
        next.await.unwrap().unwrap();
        // A job whose turn does not come is put off, too.
        let _first = hosts.enter("a", TURN).await.unwrap();
        let began = Instant::now();
        assert!(hosts.enter("a", TURN / 4).await.is_err());
        assert!(began.elapsed() < TURN / 2);
        assert!(hosts.enter("a", 2 * TURN).await.is_err());
        assert!(began.elapsed() < 2 * TURN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_whose_jobs_are_gone_is_as_new() {
        let hosts = hosts(None);
        for _ in 0..3 {
            call(&hosts, "a", CallResult::Down).await;
        }
        tokio::time::advance(SECOND + 2 * SECOND).await;
        assert_eq!(hosts.open(), ["a"]);
        tokio::time::advance(SECOND).await;
        assert!(hosts.open().is_empty() && !hosts.close("a"));
        assert!(!hosts.enter("a", TURN).await.unwrap().is_trial());
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_failed_are_forgotten_after_a_while() {
        let hosts = hosts(None);
        let known = || hosts.lock().hosts.len();
        for number in 0..2 * REMEMBERED {
            call(&hosts, &number.to_string(), CallResult::Down).await;
        }
        // They still count, and are looked through only now and then.
        assert_eq!(known(), 2 * REMEMBERED);
        assert_eq!(hosts.lock().forget_at, 2 * REMEMBERED);
        tokio::time::advance(3 * SECOND).await;
        call(&hosts, "another", CallResult::Down).await;
        assert_eq!(known(), 1);
        assert_eq!(hosts.lock().forget_at, REMEMBERED);
    }

    #[tokio::test]
    async fn hosts_without_news_are_forgotten() {
        let hosts = hosts(Some(1));
        call(&hosts, "down", CallResult::Down).await;
        let _busy = hosts.enter("busy", TURN).await.unwrap();
        for number in 0..3 * REMEMBERED {
            call(&hosts, &number.to_string(), CallResult::Up).await;
        }
        let known = &hosts.lock().hosts;
        assert!(known.len() <= REMEMBERED, "{}", known.len());
        assert!(known.contains_key("down") && known.contains_key("busy"));
    }
}
