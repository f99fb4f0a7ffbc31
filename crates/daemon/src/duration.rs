//! Durations as people write them: in the configuration, behind flags, in the HTTP API and in
//! exports.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// The fault of a text, and the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    NoDuration,
    NoUnit,
    Negative,
}

/// `15m`, `2h 30m`, `1d 12h`, `PT15M`; a day has 24 hours.
pub fn parse(text: &str) -> Result<Duration, Wrong> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    // A span, because a plain duration knows no days.
    let span = text.parse::<Span>();
    let span = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let is_number = || text.trim().parse::<u64>().is_ok();
    let span = span.map_err(|_| match is_number() {
        true => Wrong::NoUnit,
        false => Wrong::NoDuration,
    })?;
    Duration::try_from(span).map_err(|_| Wrong::Negative)
}

impl Wrong {
    /// The broken rule, whose subject is the text, and the remedy.
    pub fn told(self) -> (&'static str, &'static str) {
        match self {
            Wrong::NoDuration => (
                "is not a duration",
                "write a number and its unit, such as 500ms, 15s, 3m, 2h30m or 2d",
            ),
            Wrong::NoUnit => (
                "has no unit",
                "write it behind the number, as in 10s for ten seconds, or 500ms, 3m, 2h30m, 2d",
            ),
            Wrong::Negative => ("is negative", "drop the sign"),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, remedy) = self.told();
        write!(f, "it {rule}; {remedy}")
    }
}

impl std::error::Error for Wrong {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_people_do() {
        for (text, ms) in [
            ("15m", 900_000),
            ("2h30m", 9_000_000),
            ("1d 12h", 129_600_000),
            ("1500ms", 1500),
            ("PT15M", 900_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_the_valid_form() {
        for text in ["", "soon", "1mo", "60 bananas"] {
            assert_eq!(parse(text), Err(Wrong::NoDuration), "{text}");
        }
        assert_eq!(parse("15"), Err(Wrong::NoUnit));
        assert_eq!(parse("-5m"), Err(Wrong::Negative));
        assert!(Wrong::NoDuration.to_string().contains("2h30m"));
    }
}
