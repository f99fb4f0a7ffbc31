//! The terms of a prefix of kinds: by which their jobs leave [records](ArchiveTerms) for an archive,
//! or [changes](CopyTerms) for a copy.

mod archive;
mod copy;

use std::fmt;

pub use archive::ArchiveTerms;
pub use copy::CopyTerms;

use crate::error::{Error, ErrorKind, Result};

/// Terms that are set for a prefix of kinds: [`ArchiveTerms`], [`CopyTerms`].
pub trait KindTerms: fmt::Debug + Copy + PartialEq + Send + Sync + 'static {
    /// The field of a ledger that has them, and the first word of the fields of rules.
    const FIELD: &'static str;

    /// What they do to the kinds, `archived`, for errors.
    const DONE: &'static str;

    /// The terms as the ledger has them, without `set who`.
    fn rule_text(&self) -> String;

    /// Reads [`rule_text`](Self::rule_text), and returns the rest of the text.
    fn of_rule(text: &str) -> Option<(Self, &str)>;

    /// # Errors
    /// [`ErrorKind::InvalidSetting`], naming the setting, the rule and the remedy.
    fn check(self) -> Result<Self>;
}

/// The terms, or the error of the fault that they have.
fn checked<T: KindTerms>(terms: T, fault: Option<String>) -> Result<T> {
    match fault {
        None => Ok(terms),
        Some(fault) => Err(Error::new(
            ErrorKind::InvalidSetting,
            format!("the {} cannot be like this: {fault}", T::FIELD),
        )),
    }
}
