//! A histogram of lateness, printed with bars.

use std::fmt;
use std::time::Duration;

/// The end of the first bin, which begins at zero. Each later bin ends at twice its beginning.
const FIRST_ENDS_AT: Duration = Duration::from_micros(250);
/// The number of bins; the last one has no end.
const BINS: usize = 24;

/// The length of the longest bar, in characters.
const WIDTH: f64 = 40.0;

/// The number of runs in each bin of lateness.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Histogram([usize; BINS]);

impl Histogram {
    /// The histogram of these values.
    pub(super) fn of(lags: &[Duration]) -> Self {
        let mut histogram = Histogram::default();
        for lag in lags {
            let bin = (0..BINS - 1).find(|bin| *lag < end(*bin));
            histogram.0[bin.unwrap_or(BINS - 1)] += 1;
        }
        histogram
    }

    /// Adds the counts of another run of the benchmark.
    pub(super) fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}

/// The upper bound of a bin.
fn end(bin: usize) -> Duration {
    FIRST_ENDS_AT * 2_u32.pow(bin as u32)
}

/// One line for each bin from the first to the last with a count. The length of a bar grows with
/// the logarithm of its count; otherwise a few late runs would be invisible.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.0.iter().max().copied().unwrap_or(0);
        let filled = |count: &usize| *count > 0;
        let (Some(first), Some(last)) = (
            self.0.iter().position(filled),
            self.0.iter().rposition(filled),
        ) else {
            return Ok(());
        };
        for bin in first..=last {
            let count = self.0[bin];
            let share = (count as f64 + 1.0).ln() / (most as f64 + 1.0).ln();
            let bar = "█".repeat((share * WIDTH).round() as usize);
            let millis = end(bin).as_secs_f64() * 1e3;
            let bound = if bin == BINS - 1 {
                "more".to_owned()
            } else {
                format!("< {millis} ms")
            };
            let line = format!("  {bound:>14}  {count:>9}  {bar}");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double_and_bars_grow_with_the_logarithm() {
        let micros = [0, 249, 250, 499, 900, 1000];
        let mut histogram = Histogram::of(&micros.map(Duration::from_micros));
        histogram.merge(&Histogram::of(&[Duration::from_secs(1_000_000)]));
        assert_eq!(histogram.0[..4], [2, 2, 1, 1]);
        assert_eq!(histogram.0[BINS - 1], 1);
        let shown = histogram.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), BINS);
        assert!(lines[0].starts_with("       < 0.25 ms          2  ████"));
        let length = |line: &str| line.matches('█').count();
        assert_eq!(
            (length(lines[0]), length(lines[2]), length(lines[4])),
            (40, 25, 0)
        );
        assert_eq!(Histogram::default().to_string(), "");
    }
}
