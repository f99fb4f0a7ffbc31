//! Stand-in for the pattern matcher: literal segments, `{name}` and `*`.

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;

#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Literal(String),
    Name(String),
    Any,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts: Vec<Part> = text
            .split(':')
            .map(
                |part| match part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
                    Some(name) => Part::Name(name.into()),
                    None if part == "*" => Part::Any,
                    None => Part::Literal(part.into()),
                },
            )
            .collect();
        if parts.len() != 4 {
            return Err(Error::new(
                ErrorKind::InvalidRoute,
                format!(
                    "`{text}` is no route pattern: it has {} segments",
                    parts.len()
                ),
            ));
        }
        Ok(Pattern {
            text: text.into(),
            parts,
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        self.parts
            .iter()
            .enumerate()
            .filter_map(|(at, part)| match part {
                Part::Name(name) => Some((name.as_str(), at)),
                _ => None,
            })
    }

    fn literals(&self) -> Vec<Option<&str>> {
        self.parts
            .iter()
            .map(|part| match part {
                Part::Literal(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }
}

pub(crate) fn clash(one: &Pattern, other: &Pattern) -> bool {
    one.literals() == other.literals()
}

pub(crate) fn clash_error(one: &Pattern, other: &Pattern) -> Error {
    Error::new(
        ErrorKind::InvalidRoute,
        format!(
            "routes `{}` and `{}` match the same keys",
            one.text, other.text
        ),
    )
}

pub(crate) struct RouteTable(Vec<(Pattern, i32)>);

impl RouteTable {
    pub(crate) fn new(routes: Vec<(Pattern, i32)>) -> Result<Self> {
        Ok(RouteTable(routes))
    }

    pub(crate) fn find(&self, key: &JobKey) -> Option<usize> {
        let fits = |pattern: &Pattern| {
            let mut both = pattern.literals().into_iter().zip(key.segments());
            both.all(|(literal, text)| literal.is_none_or(|literal| literal == text))
        };
        (0..self.0.len())
            .filter(|&at| fits(&self.0[at].0))
            .max_by_key(|&at| {
                (
                    self.0[at].1,
                    self.0[at].0.literals().iter().flatten().count(),
                )
            })
    }
}
