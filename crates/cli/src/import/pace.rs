//! The rate of an import.

use std::str::FromStr;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The most jobs a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace(f64);

/// Keeps to a pace.
pub(super) struct Pacing {
    pace: Option<Pace>,
    /// The time at which the next job may be sent.
    next: Instant,
}

impl Pace {
    /// The jobs of one call: about four calls a second make the rate even.
    fn stride(self) -> usize {
        (self.0 / 4.0).ceil() as usize
    }
}

impl Pacing {
    pub(super) fn new(pace: Option<Pace>) -> Self {
        let next = Instant::now();
        Pacing { pace, next }
    }

    /// The most jobs of one call; `of` if there is no pace.
    pub(super) fn stride(&self, of: usize) -> usize {
        self.pace.map_or(of, Pace::stride).max(1)
    }

    /// Waits until this number of further jobs may be sent.
    pub(super) async fn wait(&mut self, jobs: usize) {
        let Some(Pace(rate)) = self.pace else {
            return;
        };
        sleep_until(self.next).await;
        // Time that was not used is not made up for.
        let began = Instant::now();
        self.next = began + Duration::from_secs_f64(jobs as f64 / rate);
    }
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write how many a second, or a minute, such as 200/s or 30/m".to_owned();
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let per = match unit {
            "s" => 1.0,
            "m" => 60.0,
            _ => return Err(wrong()),
        };
        let number: u32 = number.trim().parse().map_err(|_| wrong())?;
        if number == 0 {
            return Err("at that pace it never ends: write 1 or more".to_owned());
        }
        Ok(Pace(f64::from(number) / per))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_read_by_the_second_or_the_minute() {
        assert_eq!("200/s".parse(), Ok(Pace(200.0)));
        assert_eq!("200".parse(), Ok(Pace(200.0)));
        assert_eq!("30/m".parse(), Ok(Pace(0.5)));
        for text in ["", "0/s", "fast", "5/h", "-1/s"] {
            assert!(text.parse::<Pace>().is_err(), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_are_held_back_to_the_pace() {
        let began = Instant::now();
        let mut pacing = Pacing::new(Some(Pace(100.0)));
        assert_eq!(pacing.stride(500), 25);
        for _ in 0..5 {
            pacing.wait(25).await;
        }
        assert_eq!(began.elapsed().as_millis(), 1000, "the first at once");
        assert_eq!(Pacing::new(None).stride(500), 500);
    }
}
