//! Sets payloads out: JSON with its numbers as they were written, text, or bytes as hexadecimal
//! digits.

use std::fmt::Write;

use serde_json::value::RawValue;

use crate::visible;

/// The most bytes that are shown; the page offers the whole payload as a file.
pub(crate) const SHOWN: usize = 64 * 1024;

/// Bytes of a line of hexadecimal digits.
const LINE: usize = 16;

/// A payload as the page shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) form: Form,
    /// The number of bytes of the whole.
    pub(crate) bytes: u64,
    /// Whether only its beginning is shown.
    pub(crate) is_cut: bool,
    pub(crate) parts: Vec<Part>,
    /// The text to edit, unless the payload is bytes or is cut.
    pub(crate) text: Option<String>,
}

/// The form of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Text,
    Bytes,
}

/// A piece of the shown text, and its class in the style.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) class: &'static str,
    pub(crate) text: String,
}

impl Form {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Form::Json => "json",
            Form::Text => "text",
            Form::Bytes => "bytes",
        }
    }
}

impl Payload {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok();
        let is_json = serde_json::from_slice::<&RawValue>(bytes).is_ok();
        let is_printed = |text: &&str| !text.chars().any(|it| it.is_control() && !is_space(it));
        let form = match text.filter(is_printed) {
            Some(_) if is_json => Form::Json,
            Some(text) if !text.is_empty() => Form::Text,
            _ => Form::Bytes,
        };
        let is_cut = bytes.len() > SHOWN;
        let parts = match (form, text) {
            (Form::Json, Some(text)) if !is_cut => json(text),
            (Form::Json | Form::Text, Some(text)) => vec![plain(visible::text(beginning(text)))],
            _ => hexadecimal(&bytes[..bytes.len().min(SHOWN / 4)]),
        };
        let text = text.filter(|_| form != Form::Bytes && !is_cut);
        Payload {
            form,
            bytes: bytes.len() as u64,
            is_cut,
            parts,
            text: text.map(ToOwned::to_owned),
        }
    }
}

fn is_space(it: char) -> bool {
    matches!(it, ' ' | '\t' | '\n' | '\r')
}

fn plain(text: impl Into<String>) -> Part {
    Part {
        class: "",
        text: text.into(),
    }
}

/// The first bytes of a text, up to a whole character.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(SHOWN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Sets valid JSON out, a value a line. Strings and numbers stay as they were written: a number
/// beyond 2^53 keeps its digits.
fn json(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut depth = 0_usize;
    let mut rest = text.trim_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string(rest),
            '{' | '[' | '}' | ']' | ',' | ':' => 1,
            _ => rest
                .find(|it| is_space(it) || ",:]}".contains(it))
                .unwrap_or(rest.len()),
        };
        let (token, behind) = rest.split_at(length);
        rest = behind.trim_start_matches(is_space);
        match first {
            '{' | '[' if rest.starts_with(['}', ']']) => parts.push(plain(token)),
            '{' | '[' => {
                depth += 1;
                parts.push(plain(format!("{token}\n{}", indent(depth))));
            }
            '}' | ']'
                if parts
                    .last()
                    .is_some_and(|it| it.text == "{" || it.text == "[") =>
            {
                parts.push(plain(token));
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                parts.push(plain(format!("\n{}{token}", indent(depth))));
            }
            ',' => parts.push(plain(format!(",\n{}", indent(depth)))),
            ':' => parts.push(plain(": ")),
            '"' if rest.starts_with(':') => parts.push(part("name", &visible::json(token))),
            '"' => parts.push(part("string", &visible::json(token))),
            _ => parts.push(part("number", token)),
        }
    }
    parts
}

fn part(class: &'static str, text: &str) -> Part {
    Part {
        class,
        text: text.to_owned(),
    }
}

/// The length of the string at the beginning, with its quotes.
fn string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Deep nesting is not set further to the right.
fn indent(depth: usize) -> String {
    "  ".repeat(depth.min(40))
}

/// Lines of offset, digits and characters.
fn hexadecimal(bytes: &[u8]) -> Vec<Part> {
    let lines = bytes.chunks(LINE).enumerate().flat_map(|(line, bytes)| {
        let mut digits = String::new();
        for (at, byte) in bytes.iter().enumerate() {
            let gap = if at == LINE / 2 { "  " } else { " " };
            let _ = write!(digits, "{gap}{byte:02x}");
        }
        let shown = |&byte: &u8| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '.',
        };
        let text: String = bytes.iter().map(shown).collect();
        [
            part("name", &format!("{:08x}", line * LINE)),
            plain(format!(" {digits:<49}  ")),
            part("string", &format!("{text}\n")),
        ]
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        let parts = Payload::of(bytes).parts.into_iter();
        parts.map(|part| part.text).collect()
    }

    #[test]
    fn json_is_set_out_and_its_numbers_stay() {
        let text = br#" {"a":[9007199254740993,1.50,-0],"b":{},"c":[ ],"d\"{":"x,\\","e":true} "#;
        let set_out = "{\n  \"a\": [\n    9007199254740993,\n    1.50,\n    -0\n  ],\n  \"b\": {},\n  \
                       \"c\": [],\n  \"d\\\"{\": \"x,\\\\\",\n  \"e\": true\n}";
        assert_eq!(shown(text), set_out);
        assert_eq!(Payload::of(text).form, Form::Json);
        for whole in ["1", "\"x\"", "null", "[]", "[[1],[]]"] {
            let tight: String = shown(whole.as_bytes()).split_whitespace().collect();
            assert_eq!(tight, whole);
        }
    }

    #[test]
    fn other_payloads_are_text_or_bytes() {
        assert_eq!(Payload::of("größer\nals".as_bytes()).form, Form::Text);
        assert_eq!(shown("größer\nals".as_bytes()), "größer\nals");
        assert_eq!(Payload::of(b"").form, Form::Bytes);
        assert_eq!(Payload::of(b"a\x1b[31m").form, Form::Bytes);
        let shown = shown(b"\x00\xffabcdefghijklmnop");
        assert!(
            shown.starts_with("00000000  00 ff 61 62 63 64 65 66  67"),
            "{shown}"
        );
        assert!(
            shown.contains("  ..abcdefghijklmn\n00000010  6f 70"),
            "{shown}"
        );
    }

    #[test]
    fn hidden_characters_are_shown_and_json_keeps_its_value() {
        let json = "{\"a\u{200b}\":\"\u{202e}x\"}";
        let set_out = shown(json.as_bytes());
        assert_eq!(set_out, "{\n  \"a\\u200b\": \"\\u202ex\"\n}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&set_out), value(json));
        assert_eq!(shown("a\n\u{202e}b".as_bytes()), "a\n\\u{202e}b");
        // The text to edit is the payload itself.
        let payload = Payload::of(json.as_bytes());
        assert_eq!(payload.text.as_deref(), Some(json));
    }

    #[test]
    fn a_large_payload_is_cut_between_characters() {
        let large = "ä".repeat(SHOWN);
        let payload = Payload::of(large.as_bytes());
        assert!(payload.is_cut && payload.text.is_none());
        assert_eq!(payload.bytes, 2 * SHOWN as u64);
        assert_eq!(payload.parts[0].text.len(), SHOWN);
        let bytes = Payload::of(&vec![0; 2 * SHOWN]);
        assert!(bytes.is_cut);
    }
}
