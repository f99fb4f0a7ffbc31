//! The rate limit of a route: a token bucket, with one token for each job.
//!
//! The claimer takes tokens before a claim, and returns the tokens for which it found no job. The
//! rate limiters of other crates cannot take tokens back.

use std::time::{Duration, Instant};

use crate::handler::Rate;

/// The tokens of one route.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: Rate,
    /// Largest number of tokens.
    size: f64,
    /// Time in which one token is added.
    each: Duration,
    /// Number of tokens at `at`.
    tokens: f64,
    /// When `tokens` was last computed; never goes back.
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        let size = f64::from(rate.jobs);
        Bucket {
            rate,
            size,
            each: rate.per.div_f64(size),
            tokens: size,
            at: now,
        }
    }

    /// The rate that the bucket was made for.
    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// The number of whole tokens at `now`.
    pub(super) fn tokens(&mut self, now: Instant) -> usize {
        let came = now
            .saturating_duration_since(self.at)
            .div_duration_f64(self.each);
        self.tokens = (self.tokens + came).min(self.size);
        self.at = self.at.max(now);
        self.tokens as usize
    }

    /// Takes `count` tokens. Call it with at most [`tokens`](Self::tokens).
    pub(super) fn take(&mut self, count: usize) {
        self.tokens -= count as f64;
    }

    /// Returns one token.
    pub(super) fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.size);
    }

    /// When the next whole token is there, if there is none.
    pub(super) fn next(&self) -> Option<Instant> {
        (self.tokens < 1.0).then(|| self.at + self.each.mul_f64(1.0 - self.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_fills_at_its_rate_and_no_further() {
        let start = Instant::now();
        let mut bucket = Bucket::new(
            Rate {
                jobs: 10,
                per: SECOND,
            },
            start,
        );
        assert_eq!(bucket.tokens(start), 10);
        assert_eq!(bucket.next(), None);
        bucket.take(10);
        assert_eq!(bucket.tokens(start), 0);
        assert_eq!(bucket.next(), Some(start + SECOND / 10));
        assert_eq!(bucket.tokens(start + SECOND / 2), 5);
        assert_eq!(bucket.tokens(start + 60 * SECOND), 10);
    }

    #[test]
    fn tokens_taken_in_vain_are_given_back() {
        let start = Instant::now();
        let mut bucket = Bucket::new(
            Rate {
                jobs: 2,
                per: SECOND,
            },
            start,
        );
        bucket.take(2);
        bucket.give_back();
        assert_eq!(bucket.tokens(start), 1);
        bucket.give_back();
        bucket.give_back();
        assert_eq!(bucket.tokens(start), 2);
    }

    #[test]
    fn a_clock_that_stands_still_adds_no_token() {
        let start = Instant::now() + SECOND;
        let mut bucket = Bucket::new(
            Rate {
                jobs: 1,
                per: SECOND,
            },
            start,
        );
        bucket.take(1);
        assert_eq!(bucket.tokens(start - SECOND), 0);
        assert_eq!(bucket.tokens(start), 0);
    }
}
