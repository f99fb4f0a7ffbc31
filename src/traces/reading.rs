//! Reads trace context from the headers of a job. The headers are untrusted input: any producer can
//! write them.

use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

use super::{PARENT, STATE};
use crate::headers::Headers;

/// The span that a job comes from; `None` without the headers, or if they are malformed.
pub(crate) fn of(headers: &Headers) -> Option<SpanContext> {
    read(headers.get(PARENT)?, headers.get(STATE).unwrap_or_default())
}

/// The span in the values of `traceparent` and `tracestate`. A malformed state is ignored, as the
/// W3C asks; a malformed parent means no span. Newer versions of the format are read as far as this
/// one knows them.
pub(crate) fn read(parent: &str, state: &str) -> Option<SpanContext> {
    let mut parts = parent.split('-');
    let mut part = |length: usize| {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let part = parts.next()?;
        (part.len() == length && part.bytes().all(is_hex)).then_some(part)
    };
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    // Later versions may append further parts.
    if version == "ff" || version == "00" && parts.next().is_some() {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let found = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        TraceState::from_str(state).unwrap_or_default(),
    );
    found.is_valid().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn an_invalid_trace_is_ignored() {
        let zero_trace = GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = GOOD.replace("00f067aa0ba902b7", &"0".repeat(16));
        for text in [
            "",
            "1",
            "00-1-2-01",
            &GOOD.to_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            &format!("{GOOD}-more"),
            &GOOD[..54],
            &format!(" {GOOD}"),
            &zero_trace,
            &zero_span,
            &"ü".repeat(20),
        ] {
            assert_eq!(read(text, ""), None, "{text}");
        }
    }
}
