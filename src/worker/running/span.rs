//! The span of a run. It belongs to the trace of the call that scheduled the job, and its fields
//! follow the [conventions for messaging](https://opentelemetry.io/docs/specs/semconv/messaging/).

use opentelemetry::Context;
use opentelemetry::trace::{Status, TraceContextExt};
use tracing::{Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::handler::Job;
use crate::key::JobKey;
use crate::record::Header;
use crate::source::Source;
use crate::store::Verb;
use crate::traces::reading;

/// The span of a run: in the trace of the call that scheduled the job, or in a trace of its own,
/// and linked to the span in which the previous attempt ended. Without a tracer, it serves the log
/// alone.
pub(super) fn run(key: &JobKey, attempt: u32, header: Option<&Header>) -> Span {
    // At the highest level, so that even a lone error in the log names its job. The log does not
    // show empty fields.
    let span = tracing::error_span!(
        target: "keyfall::worker",
        "run",
        %key,
        attempt,
        otel.name = Empty,
        otel.kind = Empty
    );
    let creation = header.and_then(|header| reading::of(&header.headers));
    let parent = match &creation {
        Some(creation) => Context::new().with_remote_span_context(creation.clone()),
        None => Context::new(),
    };
    if span.set_parent(parent).is_err() {
        return span;
    }
    let kind = key.kind();
    span.record("otel.name", format!("process {kind}"));
    span.record("otel.kind", "consumer");
    span.set_attribute("messaging.system", "keyfall");
    span.set_attribute("messaging.operation.name", "process");
    span.set_attribute("messaging.operation.type", "process");
    span.set_attribute("messaging.destination.name", kind.to_string());
    span.set_attribute("messaging.message.id", key.to_string());
    span.set_attribute("keyfall.attempt", i64::from(attempt));
    if let Some(creation) = creation {
        span.add_link(creation);
    }
    let before = header.and_then(|header| header.before.as_deref());
    if let Some(before) = before.and_then(|before| reading::read(before, "")) {
        span.add_link(before);
    }
    span
}

/// Adds the fields of this job to the span of its run.
pub(super) fn begun(span: &Span, job: &Job) {
    let bytes = i64::try_from(job.payload().len()).unwrap_or(i64::MAX);
    span.set_attribute("messaging.message.body.size", bytes);
    span.set_attribute("keyfall.lag_seconds", job.lag().as_secs_f64());
    let source = match job.source() {
        Source::Event => "event",
        Source::Pacer => "pacer",
        Source::Reconciler => "reconciler",
        Source::Backlog => "backlog",
    };
    span.set_attribute("keyfall.source", source);
}

/// Adds the outcome of the run to its span. A failed or buried job marks the span as an error.
pub(super) fn ended(span: &Span, verb: &Verb) {
    let (outcome, failure) = match verb {
        Verb::Done => ("done", None),
        Verb::Skip { .. } => ("skipped", None),
        Verb::Later { step, header, .. } if *step == "failed" => (*step, Some(header)),
        Verb::Later { step, .. } => (*step, None),
        Verb::Bury { header } => ("buried", Some(header)),
    };
    span.set_attribute("keyfall.outcome", outcome);
    // The header is read only if a tracer records the span.
    if let Some(header) = failure
        && span.context().span().is_recording()
    {
        fail(span, outcome, Header::reason(header).unwrap_or_default());
    }
}

/// Marks the span as an error: its run lost its lease, so its result does not count.
pub(super) fn lost(span: &Span) {
    fail(span, "lost", "the lease was lost".into());
}

/// Marks a span as an error.
fn fail(span: &Span, sort: &'static str, why: String) {
    span.set_attribute("error.type", sort);
    span.set_status(Status::error(why));
}
