//! Limits the requests per second, and the jobs of these requests: a request counts as its first
//! job, and each further job as one more.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::problem::Problem;

/// The number of requests after which idle clients are forgotten.
const FORGET_EVERY: usize = 10_000;

/// Counts the requests of each token, and of each address without one.
pub(super) struct Rate {
    limiter: DefaultKeyedRateLimiter<Who>,
    per_second: NonZeroU32,
    /// Jobs that were handed out and are not counted yet. They are counted first.
    debts: Mutex<HashMap<Who, u32>>,
    clock: DefaultClock,
    seen: AtomicUsize,
}

/// The party whose requests are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Token(Arc<str>),
    Peer(IpAddr),
}

impl Rate {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        Rate {
            limiter: RateLimiter::keyed(Quota::per_second(per_second)),
            per_second,
            debts: Mutex::default(),
            clock: DefaultClock::default(),
            seen: AtomicUsize::new(0),
        }
    }

    /// Counts a request.
    pub(super) fn check(&self, who: &Who) -> Result<(), Problem> {
        if self.seen.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.debts()
                .retain(|who, owed| self.pay(who, owed).is_err());
            self.limiter.retain_recent();
        }
        self.one(who).map_err(Problem::rate_limited)
    }

    /// Counts one more job when its turn has come: a request with many jobs is slowed down.
    pub(super) async fn turn(&self, who: &Who) {
        while let Err(wait) = self.one(who) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts this number of further jobs, or as many as may come at once.
    pub(super) fn some(&self, who: &Who, most: usize) -> usize {
        let has_turn = |_: &usize| self.one(who).is_ok();
        (0..most).take_while(has_turn).count()
    }

    /// The most jobs at once of a client that made no requests for a while.
    pub(super) fn at_once(&self) -> usize {
        usize::try_from(self.per_second.get()).unwrap_or(usize::MAX)
    }

    /// Counts this number of further jobs, which were handed out before their number was known: the
    /// part that exceeds the limit is counted before the next request.
    pub(super) fn afterwards(&self, who: &Who, jobs: usize) {
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        let mut debts = self.debts();
        let mut owed = debts.remove(who).unwrap_or(0).saturating_add(jobs);
        if self.pay(who, &mut owed).is_err() {
            debts.insert(who.clone(), owed);
        }
    }

    /// Counts one request, or returns the time until the next try.
    fn one(&self, who: &Who) -> Result<(), Duration> {
        let mut debts = self.debts();
        if let Some(owed) = debts.get_mut(who) {
            self.pay(who, owed)?;
            debts.remove(who);
        }
        self.count(who)
    }

    /// Counts the debt, as far as the limit allows now; or returns the time until the rest may be
    /// counted.
    fn pay(&self, who: &Who, owed: &mut u32) -> Result<(), Duration> {
        while *owed > 0 {
            self.count(who).map_err(|wait| {
                wait + Duration::from_secs(1) * (*owed - 1) / self.per_second.get()
            })?;
            *owed -= 1;
        }
        Ok(())
    }

    fn count(&self, who: &Who) -> Result<(), Duration> {
        let counted = self.limiter.check_key(who);
        counted.map_err(|until| until.wait_time_from(self.clock.now()))
    }

    fn debts(&self) -> MutexGuard<'_, HashMap<Who, u32>> {
        self.debts.lock().expect("no panic while held")
    }
}

impl Who {
    /// An IPv4 address, or the network of an IPv6 address: one client can have any number of
    /// addresses in it.
    pub(super) fn peer(address: IpAddr) -> Self {
        Who::Peer(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = v6.to_bits() & !u128::from(u64::MAX);
                Ipv6Addr::from_bits(network).into()
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_a_rate_of_its_own() {
        let rate = Rate::new(NonZeroU32::new(2).unwrap());
        let (one, other) = (Who::Token("one".into()), Who::Token("other".into()));
        assert!(rate.check(&one).is_ok());
        assert!(rate.check(&one).is_ok());
        assert!(rate.check(&one).is_err());
        assert!(rate.check(&other).is_ok());
    }

    #[tokio::test]
    async fn jobs_count_as_requests_do() {
        let rate = Rate::new(NonZeroU32::new(5).unwrap());
        let who = Who::Token("one".into());
        assert!(rate.check(&who).is_ok());
        assert_eq!(rate.some(&who, 2), 2);
        assert_eq!(rate.some(&who, 600), 2);
        assert!(rate.check(&who).is_err());
        let began = std::time::Instant::now();
        for _ in 0..3 {
            rate.turn(&who).await;
        }
        // One every 200 ms; a part of the first 200 ms may have passed by then.
        assert!(began.elapsed() >= Duration::from_millis(300));
    }

    #[test]
    fn handed_out_jobs_are_counted_before_the_next_request() {
        let rate = Rate::new(NonZeroU32::new(2).unwrap());
        let (one, other) = (Who::Token("one".into()), Who::Token("other".into()));
        assert_eq!(rate.at_once(), 2);
        // No job was handed out.
        rate.afterwards(&one, 0);
        assert_eq!(rate.some(&one, 2), 2);
        rate.afterwards(&other, 1000);
        let wait = rate.one(&other).unwrap_err();
        assert!(wait > Duration::from_secs(490) && wait < Duration::from_secs(510));
        assert_eq!(rate.some(&other, 2), 0);
        // Answers at the same time add up.
        rate.afterwards(&other, 1000);
        let wait = rate.one(&other).unwrap_err();
        assert!(wait > Duration::from_secs(980) && wait < Duration::from_secs(1010));
        // A debt that is paid is forgotten.
        rate.afterwards(&Who::Token("third".into()), 1);
        assert_eq!(rate.debts().len(), 1);
    }

    #[test]
    fn a_network_counts_as_one() {
        let who = |text: &str| Who::peer(text.parse().unwrap());
        assert_eq!(who("2001:db8:1:2:3::4"), who("2001:db8:1:2:ffff::"));
        assert_ne!(who("2001:db8:1:2::"), who("2001:db8:1:3::"));
        assert_eq!(who("::ffff:10.0.0.1"), who("10.0.0.1"));
        assert_ne!(who("10.0.0.1"), who("10.0.0.2"));
    }
}
