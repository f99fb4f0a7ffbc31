//! The hosts that are called: how many calls each has, and which are left alone because they are
//! down. What happens at one does not touch the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::handler::Breakers;

/// The first pause of a host that is down. Each that follows is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// How long a job waits for its turn at a host. It holds a slot meanwhile.
const TURN: Duration = Duration::from_secs(1);

/// For about how long a job is put off whose host has enough to do.
const CROWDED: Duration = Duration::from_secs(1);

/// Of so many hosts, or twice as many as were left the last time, those that nothing has to be known
/// of are forgotten.
const REMEMBERED: usize = 1000;

/// What is kept to with each host.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostLimits {
    /// How many calls it has at a time.
    pub(super) concurrency: Option<usize>,
    /// After how many failures in a row it is left alone.
    pub(super) failures: u32,
    /// The longest pause.
    pub(super) longest_pause: Duration,
}

/// All hosts of a target.
#[derive(Debug)]
pub(super) struct Hosts {
    limits: HostLimits,
    known: Mutex<HostTable>,
}

#[derive(Debug)]
struct HostTable {
    hosts: HashMap<String, Host>,
    /// With so many it is time to forget some.
    forget_at: usize,
}

#[derive(Debug)]
struct Host {
    turns: Option<Turns>,
    state: HostState,
}

#[derive(Debug, Clone)]
struct Turns {
    calls: Arc<Semaphore>,
    /// As many may wait as may call, so that there is always a next one.
    waiting: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy)]
enum HostState {
    /// It is called; the last calls failed, the last one then.
    Up {
        failures: u32,
        last: Option<Instant>,
    },
    /// It is left alone. Whoever comes after that tries it.
    Paused { until: Instant, pause: Duration },
    /// One tries it.
    Tried { pause: Duration },
}

impl HostState {
    /// Nothing is known of it.
    const NEW: HostState = HostState::Up {
        failures: 0,
        last: None,
    };
}

/// The right to call a host once. Dropped without a verdict, the call was broken off for a reason
/// that is not the host's: the worker stops, or has lost the lease.
#[derive(Debug)]
pub(super) struct Pass {
    hosts: Arc<Hosts>,
    name: String,
    verdict: CallResult,
    /// The call only finds out whether a host that was down is up again.
    is_trial: bool,
    _turn: Option<OwnedSemaphorePermit>,
}

/// Why a host is not called now, and after which time to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PutOff {
    pub(super) after: Duration,
    /// It is down, and not only busy.
    pub(super) is_down: bool,
}

/// What a call has shown of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallResult {
    Up,
    Down,
    /// Nothing: it was not reached, and that was not its fault.
    Unknown,
}

impl Hosts {
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
    pub(super) fn limits(&self) -> HostLimits {
        self.limits
    }

    /// The right to call this host, or after which time to ask again. It does not wait for longer
    /// than the `patience` of the caller, which needs time for the call itself.
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
        // It may have gone down meanwhile.
        let is_trial = self.with(name, Host::admit).map_err(down)?;
        Ok(Pass {
            hosts: self.clone(),
            name: name.to_owned(),
            verdict: CallResult::Unknown,
            is_trial,
            _turn: turn,
        })
    }

    /// For how long this host is left alone, if it is.
    pub(super) fn pause_of(&self, name: &str) -> Option<Duration> {
        self.with(name, |host| host.look()).err()
    }

    fn with<T>(&self, name: &str, look: impl FnOnce(&mut Host) -> T) -> T {
        let mut known = self.lock();
        let HostTable { hosts, forget_at } = &mut *known;
        if !hosts.contains_key(name) {
            if hosts.len() >= *forget_at {
                hosts.retain(|_, host| !host.is_as_new(&self.limits));
                // Not at each new name, where many are down.
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
        tracing::info!(host, "is called again, as somebody asked for");
        true
    }
}

impl Host {
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

    /// Whether it may be called now, or when to ask again.
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

    /// As `look`; the first after a pause tries it. Returns whether this is the one.
    fn admit(&mut self) -> Result<bool, Duration> {
        self.look()?;
        let HostState::Paused { pause, .. } = self.state else {
            return Ok(false);
        };
        self.state = HostState::Tried { pause };
        Ok(true)
    }

    fn is_down(&self, limits: &HostLimits) -> bool {
        !matches!(self.state, HostState::Up { .. }) && !self.is_given_up(limits)
    }

    /// Nobody has tried it for so long that it has no jobs any more: those that were put off would
    /// have come back.
    fn is_given_up(&self, limits: &HostLimits) -> bool {
        match self.state {
            HostState::Paused { until, .. } => until.elapsed() >= limits.longest_pause,
            _ => false,
        }
    }

    fn judge(&mut self, name: &str, verdict: CallResult, limits: &HostLimits) {
        let pause_of = |pause: Duration| {
            let pause = pause.min(limits.longest_pause);
            let until = Instant::now() + pause;
            HostState::Paused { until, pause }
        };
        self.state = match (self.state, verdict) {
            (HostState::Up { .. }, CallResult::Up) => HostState::NEW,
            (_, CallResult::Up) => {
                tracing::info!(host = name, "answers again");
                HostState::NEW
            }
            (HostState::Up { failures, .. }, CallResult::Down)
                if failures + 1 >= limits.failures =>
            {
                tracing::warn!(
                    host = name,
                    failures = limits.failures,
                    "is down and left alone for a while: its jobs wait, no attempt is counted"
                );
                pause_of(FIRST_PAUSE)
            }
            (HostState::Up { failures, .. }, CallResult::Down) => HostState::Up {
                failures: failures + 1,
                last: Some(Instant::now()),
            },
            (HostState::Tried { pause }, CallResult::Down) => pause_of(pause * 2),
            // The next one tries it.
            (HostState::Tried { pause }, CallResult::Unknown) => HostState::Paused {
                until: Instant::now(),
                pause,
            },
            (state, _) => state,
        };
    }

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
    /// `None` if it takes too long, or too many wait.
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
    /// Whether the call only finds out whether the host is up again.
    pub(super) fn is_trial(&self) -> bool {
        self.is_trial
    }

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

/// From half of it up to one and a half.
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
    async fn a_host_that_is_down_is_left_alone_and_tried_by_one() {
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
        // Two in a row are not three; what was under way is not waited for.
        let late = hosts.enter("a", TURN).await.unwrap();
        // Nobody said how it ended, so it says nothing of the host.
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
        // Whoever hears from it, however late.
        late.ends(CallResult::Up);
        let both = (hosts.enter("a", TURN).await, hosts.enter("a", TURN).await);
        assert!(both.0.is_ok() && both.1.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_somebody_closes_is_called_at_once() {
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
        // It has to fail as often as before.
        for _ in 0..2 {
            call(&hosts, "a", CallResult::Down).await;
            assert!(hosts.open().is_empty());
        }
        call(&hosts, "a", CallResult::Down).await;
        // While it is tried it is open, too.
        tokio::time::advance(2 * SECOND).await;
        let trying = hosts.enter("a", TURN).await.unwrap();
        assert_eq!(hosts.open(), ["a"]);
        assert!(hosts.close("a") && hosts.open().is_empty());
        trying.ends(CallResult::Down);
        assert!(hosts.open().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_has_so_many_calls_and_as_many_wait() {
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
        // Whose turn does not come is put off, too.
        let _first = hosts.enter("a", TURN).await.unwrap();
        let began = Instant::now();
        assert!(hosts.enter("a", TURN / 4).await.is_err());
        assert!(began.elapsed() < TURN / 2);
        assert!(hosts.enter("a", 2 * TURN).await.is_err());
        assert!(began.elapsed() < 2 * TURN);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_jobs_are_gone_is_as_new() {
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
