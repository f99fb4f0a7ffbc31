//! How many requests a second somebody may make, and how many jobs they may be about: a request
//! counts as its first job, and each further job as one more.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::problem::Problem;

/// After how many requests those are forgotten who have not been here for a while.
const FORGET_EVERY: usize = 10_000;

/// Counts the requests of each token, and of each address without one.
pub(super) struct Rate {
    limiter: DefaultKeyedRateLimiter<Who>,
    clock: DefaultClock,
    seen: AtomicUsize,
}

/// Whose requests are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Token(Arc<str>),
    Peer(IpAddr),
}

impl Rate {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        Rate {
            limiter: RateLimiter::keyed(Quota::per_second(per_second)),
            clock: DefaultClock::default(),
            seen: AtomicUsize::new(0),
        }
    }

    /// Counts a request.
    pub(super) fn check(&self, who: &Who) -> Result<(), Problem> {
        if self.seen.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.limiter.retain_recent();
        }
        self.limiter.check_key(who).map_err(|until| {
            let wait: Duration = until.wait_time_from(self.clock.now());
            Problem::rate_limited(wait)
        })
    }

    /// Counts one more job, when its turn has come: a request that brings many is slowed down.
    pub(super) async fn turn(&self, who: &Who) {
        while let Err(until) = self.limiter.check_key(who) {
            tokio::time::sleep(until.wait_time_from(self.clock.now())).await;
        }
    }

    /// Counts so many more jobs, or as many as may come at once.
    pub(super) fn some(&self, who: &Who, most: usize) -> usize {
        let has_turn = |_: &usize| self.limiter.check_key(who).is_ok();
        (0..most).take_while(has_turn).count()
    }
}

impl Who {
    /// An address of IPv4, or the network of one of IPv6, of which everybody has as many
    /// addresses as they like.
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
    fn each_has_a_rate_of_its_own() {
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
        // One every 200 ms, but for what of the first has passed by then.
        assert!(began.elapsed() >= Duration::from_millis(300));
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
