//! Durations as people write them: `90s`, `1h 30m`, `2 days`.

use std::time::Duration;

use jiff::fmt::friendly::{Spacing, SpanPrinter};
use jiff::{Span, SpanRelativeTo};

use crate::error::{Error, ErrorKind, Result};

/// Reads a duration with its unit, or `0`. `part` names the duration in an error of this kind.
pub(crate) fn duration(kind: ErrorKind, part: &str, text: &str) -> Result<Duration> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    // A span, because a plain duration knows no days.
    let signed = text
        .parse::<Span>()
        .and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()))
        .map_err(|error| {
            let fault = format!(
                "{part}, {:?}, is not a duration: write a number and its unit, \
                 such as 15s, 3m, 1h30m or 2d",
                shown(text)
            );
            Error::new(kind, fault).because(error)
        })?;
    Duration::try_from(signed).map_err(|_| {
        let fault = format!(
            "{part}, {:?}, is negative, and a delay is zero or more: drop the sign",
            shown(text)
        );
        Error::new(kind, fault)
    })
}

/// The first 40 characters of a text, for an error.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A duration as one word, `1h30m`, so that several can stand in one text.
pub(crate) fn written(duration: &Duration) -> String {
    SpanPrinter::new()
        .spacing(Spacing::None)
        .unsigned_duration_to_string(duration)
}
