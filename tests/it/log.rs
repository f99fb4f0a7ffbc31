//! The log of a worker, for the tests that read it.

use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// The lines that Keyfall logs at `info` and above, on this thread and on the threads of the
/// workers that it starts. A test that reads them has a runtime of one thread.
pub(crate) struct Log {
    lines: Lines,
    _until_dropped: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    /// The lines of every level, and of all dependencies of Keyfall.
    all: bool,
}

impl Log {
    pub(crate) fn read() -> Self {
        Log::of(Lines::default())
    }

    /// All lines and spans of every level, from any crate.
    pub(crate) fn everything() -> Self {
        Log::of(Lines {
            all: true,
            ..Lines::default()
        })
    }

    fn of(lines: Lines) -> Self {
        // With only one subscriber, `tracing` asks the subscriber of the thread that reaches a line
        // first: the thread of another test has none, and the line would be off for all threads.
        static ANOTHER: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));
        LazyLock::force(&ANOTHER);
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        Log {
            lines,
            _until_dropped: tracing::subscriber::set_default(subscriber),
        }
    }

    /// All lines with this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let lines = self.lines.lines.lock().unwrap();
        let lines = lines.iter().map(|(_, line)| line);
        lines.filter(|line| line.contains(text)).cloned().collect()
    }

    /// All warnings and errors.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let lines = self.lines.lines.lock().unwrap();
        let is_warning = |(level, _): &&(Level, String)| *level <= Level::WARN;
        let lines = lines.iter().filter(is_warning);
        lines.map(|(_, line)| line.clone()).collect()
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let is_ours = *meta.level() <= Level::INFO && meta.target().starts_with("keyfall");
        if self.all || is_ours {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.lines.lock().unwrap().push((*meta.level(), line.0));
        }
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if self.all {
            let mut line = Line(String::new());
            attributes.record(&mut line);
            let level = *attributes.metadata().level();
            self.lines.lock().unwrap().push((level, line.0));
        }
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}
