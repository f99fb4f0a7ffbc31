//! Reads the answer of Redis to the end of each run from the log of a worker.

use std::fmt;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Id, Level, Subscriber, span};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::journal::{Journal, What};

/// The target of the event by which a handler, in the span of its run, identifies the run.
pub(crate) const BEGAN: &str = "chaos::began";

/// Writes down settlements that were taken or refused.
pub(crate) struct Settlements(Arc<Journal>);

impl Settlements {
    /// Writes settlements of the whole process to this journal from now on. Warnings go to its
    /// standard error.
    pub(crate) fn write_to(journal: &Arc<Journal>) {
        let wanted = filter_fn(|meta| {
            let target = meta.target();
            let is_of_a_run = target.starts_with("keyfall::worker") || target == BEGAN;
            is_of_a_run && *meta.level() <= Level::DEBUG
        });
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .with_filter(LevelFilter::INFO);
        let subscriber = tracing_subscriber::registry()
            .with(Settlements(journal.clone()).with_filter(wanted))
            .with(lines);
        tracing::subscriber::set_global_default(subscriber).expect("it is the first");
    }
}

/// The fields of a span or an event that describe a run.
#[derive(Default, Clone)]
struct Said {
    message: String,
    key: String,
    fence: u64,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "key" => self.key = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "fence" {
            self.fence = value;
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Settlements {
    fn on_new_span(&self, attrs: &span::Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut said = Said::default();
        attrs.record(&mut said);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(said);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        // The handler may have opened a span below the span of its run.
        let mut spans = context.event_scope(event).into_iter().flatten();
        let is_of_a_run = |span: &SpanRef<'_, S>| {
            let extensions = span.extensions();
            extensions
                .get::<Said>()
                .is_some_and(|it| !it.key.is_empty())
        };
        let Some(span) = spans.find(is_of_a_run) else {
            return;
        };
        if event.metadata().target() == BEGAN {
            if let Some(run) = span.extensions_mut().get_mut::<Said>() {
                run.fence = said.fence;
            }
            return;
        }
        let taken = match said.message.as_str() {
            "settled" | "a job ended as a dead letter" => Some(true),
            "the run ended too late: this worker no longer has the lease" => Some(false),
            "Redis could not be told about the end of this run; the job will run again" => None,
            _ => return,
        };
        let run = span.extensions().get::<Said>().cloned();
        let Said { key, fence, .. } = run.expect("it was found by that");
        self.0.note(match taken {
            Some(taken) => What::Settled { key, fence, taken },
            None => What::Unheard { key, fence },
        });
    }
}
