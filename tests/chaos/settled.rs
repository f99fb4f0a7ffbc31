//! Hears from the log of a worker what Redis said to the end of each run.

use std::fmt;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Id, Level, Subscriber, span};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::journal::{Journal, What};

/// Writes down settlements that were taken or refused.
pub(crate) struct Settlements(Arc<Journal>);

impl Settlements {
    /// From now on, for the whole process. Warnings go to its standard error.
    pub(crate) fn write_to(journal: &Arc<Journal>) {
        let wanted = filter_fn(|meta| {
            meta.target().starts_with("keyfall::worker") && *meta.level() <= Level::DEBUG
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

/// What a span or an event says of a run.
#[derive(Default, Clone)]
struct Said {
    message: String,
    key: String,
    attempt: u32,
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
        if field.name() == "attempt" {
            self.attempt = value.try_into().expect("attempts are few");
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
        let taken = match said.message.as_str() {
            "settled" | "a job ended as a dead letter" => true,
            "too late to settle" => false,
            _ => return,
        };
        let span = context.event_span(event);
        let Some(run) = span.and_then(|span| span.extensions().get::<Said>().cloned()) else {
            return;
        };
        self.0.note(What::Settled {
            key: run.key,
            attempt: run.attempt,
            taken,
        });
    }
}
