//! One segment of a pattern: a literal, a regex, or any text.

use regex::{Regex, RegexBuilder};
use regex_automata::util::syntax;

use super::overlap::may_share_text;
use crate::key;

/// The largest size of a compiled regex, in bytes. `\w{8}` fits, `\w{99}` does not.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// The condition that a pattern sets for one segment of a key.
pub(super) enum Segment {
    /// Exactly this text, case-sensitive.
    Literal(String),
    /// A text that the regex matches as a whole.
    Regex {
        name: String,
        /// The regex in a form that means the same inside a larger one.
        source: String,
        /// The same regex, compiled to match a whole segment.
        whole: Regex,
    },
    /// Any text of at least one character.
    Any {
        /// `None` for `*`.
        name: Option<String>,
    },
}

/// The precision of a segment. The lesser rank wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Literal,
    Regex,
    Any,
}

impl Segment {
    /// Whether it matches every text.
    pub(super) fn matches_all(&self) -> bool {
        matches!(self, Segment::Any { .. })
    }

    /// Parses `part` as segment `index` (0 to 3) of a pattern.
    ///
    /// # Errors
    /// A phrase that names the segment, the rule and the remedy.
    pub(super) fn parse(part: &str, index: usize) -> Result<Self, String> {
        let segment = key::NAMES[index];
        if part == "*" {
            return Ok(Segment::Any { name: None });
        }
        if !part.contains(['*', '{', '}']) {
            return match key::check_segment(segment, part) {
                Ok(()) => Ok(Segment::Literal(part.to_owned())),
                Err(fault) => Err(format!("{fault}; correct it, or write `*` for any text")),
            };
        }
        let Some(inner) = within_braces(part) else {
            return Err(format!(
                "its `{segment}` is {}, and a wildcard takes a whole segment; write `*`, \
                 `{{name}}` or `{{name:regex}}`, as in `{{name:pre-.*}}`, and a brace inside \
                 the regex as `\\{{` or `\\}}`",
                quoted(part)
            ));
        };
        let (name, regex) = match inner.split_once(':') {
            Some((name, regex)) => (name, Some(regex)),
            None => (inner, None),
        };
        if !is_name(name) {
            return Err(format!(
                "its `{segment}` has the name {}, and a name is a letter or `_` and then \
                 letters, digits and `_`; rename it, or write `*` for any text without a name",
                quoted(name)
            ));
        }
        let name = name.to_owned();
        match regex {
            None => Ok(Segment::Any { name: Some(name) }),
            Some(regex) => compile(regex, index)
                .map(|(source, whole)| Segment::Regex {
                    name,
                    source,
                    whole,
                })
                .map_err(|fault| format!("its `{segment}` holds a regex {fault}")),
        }
    }

    /// A Redis glob that matches at least the texts that the segment matches: a literal with its
    /// special characters escaped, or `*`.
    pub(super) fn to_glob(&self) -> String {
        let Segment::Literal(text) = self else {
            return "*".to_owned();
        };
        let escaped = text.chars().flat_map(|c| {
            let special = matches!(c, '*' | '?' | '[' | ']' | '\\').then_some('\\');
            special.into_iter().chain([c])
        });
        escaped.collect()
    }

    /// The name under which handlers read the segment.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Segment::Literal(_) => None,
            Segment::Regex { name, .. } => Some(name),
            Segment::Any { name } => name.as_deref(),
        }
    }

    /// The precision of the segment.
    pub(super) fn rank(&self) -> Rank {
        match self {
            Segment::Literal(_) => Rank::Literal,
            Segment::Regex { .. } => Rank::Regex,
            Segment::Any { .. } => Rank::Any,
        }
    }

    /// Whether this text, a checked segment of a key, fits.
    pub(super) fn matches(&self, text: &str) -> bool {
        match self {
            Segment::Literal(literal) => literal == text,
            Segment::Regex { whole, .. } => whole.is_match(text),
            Segment::Any { .. } => !text.is_empty(),
        }
    }

    /// A regex for this segment, as a part of the regex of a whole key.
    pub(super) fn key_regex(&self) -> String {
        match self {
            Segment::Literal(literal) => regex::escape(literal),
            Segment::Regex { source, .. } => format!("(?:{source})"),
            Segment::Any { .. } => "[^:]+".to_owned(),
        }
    }
}

/// Parses a regex of a pattern: returns its source in a form that can be embedded, and the regex
/// compiled to match a whole segment.
///
/// # Errors
/// A phrase, with the remedy, if the regex does not parse, has an anchor or a named group, is too
/// large, or matches no text that the segment may hold.
fn compile(regex: &str, index: usize) -> Result<(String, Regex), String> {
    let parsed = syntax::parse(regex).map_err(|error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default();
        format!(
            "that does not compile ({}); correct it, or leave it out to match any text",
            reason.trim_start_matches("error: ")
        )
    })?;
    if parsed.properties().look_set().contains_anchor() {
        return Err(
            "with an anchor, and a regex takes the whole segment as it is; leave out `^`, `$`, \
             `\\A` and `\\z`"
                .to_owned(),
        );
    }
    // Printed anew because `(?x)a # b` would comment out the text behind it.
    let source = parsed.to_string();
    let whole = RegexBuilder::new(&format!(r"\A(?:{source})\z"))
        .size_limit(MAX_REGEX_BYTES)
        .build()
        .map_err(|_| {
            format!(
                "that compiles to more than {MAX_REGEX_BYTES} bytes; lower its repetitions, or \
                 write ASCII classes, such as `[0-9]` instead of `\\d`"
            )
        })?;
    if whole.capture_names().flatten().next().is_some() {
        return Err(
            "with a named group, and the segment has the only name; write `(…)`".to_owned(),
        );
    }
    if !may_share_text(&[&source], index) {
        return Err(format!(
            "that matches no {} a key can have; correct it",
            key::NAMES[index]
        ));
    }
    Ok((source, whole))
}

/// Whether the text is a name: a letter or `_`, then letters, digits and `_`, all ASCII.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The text between the first brace and its closing brace, if these are the first and the last
/// character.
fn within_braces(part: &str) -> Option<&str> {
    let inner = part.strip_prefix('{')?;
    let mut braces = Braces::default();
    let closes_at = part.char_indices().find_map(|(at, c)| {
        braces.read(c);
        (braces.depth == 0).then_some(at)
    })?;
    (closes_at + 1 == part.len()).then(|| &inner[..closes_at - 1])
}

/// Counts how deep in braces a reader is. Inside of braces, a backslash escapes the next character.
#[derive(Default)]
pub(super) struct Braces {
    /// The number of braces that are open.
    pub(super) depth: usize,
    escaped: bool,
}

impl Braces {
    /// Takes the next character of the text.
    pub(super) fn read(&mut self, c: char) {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = self.depth > 0,
            '{' => self.depth += 1,
            '}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// The text in quotes for an error, cut after 200 characters. Its backslashes stay single, because
/// a regex has many.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let mut shown = String::from("\"");
    for (count, c) in text.chars().enumerate() {
        match c {
            _ if count == SHOWN_CHARS => {
                shown.push('…');
                break;
            }
            _ if c.is_control() => shown.extend(c.escape_default()),
            _ => shown.push(c),
        }
    }
    shown.push('"');
    shown
}
