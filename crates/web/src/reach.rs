//! The jobs that a change of many reaches: a prefix, or everything. Nothing is reached by leaving a
//! field empty.

use keyfall_daemon::shapes::BulkIn;
use serde::Deserialize;

use crate::fault::Fault;

/// The fields of a form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Reach {
    /// The beginning of the keys.
    pub(crate) prefix: String,
    /// `yes` for everything, instead of a prefix.
    pub(crate) all: String,
}

impl Reach {
    pub(crate) fn is_all(&self) -> bool {
        self.all == "yes"
    }

    /// The call on these jobs.
    ///
    /// # Errors
    /// If the form says neither, or both.
    pub(crate) fn bulk(&self, is_dry: bool) -> Result<BulkIn, Fault> {
        let prefix = self.prefix.trim();
        match (prefix.is_empty(), self.is_all()) {
            (true, true) => Ok(BulkIn {
                prefix: None,
                everything: true,
                dry_run: is_dry,
            }),
            (false, false) => Ok(BulkIn {
                prefix: Some(prefix.to_owned()),
                everything: false,
                dry_run: is_dry,
            }),
            (true, false) => Err(Fault::invalid("prefix", "fault.no_prefix", &[])),
            (false, true) => Err(Fault::invalid("prefix", "fault.prefix_and_all", &[])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_form_reaches_nothing() {
        let bulk = |prefix: &str, all: &str| {
            let (prefix, all) = (prefix.to_owned(), all.to_owned());
            let bulk = Reach { prefix, all }.bulk(true).ok()?;
            assert!(bulk.dry_run);
            Some((bulk.prefix, bulk.everything))
        };
        assert_eq!(bulk("", ""), None);
        assert_eq!(bulk(" ", "no"), None);
        assert_eq!(bulk("a:", "yes"), None);
        assert_eq!(bulk(" a: ", ""), Some((Some("a:".to_owned()), false)));
        assert_eq!(bulk("", "yes"), Some((None, true)));
    }
}
