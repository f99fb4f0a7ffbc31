//! [`LimitScope`]: what a limit is for, one kind or all kinds with a prefix.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;

/// What a limit is for: one kind, `app1:mail:send`, or all kinds with a prefix, `app1:mail:` or
/// `app1:`. Of the limits that cover a kind, that of the kind itself holds, else that of the longest
/// prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitScope(String);

impl LimitScope {
    /// Parses a kind, or a prefix of kinds that ends with a colon.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] for another text.
    pub fn parse(text: &str) -> Result<Self> {
        let segments = text.split(':').count();
        if segments > 3 || !text.ends_with(':') {
            // A kind may be written with its colon, as the prefix of its jobs.
            let kind = Kind::parse(text.strip_suffix(':').unwrap_or(text));
            return match kind {
                Ok(kind) => Ok(LimitScope::of(&kind)),
                Err(error) if segments < 3 => Err(Error::new(
                    ErrorKind::InvalidKey,
                    format!(
                        "{error}; the limit of several kinds is set for a prefix that ends with a \
                         colon, `app1:mail:`"
                    ),
                )),
                Err(error) => Err(error),
            };
        }
        Prefix::parse(text)?;
        Ok(LimitScope(text.to_owned()))
    }

    /// The scope of this kind alone.
    pub(crate) fn of(kind: &Kind) -> Self {
        LimitScope(kind.as_str().to_owned())
    }

    /// The scopes that cover a kind, the narrowest first.
    pub(crate) fn all_of(kind: &Kind) -> [Self; 3] {
        let text = kind.as_str();
        let mut colons = text.match_indices(':').map(|(at, _)| at + 1);
        let (app, module) = (colons.next().unwrap_or(0), colons.next().unwrap_or(0));
        [text, &text[..module], &text[..app]].map(|text| LimitScope(text.to_owned()))
    }

    /// The kind, if it is one kind.
    pub fn kind(&self) -> Option<Kind> {
        Kind::parse(&self.0).ok()
    }

    /// Whether it covers all kinds with a prefix.
    pub fn is_prefix(&self) -> bool {
        self.0.ends_with(':')
    }

    /// The text that [`parse`](Self::parse) reads.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The prefix of the jobs that it covers.
    pub fn prefix(&self) -> String {
        match self.is_prefix() {
            true => self.0.clone(),
            false => format!("{}:", self.0),
        }
    }

    /// The scopes that cover this one, the narrowest first.
    pub(crate) fn wider(&self) -> Vec<Self> {
        let text = self.0.strip_suffix(':').unwrap_or(&self.0);
        let ends = text.match_indices(':').map(|(at, _)| at + 1).rev();
        ends.map(|end| LimitScope(text[..end].to_owned())).collect()
    }

    /// Whether it covers this kind.
    pub fn covers(&self, kind: &Kind) -> bool {
        match self.is_prefix() {
            true => kind.as_str().starts_with(&self.0),
            false => kind.as_str() == self.0,
        }
    }
}

impl fmt::Display for LimitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> LimitScope {
        LimitScope::parse(text).unwrap()
    }

    #[test]
    fn a_scope_is_a_kind_or_a_prefix_that_ends_with_a_colon() {
        assert_eq!(scope("app1:mail:send").as_str(), "app1:mail:send");
        assert_eq!(scope("app1:mail:send:"), scope("app1:mail:send"));
        assert_eq!(scope("app1:mail:").kind(), None);
        assert_eq!(scope("app1:").prefix(), "app1:");
        assert_eq!(scope("app1:mail:send").prefix(), "app1:mail:send:");
        for (text, named) in [
            ("app1:mail", "ends with a colon"),
            ("app1", "ends with a colon"),
            ("", "ends with a colon"),
            (":", "app"),
            ("app1::", "module"),
            ("app1:mail:send:42", "4 segments"),
            ("app1:ma il:", "module"),
        ] {
            let error = LimitScope::parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn the_narrowest_scope_of_a_kind_comes_first() {
        let kind = Kind::parse("app1:mail:send").unwrap();
        let all = LimitScope::all_of(&kind).map(|scope| scope.to_string());
        assert_eq!(all, ["app1:mail:send", "app1:mail:", "app1:"]);
        for scope in LimitScope::all_of(&kind) {
            assert!(scope.covers(&kind));
        }
        let wider = |text: &str| {
            let wider = scope(text).wider().into_iter();
            wider.map(|scope| scope.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(wider("app1:mail:send"), ["app1:mail:", "app1:"]);
        assert_eq!(wider("app1:mail:"), ["app1:"]);
        assert!(wider("app1:").is_empty());
        for other in ["app1:mail:sent", "app1:mai:", "app:"] {
            assert!(!scope(other).covers(&kind), "{other}");
        }
    }
}
