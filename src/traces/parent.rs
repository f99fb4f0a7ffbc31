//! Writes the current span as [W3C Trace Context](https://www.w3.org/TR/trace-context/), into the
//! headers of a job or of a callback.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{PARENT, STATE};
use crate::headers::Headers;

/// The longest `tracestate` that is written, in bytes: the W3C asks systems to pass on at least
/// this much. A longer one is left out.
const LONGEST_STATE: usize = 512;

/// The current span of the caller, as the values of `traceparent` and `tracestate`; the second may
/// be empty. `None` if the caller runs in no span of a trace.
pub(crate) fn current() -> Option<(String, String)> {
    // The span of `tracing`, or else the span of OpenTelemetry alone.
    let of_tracing = Span::current().context();
    let of_tracing = of_tracing.span().span_context().clone();
    let span = if of_tracing.is_valid() {
        of_tracing
    } else {
        Context::current().span().span_context().clone()
    };
    span.is_valid()
        .then(|| (written(&span), span.trace_state().header()))
}

/// Adds the current span to the headers of a job, if the limits of headers leave room. Headers that
/// have a `traceparent` already stay as they are, and so do all headers outside of a span.
pub(crate) fn carry(headers: &mut Headers) {
    if headers.get(PARENT).is_some() {
        return;
    }
    let Some((parent, state)) = current() else {
        return;
    };
    // A state without a parent belongs to no trace.
    headers.remove(STATE);
    headers.insert_if_it_fits(PARENT, parent);
    if (1..=LONGEST_STATE).contains(&state.len()) && headers.get(PARENT).is_some() {
        headers.insert_if_it_fits(STATE, state);
    }
}

/// The value of `traceparent`, in version 00. Of the flags, only `sampled` is passed on.
fn written(span: &SpanContext) -> String {
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    format!(
        "00-{}-{}-{:02x}",
        span.trace_id(),
        span.span_id(),
        flags.to_u8()
    )
}

#[cfg(test)]
mod tests {
    use super::super::reading::read;
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn within<T>(parent: &str, state: &str, act: impl FnOnce() -> T) -> T {
        let span = read(parent, state).unwrap();
        let _guard = Context::new().with_remote_span_context(span).attach();
        act()
    }

    #[test]
    fn a_trace_that_is_read_is_written_unchanged() {
        let span = read(GOOD, "a=1,b=2").unwrap();
        assert!(span.is_sampled() && span.is_remote());
        assert_eq!(written(&span), GOOD);
        assert_eq!(span.trace_state().header(), "a=1,b=2");
        let unsampled = GOOD.replace("-01", "-00");
        assert_eq!(written(&read(&unsampled, "").unwrap()), unsampled);
        let later = format!("{}-more", GOOD.replacen("00", "cc", 1));
        assert_eq!(written(&read(&later, "no state").unwrap()), GOOD);
    }

    #[test]
    fn a_job_continues_the_trace_of_its_schedule_unless_it_names_another() {
        let mut headers = Headers::from_iter([("tracestate", "left=over")]);
        carry(&mut headers);
        assert_eq!(headers, Headers::from_iter([("tracestate", "left=over")]));
        within(GOOD, "", || carry(&mut headers));
        assert_eq!(headers, Headers::from_iter([(PARENT, GOOD)]));
        let told = Headers::from_iter([(PARENT, "mine")]);
        let mut headers = told.clone();
        within(GOOD, "a=1", || carry(&mut headers));
        assert_eq!(headers, told);
    }

    #[test]
    fn a_trace_is_dropped_if_the_headers_have_no_room() {
        let full = |left: usize| {
            let bytes = crate::MAX_HEADERS_BYTES - left - 1;
            Headers::from_iter([("x", "x".repeat(bytes))])
        };
        let needed = PARENT.len() + GOOD.len();
        let carried = |left: usize| {
            let mut headers = full(left);
            within(GOOD, "a=1", || carry(&mut headers));
            headers.check(&"a:b:c:d".parse().unwrap()).unwrap();
            (headers.get(PARENT).is_some(), headers.get(STATE).is_some())
        };
        assert_eq!(carried(needed - 1), (false, false));
        assert_eq!(carried(needed), (true, false));
        assert_eq!(carried(needed + STATE.len() + 3), (true, true));
        let many = (0..crate::MAX_HEADERS).map(|number| (number.to_string(), "x"));
        let mut many: Headers = many.collect();
        let before = many.clone();
        within(GOOD, "", || carry(&mut many));
        assert_eq!(many, before);
        let mut long = Headers::new();
        let state = format!("a={}", "x".repeat(200));
        let state = [
            &state[..],
            &state.replace('a', "b"),
            &state.replace('a', "c"),
        ]
        .join(",");
        within(GOOD, &state, || carry(&mut long));
        assert_eq!((long.len(), long.get(PARENT)), (1, Some(GOOD)));
    }
}
