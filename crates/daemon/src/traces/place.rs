//! The trace of a request, and of all work for it.

use axum::extract::Request;
use axum::http::StatusCode;
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::Status;
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Instrument, Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::sending::PROBES;

/// A span, and beside it the span of the caller if this daemon records none of its own: jobs that
/// are scheduled here continue the one or the other.
#[derive(Clone)]
pub(crate) struct Place {
    span: Span,
    caller: Context,
}

impl Place {
    /// The trace of this request: the trace in its headers `traceparent` and `tracestate`, or a new
    /// one. Health checks are not traced.
    pub(crate) fn of(request: &Request, id: &str, route: &str, is_probe: bool) -> Self {
        if is_probe {
            return Place {
                span: info_span!(target: PROBES, "request", id),
                caller: Context::new(),
            };
        }
        // The log does not show fields that stay empty.
        let span = info_span!("request", id, otel.name = Empty, otel.kind = Empty);
        let headers = HeaderExtractor(request.headers());
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        if span.set_parent(caller.clone()).is_err() {
            return Place { span, caller };
        }
        let method = request.method().to_string();
        span.record("otel.name", format!("{method} {route}").trim_end());
        span.record("otel.kind", "server");
        span.set_attribute("http.request.method", method);
        span.set_attribute("http.route", route.to_owned());
        Place {
            span,
            caller: Context::new(),
        }
    }

    /// The place of the running code.
    pub(crate) fn current() -> Self {
        Place {
            span: Span::current(),
            caller: Context::current(),
        }
    }

    /// Runs a future in this place.
    pub(crate) fn hold<F: Future>(self, act: F) -> impl Future<Output = F::Output> {
        act.with_context(self.caller).instrument(self.span)
    }

    /// Records the status of the answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        let code = i64::from(status.as_u16());
        self.span.set_attribute("http.response.status_code", code);
        if status.is_server_error() {
            self.span.set_attribute("error.type", code.to_string());
            self.span.set_status(Status::error(""));
        }
    }
}
