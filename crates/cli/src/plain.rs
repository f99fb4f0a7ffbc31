//! Makes foreign texts, such as ids and errors, safe for a terminal and for a log.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Characters that are invisible, or change the look of their neighbours: control characters,
/// characters that turn the direction of the text, and characters without width.
static UNSEEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]")
        .expect("it does not change")
});

/// Replaces characters that would move the cursor, write to the clipboard or disguise the text by a
/// visible replacement character.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    without(text, &[])
}

/// The same, but keeps the characters in `kept`. The end of a line or a column becomes a blank.
fn without<'a>(text: &'a str, kept: &[&str]) -> Cow<'a, str> {
    UNSEEN.replace_all(text, |unseen: &Captures<'_>| match &unseen[0] {
        it if kept.contains(&it) => it.to_owned(),
        "\n" | "\t" => " ".to_owned(),
        _ => char::REPLACEMENT_CHARACTER.to_string(),
    })
}

/// A JSON document without such characters, with the same meaning. Its line ends are between its
/// strings.
pub(crate) fn plain_json(document: &str) -> Cow<'_, str> {
    UNSEEN.replace_all(document, |unseen: &Captures<'_>| {
        if &unseen[0] == "\n" {
            return "\n".to_owned();
        }
        let mut escaped = String::new();
        for unit in unseen[0].encode_utf16() {
            _ = write!(escaped, "\\u{unit:04x}");
        }
        escaped
    })
}

/// Prints a text on the standard error, and keeps its line ends.
pub(crate) fn aside(text: impl AsRef<str>) {
    eprintln!("{}", without(text.as_ref(), &["\n"]));
}

/// The target of a log. Its writer has escaped foreign control characters of terminals; its own
/// colours and lines stay.
pub(crate) struct PlainLog<W>(pub(crate) W);

impl<W: io::Write> io::Write for PlainLog<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0
            .write_all(without(&text, &["\n", "\x1b"]).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_stored_text_cannot_steer_the_terminal() {
        assert_eq!(
            plain("a\x1b]52;c;x\x07\nb\u{9b}31m"),
            "a\u{fffd}]52;c;x\u{fffd} b\u{fffd}31m"
        );
    }

    #[test]
    fn invisible_characters_are_shown_and_no_others_are_touched() {
        let ranges = [
            '\u{ad}'..='\u{ad}',
            '\u{61c}'..='\u{61c}',
            '\u{180e}'..='\u{180e}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{3164}'..='\u{3164}',
            '\u{fe00}'..='\u{fe0f}',
            '\u{feff}'..='\u{feff}',
            '\u{fff9}'..='\u{fffb}',
            '\u{e0000}'..='\u{e01ef}',
        ];
        for c in ranges.into_iter().flatten() {
            assert_eq!(plain(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        for seen in [
            "order-42 ü ß",
            "注文 注文\u{3000}2",
            "a\u{a0}b",
            "سفارش",
            "🙂",
            "é e\u{301}",
        ] {
            assert_eq!(plain(seen), seen);
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "a\u{202e}b\u{e0041}c\x7f\x1b\"";
        let document = serde_json::to_string(text).unwrap();
        let plain = plain_json(&document);
        assert_eq!(plain, r#""a\u202eb\udb40\udc41c\u007f\u001b\"""#);
        assert_eq!(serde_json::from_str::<String>(&plain).unwrap(), text);
    }

    #[test]
    fn a_log_keeps_its_lines_and_colours() {
        let mut log = PlainLog(Vec::new());
        log.write_all("\x1b[2mkey=a\u{202e}b\x1b[0m\n".as_bytes())
            .unwrap();
        assert_eq!(
            String::from_utf8(log.0).unwrap(),
            "\x1b[2mkey=a\u{fffd}b\x1b[0m\n"
        );
    }
}
