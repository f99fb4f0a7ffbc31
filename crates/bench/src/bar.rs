//! The progress bar, shown if stderr is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar, which disappears when it is dropped.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// An empty bar.
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{prefix} {msg:<10} {wide_bar} {percent:>3} %");
        let bar = ProgressBar::new(1).with_style(style.expect("a template that does not change"));
        Bar(bar)
    }

    /// Sets the title of a phase, such as `run 1 of 3, lateness:`.
    pub(super) fn title(&self, title: String) {
        self.0.set_prefix(title);
    }

    /// Begins a step of the phase at 0 of `length` items.
    pub(super) fn begin(&self, step: &'static str, length: usize) {
        self.0.set_message(step);
        self.0.set_length(length as u64);
        self.0.set_position(0);
    }

    /// Adds `by` items to the progress of the step.
    pub(super) fn advance(&self, by: usize) {
        self.0.inc(by as u64);
    }

    /// Prints a warning on a line of its own.
    pub(super) fn warn(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    /// Sets the progress of the step to `position` items.
    pub(super) fn reach(&self, position: usize) {
        self.0.set_position(position as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
