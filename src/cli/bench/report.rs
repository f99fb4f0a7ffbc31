//! The table for people.

use std::fmt::Write as _;

use super::args::Options;
use super::figures::{FIGURES, Figures, median};
use super::usage::Server;

/// With more than one run, the least and the greatest stand beside the median.
pub(super) fn table(options: &Options, server: &Server, figures: &Figures) -> String {
    let mut text = format!(
        "keyfall {} on {} {}, {} jobs over {:?}, {} at one instant, {} bytes each\n\n",
        env!("CARGO_PKG_VERSION"),
        server.name,
        server.version,
        options.jobs,
        options.window,
        options.burst,
        options.payload,
    );
    for figure in FIGURES {
        let values = figures.of(figure.name);
        let Some(value) = median(values) else {
            continue;
        };
        let digits = figure.digits;
        let (label, unit) = (figure.label, figure.unit);
        // Writing to a string does not fail.
        let _ = write!(text, "  {label:<26} {value:>12.digits$} {unit:<9}");
        if let [least, .., greatest] = values {
            let _ = write!(text, " {least:.digits$} to {greatest:.digits$}");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    let lateness = figures.lateness.to_string();
    if !lateness.is_empty() {
        let _ = write!(
            text,
            "\nlateness, how many jobs, bars by logarithm\n{lateness}"
        );
    }
    text
}
