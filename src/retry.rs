//! Retry policies: the delay before each further attempt, a pure function of the attempt's number
//! and a random number.
//!
//! `check` refuses contradictory policies; `written` reads and writes them as text and tables.

mod check;
mod written;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::settings::MAX_DELAY;

/// The largest number of rungs in a ladder.
pub(crate) const MAX_RUNGS: usize = 64;

/// The number of attempts of shapes that have no end of their own.
const DEFAULT_ATTEMPTS: u32 = 10;

/// A minute, in seconds.
const MINUTE: u64 = 60;
/// An hour, in seconds.
const HOUR: u64 = 60 * MINUTE;

/// The delays between the attempts of a job, and the number of attempts.
///
/// | shape | delay after attempt *n* | attempts by default |
/// |---|---|---|
/// | [`ladder`](Self::ladder) | its rung *n* | one more than it has rungs |
/// | [`exponential`](Self::exponential) | random, from zero up to `base` · 2ⁿ⁻¹ or `cap` | 10 |
/// | [`linear`](Self::linear) | `step` · *n*, at most `cap` | 10 |
/// | [`fixed`](Self::fixed) | always the same | 10 |
/// | [`none`](Self::none) | | 1 |
///
/// The first run of a job is attempt 1. When the last attempt has failed, the job becomes a dead
/// letter. No delay is longer than ten years.
///
/// # The default
///
/// [`RetryPolicy::default`] is the [`day_ladder`](Self::day_ladder), ten attempts: 15 s, 3 min, 10
/// min, 30 min, 30 min, 1 h, 2 h, 6 h, 15 h. The first rungs outlast a deployment or a lost
/// connection while nobody waits for long; the last ones leave a day for a repair.
///
/// # As text
///
/// In JSON, TOML and similar formats a policy has one of these forms; `attempts` may always be left
/// out. Durations are written with their units (`90s`, `1h 30m`, `2 days`), and `0` needs none.
///
/// ```
/// use keyfall::RetryPolicy;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for text in [
///     r#"{"ladder": ["15s", "3m", "1h 30m"], "attempts": 3}"#,
///     r#"{"exponential": {"base": "1s", "cap": "1h"}, "attempts": 20}"#,
///     r#"{"linear": {"step": "1m", "cap": "10m"}}"#,
///     r#"{"fixed": "30s", "attempts": 5}"#,
///     r#""15s 3m 1h30m""#,
///     r#""none""#,
/// ] {
///     serde_json::from_str::<RetryPolicy>(text)?;
/// }
/// # Ok(()) }
/// ```
///
/// [`FromStr`](std::str::FromStr) reads the last two forms: a ladder, one word for each rung, or
/// `none`.
///
/// ```
/// use keyfall::RetryPolicy;
/// use std::time::Duration;
///
/// let policy: RetryPolicy = "0 15s 3m".parse()?;
/// assert_eq!(policy.next(1, 0.5), Some(Duration::ZERO));
/// assert_eq!(policy.next(3, 0.5), Some(Duration::from_secs(180)));
/// assert_eq!(policy.next(4, 0.5), None);
/// # Ok::<(), keyfall::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    shape: Shape,
    /// The limit that was set; `None` for the default of the shape.
    attempts: Option<u32>,
}

/// The rule for the delays; the constructors of [`RetryPolicy`] describe each.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// One delay for each retry; 1 to [`MAX_RUNGS`] of them.
    Ladder(Arc<[Duration]>),
    Exponential {
        base: Duration,
        cap: Duration,
    },
    Linear {
        step: Duration,
        cap: Option<Duration>,
    },
    Fixed(Duration),
    None,
}

impl RetryPolicy {
    /// A ladder: one rung for each retry, in order. A rung may be zero.
    ///
    /// ```
    /// use keyfall::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// let minutes = [1, 5, 30].map(|minutes| Duration::from_secs(60 * minutes));
    /// let policy = RetryPolicy::ladder(minutes)?;
    /// assert_eq!(policy.max_attempts(), 4);
    /// assert_eq!(policy.next(2, 0.0), Some(Duration::from_secs(300)));
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] if there is no rung, if there are more than 64, or if one is
    /// longer than ten years.
    pub fn ladder(rungs: impl IntoIterator<Item = Duration>) -> Result<Self> {
        // One rung too many is enough to know; the iterator may be endless.
        let rungs: Vec<Duration> = rungs.into_iter().take(MAX_RUNGS + 1).collect();
        RetryPolicy::checked(Shape::Ladder(rungs.into()))
    }

    /// Exponential backoff with full jitter: a random delay between zero and a window that starts
    /// at `base`, doubles with each attempt and stops at `cap`. The jitter keeps jobs that failed
    /// together from coming back together.
    ///
    /// ```
    /// use keyfall::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// let policy = RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(60))?;
    /// // After attempt 4 the window is 8 s; a random number of 0.5 stands for its middle.
    /// assert_eq!(policy.next(4, 0.5), Some(Duration::from_secs(4)));
    /// assert_eq!(policy.max_attempts(), 10);
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] if `base` is zero, if `cap` is shorter than `base`, or if one
    /// is longer than ten years.
    pub fn exponential(base: Duration, cap: Duration) -> Result<Self> {
        RetryPolicy::checked(Shape::Exponential { base, cap })
    }

    /// Linear backoff: one `step` after the first attempt, two after the second, and so on, ten
    /// years at most.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] if `step` is zero or longer than ten years.
    pub fn linear(step: Duration) -> Result<Self> {
        RetryPolicy::checked(Shape::Linear { step, cap: None })
    }

    /// Linear backoff as [`linear`](Self::linear), with delays of at most `cap`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] if `step` is zero, if `cap` is shorter than `step`, or if one
    /// is longer than ten years.
    pub fn linear_up_to(step: Duration, cap: Duration) -> Result<Self> {
        RetryPolicy::checked(Shape::Linear {
            step,
            cap: Some(cap),
        })
    }

    /// The same delay after each attempt; it may be zero.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] if `delay` is longer than ten years.
    pub fn fixed(delay: Duration) -> Result<Self> {
        RetryPolicy::checked(Shape::Fixed(delay))
    }

    /// A single attempt: a job that fails becomes a dead letter at once.
    pub const fn none() -> Self {
        RetryPolicy {
            shape: Shape::None,
            attempts: None,
        }
    }

    /// Nine retries in about 25 hours: 15 s, 3 min, 10 min, 30 min, 30 min, 1 h, 2 h, 6 h, 15 h.
    /// Payment providers repeat their notifications in such a rhythm.
    pub fn day_ladder() -> Self {
        RetryPolicy::of_seconds(&[
            15,
            3 * MINUTE,
            10 * MINUTE,
            30 * MINUTE,
            30 * MINUTE,
            HOUR,
            2 * HOUR,
            6 * HOUR,
            15 * HOUR,
        ])
    }

    /// Two retries at once, then seven in about a day: 0, 0, 2 min, 10 min, 10 min, 1 h, 2 h, 6 h,
    /// 15 h. For faults that are mostly gone within moments.
    pub fn eager_day_ladder() -> Self {
        RetryPolicy::of_seconds(&[
            0,
            0,
            2 * MINUTE,
            10 * MINUTE,
            10 * MINUTE,
            HOUR,
            2 * HOUR,
            6 * HOUR,
            15 * HOUR,
        ])
    }

    /// Ten retries in two hours, `2n + 1` minutes after attempt `n`: 3, 5, 7, 9, 11, 13,
    /// 15, 17, 19, 21 min.
    pub fn two_hour_ladder() -> Self {
        let rungs: Vec<u64> = (1..=10).map(|n| (2 * n + 1) * MINUTE).collect();
        RetryPolicy::of_seconds(&rungs)
    }

    /// The same delays with at most `limit` attempts, the first run included; 0 counts as 1. A
    /// ladder ends with its last rung, so a limit above its rungs plus one changes nothing, nor
    /// does any limit change [`none`](Self::none).
    ///
    /// ```
    /// use keyfall::RetryPolicy;
    ///
    /// assert_eq!(RetryPolicy::day_ladder().attempts(3).max_attempts(), 3);
    /// assert_eq!(RetryPolicy::day_ladder().attempts(99).max_attempts(), 10);
    /// ```
    #[must_use]
    pub fn attempts(mut self, limit: u32) -> Self {
        if self.shape != Shape::None {
            self.attempts = Some(limit.max(1));
        }
        self
    }

    /// The number of attempts of a job, the first run included; 1 or more.
    pub fn max_attempts(&self) -> u32 {
        let limit = self.attempts.unwrap_or(u32::MAX);
        match &self.shape {
            Shape::Ladder(rungs) => u32::try_from(rungs.len())
                .unwrap_or(u32::MAX)
                .saturating_add(1)
                .min(limit),
            Shape::None => 1,
            Shape::Exponential { .. } | Shape::Linear { .. } | Shape::Fixed(_) => {
                self.attempts.unwrap_or(DEFAULT_ATTEMPTS)
            }
        }
    }

    /// The delay after the attempt with this number, or `None` if it was the last one.
    ///
    /// `attempt` counts from 1; 0 counts as 1. `random` is a number in `[0, 1)`; only
    /// [`exponential`](Self::exponential) uses it. A number outside is moved to the nearer end, and
    /// NaN counts as 0.
    pub fn next(&self, attempt: u32, random: f64) -> Option<Duration> {
        let attempt = attempt.max(1);
        if attempt >= self.max_attempts() {
            return None;
        }
        match &self.shape {
            Shape::Ladder(rungs) => rungs.get(usize::try_from(attempt - 1).ok()?).copied(),
            Shape::Exponential { base, cap } => {
                let window = doubled(*base, attempt - 1).min(*cap);
                // `clamp` keeps NaN, and `mul_f64` panics on it.
                let random = if random.is_nan() { 0.0 } else { random };
                Some(window.mul_f64(random.clamp(0.0, 1.0)).min(window))
            }
            Shape::Linear { step, cap } => {
                Some(step.saturating_mul(attempt).min(cap.unwrap_or(MAX_DELAY)))
            }
            Shape::Fixed(delay) => Some(*delay),
            Shape::None => None,
        }
    }

    /// The longest delay that the policy can give; zero if it has no retry.
    pub fn longest(&self) -> Duration {
        let retries = self.max_attempts() - 1;
        if retries == 0 {
            return Duration::ZERO;
        }
        match &self.shape {
            Shape::Ladder(rungs) => {
                let climbed = rungs.iter().take(retries as usize);
                climbed.max().copied().unwrap_or_default()
            }
            Shape::Exponential { base, cap } => doubled(*base, retries - 1).min(*cap),
            Shape::Linear { step, cap } => {
                step.saturating_mul(retries).min(cap.unwrap_or(MAX_DELAY))
            }
            Shape::Fixed(delay) => *delay,
            Shape::None => Duration::ZERO,
        }
    }

    /// A ladder of this file, in seconds. It is not checked here; a test checks each.
    fn of_seconds(rungs: &[u64]) -> Self {
        RetryPolicy {
            shape: Shape::Ladder(rungs.iter().copied().map(Duration::from_secs).collect()),
            attempts: None,
        }
    }

    /// A policy of this shape.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] if the shape contradicts itself.
    fn checked(shape: Shape) -> Result<Self> {
        shape
            .check()
            .map_err(|fault| Error::new(ErrorKind::InvalidPolicy, fault))?;
        Ok(RetryPolicy {
            shape,
            attempts: None,
        })
    }
}

impl Default for RetryPolicy {
    /// The [`day_ladder`](Self::day_ladder).
    fn default() -> Self {
        RetryPolicy::day_ladder()
    }
}

/// `base` · 2^`times`, or the longest delay of all if that is longer.
fn doubled(base: Duration, times: u32) -> Duration {
    1_u128
        .checked_shl(times)
        .and_then(|factor| factor.checked_mul(base.as_nanos()))
        .and_then(|nanos| u64::try_from(nanos).ok())
        .map_or(MAX_DELAY, Duration::from_nanos)
        .min(MAX_DELAY)
}
