//! The report as a table for people.

use std::fmt::Write as _;

use super::args::Options;
use super::cost::Cost;
use super::figures::{FIGURES, Figures, median};
use super::histogram::Histogram;
use super::usage::Server;

/// The table of all figures. With more than one run, the least and the greatest value stand beside
/// the median; with the plain form, its values stand in a column of their own.
pub(super) fn table(options: &Options, server: &Server, figures: &Figures) -> String {
    let mut text = format!(
        "keyfall {} on {} {}{}, {} jobs over {:?}, {} at one instant, {} bytes each\n\n",
        env!("CARGO_PKG_VERSION"),
        server.name,
        server.version,
        match server.count {
            1 => String::new(),
            count => format!(" ({count} primaries)"),
        },
        options.jobs,
        options.window,
        options.burst,
        options.payload,
    );
    if options.plain {
        line(&mut text, &["", "keyfall", "plain", "", ""], true);
    }
    for figure in FIGURES {
        let shown = |value| format!("{value:.*}", figure.digits);
        let middle = |values| median(values).map(shown).unwrap_or_default();
        let (values, plain) = match figure.name.strip_prefix("plain.") {
            // A figure of the plain form alone.
            Some("lost") => (&[][..], figures.of(figure.name)),
            // The figure of the plain form stands beside Keyfall's.
            Some(_) => continue,
            None => {
                let plain = format!("plain.{}", figure.name);
                (figures.of(figure.name), figures.of(&plain))
            }
        };
        if values.is_empty() && plain.is_empty() {
            continue;
        }
        let range = match values {
            [least, .., greatest] => format!("{} to {}", shown(*least), shown(*greatest)),
            _ => String::new(),
        };
        let (value, plain) = (middle(values), middle(plain));
        let columns = [figure.label, &value, &plain, figure.unit, &range];
        line(&mut text, &columns, options.plain);
    }
    costs(&mut text, figures);
    draw(&mut text, "lateness", &figures.lateness);
    draw(
        &mut text,
        "lateness of the plain form",
        &figures.plain_lateness,
    );
    text
}

/// Adds a line for each measured phase, with the median of each part of the cost.
fn costs(text: &mut String, figures: &Figures) {
    for (place, (phase, parts)) in figures.costs.iter().enumerate() {
        // Writing to a string does not fail.
        if place == 0 {
            let _ = write!(text, "\n  {:<24}", "what a job cost");
            for (part, _) in Cost::default().parts() {
                let _ = write!(text, " {:>17}", part.replace('_', " "));
            }
            text.push('\n');
        }
        let _ = write!(text, "  {phase:<24}");
        for (part, _) in Cost::default().parts() {
            let middle = parts.get(part).and_then(|values| median(values));
            let _ = write!(text, " {:>17.2}", middle.unwrap_or(f64::NAN));
        }
        text.push('\n');
    }
}

/// Adds one line. The columns are label, value, value of the plain form, unit, range.
fn line(text: &mut String, columns: &[&str; 5], with_plain: bool) {
    let [label, value, plain, unit, range] = columns;
    // Writing to a string does not fail.
    let _ = write!(text, "  {label:<24} {value:>12}");
    if with_plain {
        let _ = write!(text, " {plain:>12}");
    }
    let _ = write!(text, "  {unit:<9} {range}");
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Adds a histogram with its title, unless it is empty.
fn draw(text: &mut String, title: &str, histogram: &Histogram) {
    let bars = histogram.to_string();
    if !bars.is_empty() {
        let _ = write!(
            text,
            "\n{title}, in jobs; bars grow with the logarithm\n{bars}"
        );
    }
}
