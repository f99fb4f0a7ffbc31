//! Makes a job key from the name that a job had in another system.

use std::str::FromStr;

/// A text with `{member}` for the whole name, and `{1}`, `{2}`, … for the parts between its colons:
/// an id has no colon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Member,
    /// From 1.
    Part(usize),
}

impl Template {
    pub(super) fn fill(&self, member: &str) -> Result<String, String> {
        let mut key = String::new();
        for piece in &self.0 {
            key += match piece {
                Piece::Text(text) => text,
                Piece::Member => member,
                Piece::Part(number) => member
                    .split(':')
                    .nth(number - 1)
                    .ok_or_else(|| format!("it has no part {{{number}}} between its colons"))?,
            };
        }
        Ok(key)
    }
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, opened)) = rest.split_once('{') {
            let (name, behind) = opened.split_once('}').ok_or("a brace is not closed")?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(match (name, name.parse()) {
                ("member", _) => Piece::Member,
                (_, Ok(number)) if number > 0 => Piece::Part(number),
                _ => {
                    return Err(format!(
                        "{{{name}}} is not known: write {{member}} or {{1}}"
                    ));
                }
            });
            rest = behind;
        }
        if pieces.is_empty() {
            return Err(
                "without {member} or {1} all jobs would have one key: app1:trans:notice:{member}"
                    .to_owned(),
            );
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Template(pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, member: &str) -> Result<String, String> {
        template.parse::<Template>()?.fill(member)
    }

    #[test]
    fn names_are_filled_in_whole_or_in_part() {
        assert_eq!(filled("a:b:c:{member}", "42").unwrap(), "a:b:c:42");
        assert_eq!(filled("{1}:b:{1}:x{3}y", "o:p:q").unwrap(), "o:b:o:xqy");
        assert!(
            filled("a:b:c:{2}", "42")
                .unwrap_err()
                .contains("no part {2}")
        );
    }

    #[test]
    fn an_invalid_template_is_refused_with_the_reason() {
        for (template, hint) in [
            ("a:b:c:d", "one key"),
            ("a:b:c:{id}", "{id} is not known"),
            ("a:b:c:{0}", "{0} is not known"),
            ("a:b:c:{member", "not closed"),
        ] {
            let fault = filled(template, "x").unwrap_err();
            assert!(fault.contains(hint), "{template}: {fault}");
        }
    }
}
