//! [`Cursor`]: the beginning of a page of jobs, as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::client::JobState;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::store::Position;

/// The beginning of a page of jobs. It can be sent elsewhere as text and read back. The text is
/// opaque: its format may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Cursor {
    pub(super) state: JobState,
    pub(super) kind: Kind,
    /// The place in the kind; `None` at its beginning.
    pub(super) position: Option<Position>,
}

/// The first kind of the page, and the position in it.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if the cursor comes from another prefix or state.
pub(super) fn begin(
    after: Option<Cursor>,
    state: JobState,
    prefix: &Prefix,
) -> Result<(Option<Kind>, Option<Position>)> {
    let Some(cursor) = after else {
        return Ok((None, None));
    };
    if cursor.state != state || !prefix.covers(&cursor.kind) {
        return Err(Error::new(
            ErrorKind::InvalidSetting,
            "the cursor comes from a list of another prefix or state: use it with that prefix \
             and state",
        ));
    }
    Ok((Some(cursor.kind), cursor.position))
}

/// The states and their words in cursors.
const STATES: [(JobState, &str); 5] = [
    (JobState::Pending, "pending"),
    (JobState::Retrying, "retrying"),
    (JobState::Running, "running"),
    (JobState::Lapsed, "lapsed"),
    (JobState::Dead, "dead"),
];

/// Writes `state:app:module:biz:score:member`, with an empty score and member at the beginning of a
/// kind.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = STATES.iter().find(|(state, _)| *state == self.state);
        let (_, word) = state.expect("every state has a word");
        let (score, member) = match &self.position {
            Some((score, member)) => (score.as_str(), member.as_str()),
            None => ("", ""),
        };
        write!(f, "{word}:{}:{score}:{member}", self.kind)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text.splitn(6, ':');
            let mut part = || parts.next();
            let word = part()?;
            let (state, _) = STATES.iter().find(|(_, known)| *known == word)?;
            let kind = [part()?, part()?, part()?].join(":");
            let (score, member) = (part()?, part()?);
            let is_score = score.parse::<f64>().is_ok_and(f64::is_finite);
            let is_beginning = score.is_empty() && member.is_empty();
            if !is_score && !is_beginning {
                return None;
            }
            Some(Cursor {
                state: *state,
                kind: Kind::parse(&kind).ok()?,
                position: is_score.then(|| (score.to_owned(), member.to_owned())),
            })
        };
        parse().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidSetting,
                format!("{text:?} is not a cursor: use the cursor of a page of jobs"),
            )
        })
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> String {
        cursor.to_string()
    }
}

impl TryFrom<String> for Cursor {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text() {
        for (score, member) in [("1763712345678", "a@b/ü"), ("1.5e+300", "dead:17")] {
            let cursor = Cursor {
                state: JobState::Dead,
                kind: Kind::parse("a:b:c").unwrap(),
                position: Some((score.into(), member.into())),
            };
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
        let begin = "retrying:a:b:c::";
        assert_eq!(begin.parse::<Cursor>().unwrap().to_string(), begin);
    }

    #[test]
    fn a_text_that_is_no_cursor_is_refused() {
        for text in [
            "",
            "dead",
            "dead:a:b:c",
            "dead:a:b:c::x",
            "no:a:b:c:1:x",
            "dead:a:b *:1:x",
            "dead:a:b:c:nan:x",
            "dead:a:b:c:inf:x",
        ] {
            let error = text.parse::<Cursor>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{text}");
        }
    }
}
