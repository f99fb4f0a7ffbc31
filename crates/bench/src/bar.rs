//! How far a measurement is, shown where there is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{prefix} {msg:<10} {wide_bar} {percent:>3} %");
        let bar = ProgressBar::new(1).with_style(style.expect("a template that does not change"));
        Bar(bar)
    }

    /// What comes now, as in `run 1 of 3, lateness:`.
    pub(super) fn title(&self, title: String) {
        self.0.set_prefix(title);
    }

    /// A step of it, which takes so many strides.
    pub(super) fn begin(&self, step: &'static str, length: usize) {
        self.0.set_message(step);
        self.0.set_length(length as u64);
        self.0.set_position(0);
    }

    pub(super) fn advance(&self, by: usize) {
        self.0.inc(by as u64);
    }

    /// Says something on a line of its own.
    pub(super) fn warn(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    pub(super) fn reach(&self, position: usize) {
        self.0.set_position(position as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
