//! The pattern of a route: its text, cut into four parsed segments.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::segment::{Braces, Rank, Segment, quoted};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{self, Kind};

/// A parsed route pattern; see the [module](super) for the language. Clones share it, so cloning is
/// cheap.
#[derive(Clone)]
pub(crate) struct Pattern {
    text: Arc<str>,
    /// Always four.
    segments: Arc<[Segment]>,
}

impl Pattern {
    /// Parses and checks a pattern.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`], naming the segment, the rule and the remedy.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts = split(text).map_err(|fault| invalid(text, &fault))?;
        let mut segments = Vec::with_capacity(parts.len());
        let mut names = HashSet::new();
        for (index, part) in parts.into_iter().enumerate() {
            let segment = Segment::parse(part, index).map_err(|fault| invalid(text, &fault))?;
            if let Some(name) = segment.name()
                && !names.insert(name.to_owned())
            {
                let fault = format!(
                    "its `{}` uses the name `{name}` a second time, and each name may occur once; \
                     rename one of the two",
                    key::NAMES[index]
                );
                return Err(invalid(text, &fault));
            }
            segments.push(segment);
        }
        Ok(Pattern {
            text: text.into(),
            segments: segments.into(),
        })
    }

    /// The text that was parsed.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The only kind whose keys this pattern matches, if app, module and biz are literals.
    pub(crate) fn literal_kind(&self) -> Option<Kind> {
        use Segment::Literal;
        match &self.segments[..] {
            [Literal(app), Literal(module), Literal(biz), _] => {
                Kind::parse(&format!("{app}:{module}:{biz}")).ok()
            }
            _ => None,
        }
    }

    /// The kind whose jobs this pattern is about, `app:module:biz`, or the prefix of kinds,
    /// `app:module:` or `app:`, of which it matches all. `None` if it leaves some of them out.
    pub(crate) fn whole_kinds(&self) -> Option<String> {
        if let Some(kind) = self.literal_kind() {
            return Some(kind.as_str().to_owned());
        }
        let names = self.segments[..3].iter();
        let literals: Vec<_> = names
            .map_while(|segment| match segment {
                Segment::Literal(text) => Some(format!("{text}:")),
                _ => None,
            })
            .collect();
        let rest = &self.segments[literals.len()..3];
        let is_whole = !literals.is_empty() && rest.iter().all(Segment::matches_all);
        is_whole.then(|| literals.concat())
    }

    /// A Redis glob that matches all keys of the pattern, and possibly others.
    pub(crate) fn to_glob(&self) -> String {
        let parts: Vec<String> = self.segments.iter().map(Segment::to_glob).collect();
        parts.join(":")
    }

    /// Whether some key of this kind, `app:module:biz`, matches.
    pub(crate) fn matches_kind(&self, kind: &str) -> bool {
        // Some id matches: `parse` refuses a regex for which there is none.
        let parts: Vec<&str> = kind.split(':').collect();
        parts.len() == 3
            && self
                .segments
                .iter()
                .zip(parts)
                .all(|(segment, part)| segment.matches(part))
    }

    /// Whether the id segment takes any text, so that every key of a kind matches as soon as one
    /// does.
    pub(crate) fn takes_whole_kind(&self) -> bool {
        matches!(self.segments.last(), Some(Segment::Any { .. }))
    }

    /// The names of segments, each with the index (0 to 3) of its segment.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        let names = self.segments.iter().map(Segment::name).enumerate();
        names.filter_map(|(index, name)| Some((name?, index)))
    }

    /// The ranks of the four segments; arrays compare from left to right, the lesser wins.
    pub(super) fn ranks(&self) -> [Rank; 4] {
        std::array::from_fn(|index| self.segments[index].rank())
    }

    /// The four segments.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// A regex that matches exactly the keys that the pattern matches.
    pub(super) fn key_regex(&self) -> String {
        // A key has three colons and so has this regex, hence a regex segment that could
        // match a colon never does.
        let parts: Vec<String> = self.segments.iter().map(Segment::key_regex).collect();
        format!(r"\A{}\z", parts.join(":"))
    }
}

/// Cuts the text at the colons outside of braces.
///
/// # Errors
/// A phrase, with the remedy, if there are not four segments or a brace stays open.
fn split(text: &str) -> Result<[&str; 4], String> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut braces = Braces::default();
    for (at, c) in text.char_indices() {
        braces.read(c);
        if c == ':' && braces.depth == 0 {
            parts.push(&text[begin..at]);
            begin = at + 1;
        }
    }
    parts.push(&text[begin..]);
    if braces.depth > 0
        && let Some(segment) = key::NAMES.get(parts.len() - 1)
    {
        return Err(format!(
            "its `{segment}` opens a brace that it does not close; close it, and write a literal \
             brace in a regex as `\\{{`"
        ));
    }
    parts.try_into().map_err(|parts: Vec<&str>| {
        format!(
            "it has {} segment{}, and a pattern has exactly four, `app:module:biz:id`; write \
             `*` for a segment that may be anything",
            parts.len(),
            if parts.len() == 1 { "" } else { "s" }
        )
    })
}

/// The error for a text that is no pattern; `fault` names the segment, the rule and the remedy.
fn invalid(text: &str, fault: &str) -> Error {
    Error::new(
        ErrorKind::InvalidRoute,
        format!("{} is not a route pattern: {fault}", quoted(text)),
    )
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({})", self.text)
    }
}
