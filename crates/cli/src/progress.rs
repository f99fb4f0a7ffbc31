//! The progress of a long command, shown on terminals.

use indicatif::{ProgressBar, ProgressStyle};

use super::plain::aside;

pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Counts towards a number of `unit`, or towards an unknown end.
    pub(crate) fn new(total: Option<u64>, unit: &'static str) -> Self {
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), "{wide_bar} {pos} of {len} {msg}"),
            None => (ProgressBar::new_spinner(), "{spinner} {pos} {msg}"),
        };
        let style = ProgressStyle::with_template(template);
        let style = style.expect("a template that does not change");
        Progress(bar.with_style(style).with_message(unit))
    }

    pub(crate) fn advance(&self, by: usize) {
        self.0.inc(by as u64);
    }

    /// Prints a note on a line of its own.
    pub(crate) fn note(&self, text: &str) {
        self.0.suspend(|| aside(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
