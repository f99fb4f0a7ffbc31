//! Prefixes of job keys, by which a call names many jobs at once.
//!
//! Bulk calls, pauses, histories and pulling consumers select jobs or kinds by them.

use crate::error::{Error, ErrorKind, Result};
use crate::key::{Kind, NAMES, check_segment};

/// The beginning of job keys: any text that can be continued to a job key, or the empty text for
/// every job. `app1` covers `app1:…` and `app10:…`; `app1:` covers the first alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix {
    text: String,
    /// The byte at which the id begins, if the text has three colons.
    id_at: Option<usize>,
}

impl Prefix {
    /// Parses a prefix, by the rules of job keys. The last segment may be cut anywhere.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if no job key begins like this, or if the text is empty: an empty
    /// text would mean every job, which [`everything`](Self::everything) says on purpose.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(invalid(
                text,
                "it is empty, and would match every job; to match every job, use `everything()`",
            ));
        }
        let segments: Vec<&str> = text.split(':').collect();
        if segments.len() > NAMES.len() {
            return Err(invalid(
                text,
                "it has more than the four segments of a job key, `app:module:biz:id`",
            ));
        }
        let (last, whole) = segments.split_last().expect("a split has a last part");
        for (name, segment) in NAMES.into_iter().zip(whole) {
            check_segment(name, segment).map_err(|fault| invalid(text, &fault))?;
        }
        // The last segment may be cut anywhere, so it may be empty.
        if !last.is_empty() {
            check_segment(NAMES[whole.len()], last).map_err(|fault| invalid(text, &fault))?;
        }
        let id_at = (segments.len() == NAMES.len()).then(|| text.len() - last.len());
        Ok(Prefix {
            text: text.to_owned(),
            id_at,
        })
    }

    /// The prefix of every job key.
    pub(crate) fn everything() -> Self {
        Prefix {
            text: String::new(),
            id_at: None,
        }
    }

    /// The text of the prefix.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether some jobs of this kind can begin with the prefix.
    pub(crate) fn covers(&self, kind: &Kind) -> bool {
        match self.id_at {
            None => kind.as_str().starts_with(&self.text),
            Some(at) => kind.as_str() == &self.text[..at - 1],
        }
    }

    /// The only kind that it covers, if it reaches the third colon.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.id_at.map(|at| &self.text[..at - 1])
    }

    /// The part of the prefix that extends into the id: of the covered kinds, the prefix covers the
    /// jobs whose ids begin with this part.
    pub(crate) fn of_id(&self) -> &str {
        self.id_at.map_or("", |at| &self.text[at..])
    }

    /// The same prefix, if it covers kinds as a whole. `what` completes "only whole kinds can be
    /// …".
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if it reaches into the id.
    pub(crate) fn of_kinds(self, what: &str) -> Result<Self> {
        if !self.of_id().is_empty() {
            return Err(invalid(
                &self.text,
                &format!(
                    "it reaches into the id, but only whole kinds can be {what}: end it with the \
                     third colon, or before"
                ),
            ));
        }
        Ok(self)
    }
}

/// The error for a text that is no prefix. The text is cut after 120 characters.
fn invalid(text: &str, fault: &str) -> Error {
    let shown: String = text.chars().take(120).collect();
    Error::new(
        ErrorKind::InvalidKey,
        format!("{shown:?} cannot begin job keys: {fault}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(text: &str) -> Vec<&'static str> {
        let prefix = Prefix::parse(text).unwrap();
        let kinds = ["app1:trans:notice", "app1:trans:notice2", "app10:trans:x"];
        let covers = |kind: &&str| prefix.covers(&Kind::parse(kind).unwrap());
        kinds.into_iter().filter(covers).collect()
    }

    #[test]
    fn a_prefix_covers_the_kinds_that_begin_with_it() {
        assert_eq!(covered("app1").len(), 3);
        assert_eq!(
            covered("app1:"),
            ["app1:trans:notice", "app1:trans:notice2"]
        );
        assert_eq!(
            covered("app1:trans:notice"),
            ["app1:trans:notice", "app1:trans:notice2"]
        );
        assert_eq!(covered("app1:trans:notice:"), ["app1:trans:notice"]);
        assert_eq!(covered("app1:trans:notice:16"), ["app1:trans:notice"]);
        assert_eq!(covered("app2:"), [""; 0]);
        assert!(Prefix::everything().covers(&Kind::parse("a:b:c").unwrap()));
    }

    #[test]
    fn a_prefix_that_reaches_into_the_id_reports_it() {
        assert_eq!(Prefix::parse("app1:trans:notice:16").unwrap().of_id(), "16");
        for text in ["app1", "app1:trans:notice", "app1:trans:notice:"] {
            let prefix = Prefix::parse(text).unwrap();
            assert_eq!(prefix.of_id(), "");
            assert!(prefix.of_kinds("paused").is_ok());
        }
        let error = Prefix::parse("a:b:c:1")
            .unwrap()
            .of_kinds("paused")
            .unwrap_err();
        assert!(error.to_string().contains("third colon"), "{error}");
    }

    #[test]
    fn a_prefix_of_no_job_key_is_refused() {
        for (text, hint) in [
            ("", "everything()"),
            (":", "`app` is empty"),
            ("app1::", "`module` is empty"),
            ("app 1", "`app` holds ' '"),
            ("app1:tr*", "`module` holds '*'"),
            ("a:b:c:x{", "`id` holds '{'"),
            ("a:b:c:d:", "four segments"),
        ] {
            let error = Prefix::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidKey);
            assert!(error.to_string().contains(hint), "{text}: {error}");
        }
        let long = "x".repeat(65);
        assert!(Prefix::parse(&long).is_err());
    }
}
