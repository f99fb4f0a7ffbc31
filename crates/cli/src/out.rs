//! The output of commands: tables for people, JSON for programs.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::plain::{plain, plain_json};

/// The most characters of a text without a limit in a table.
const WIDEST: usize = 72;

/// The standard output. If its reader has closed it, its error is marked by [`Closed`].
pub(crate) struct Stdout(io::Stdout);

/// The reader of the standard output has closed it, as `head` does.
#[derive(Debug)]
pub(crate) struct Closed;

pub(crate) fn stdout() -> Stdout {
    Stdout(io::stdout())
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

/// An error of the standard output, which says so if the output is closed.
pub(crate) fn marked(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, Closed),
        _ => error,
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the standard output has closed it")
    }
}

impl std::error::Error for Closed {}

#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

impl Form {
    /// One value: for programs as JSON, for people as the sentence.
    pub(crate) fn say(self, value: &impl Serialize, sentence: impl AsRef<str>) -> io::Result<()> {
        if self.json {
            return json(value);
        }
        line(sentence)
    }
}

/// One value on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let document = serde_json::to_string(value)?;
    writeln!(stdout(), "{}", plain_json(&document))
}

/// One line for people.
pub(crate) fn line(text: impl AsRef<str>) -> io::Result<()> {
    writeln!(stdout(), "{}", plain(text.as_ref()))
}

/// Prints a text of ours, as it is.
pub(crate) fn text(text: &str) -> io::Result<()> {
    stdout().write_all(text.as_bytes())
}

/// A table, with lines on a terminal, and plain elsewhere. Columns named `>name` are aligned to the
/// right.
pub(crate) fn table<const N: usize>(
    titles: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    let mut table = Table::new();
    let is_terminal = io::stdout().is_terminal();
    table.load_style(if is_terminal {
        presets::UTF8_FULL_CONDENSED
    } else {
        presets::NOTHING
    });
    table.set_header(titles.map(|title| title.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.map(|cell| shorter(&plain(&cell))));
    }
    for (column, title) in table.column_iter_mut().zip(titles) {
        if !is_terminal {
            column.set_padding((0, 2));
        }
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = stdout();
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Labels and values, one below the other.
pub(crate) fn sheet(fields: &[(&str, String)]) -> io::Result<()> {
    let widest = fields.iter().map(|(label, _)| label.len()).max();
    let widest = widest.unwrap_or_default();
    let mut out = stdout();
    for (label, value) in fields {
        writeln!(out, "{label:widest$}  {}", plain(value))?;
    }
    Ok(())
}

fn shorter(text: &str) -> String {
    match text.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shorter(&"ü".repeat(WIDEST)), "ü".repeat(WIDEST));
        let cut = format!("{}…", "ü".repeat(WIDEST));
        assert_eq!(shorter(&"ü".repeat(WIDEST + 1)), cut);
    }
}
