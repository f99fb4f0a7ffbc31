//! What is wrong with one server, as far as it was said. Each condition is said once when it begins,
//! again when it gets better or worse, and once that it is over.
//!
//! An outage is not among them: the store meets it, and [tells](crate::store::Health) it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::doctor::Severity;

/// What can be wrong with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    /// It does not announce expired keys.
    ExpiryUnannounced,
    /// It does not announce changes of keys.
    ChangesUnannounced,
    /// There is no connection on which changes of keys are heard.
    ChangesUnheard,
    /// What it announces cannot be looked up.
    SettingUnknown,
    /// It has plain keys whose names no job can have.
    UnfitKeys,
    /// It has plain keys whose jobs are on another server.
    MisplacedKeys,
    /// The check with this id found something.
    Found(&'static str),
}

/// The conditions of one server that were said.
#[derive(Default)]
pub(crate) struct Conditions(Mutex<BTreeMap<Condition, Severity>>);

impl Conditions {
    /// The condition holds. Returns whether that has yet to be said.
    pub(crate) fn begin(&self, condition: Condition) -> bool {
        self.set(condition, Severity::Warning) == Severity::Ok
    }

    /// The condition does not hold any more. Returns whether that has yet to be said.
    pub(crate) fn end(&self, condition: Condition) -> bool {
        self.lock().remove(&condition).is_some()
    }

    /// Whether the condition was said, and not yet that it is over.
    pub(crate) fn holds(&self, condition: Condition) -> bool {
        self.lock().contains_key(&condition)
    }

    /// The condition is so bad. Returns how bad it was before.
    pub(crate) fn set(&self, condition: Condition, severity: Severity) -> Severity {
        let before = match severity {
            Severity::Ok => self.lock().remove(&condition),
            severity => self.lock().insert(condition, severity),
        };
        before.unwrap_or(Severity::Ok)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Condition, Severity>> {
        self.0.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_and_ends_is_said_once() {
        let conditions = Conditions::default();
        assert!(!conditions.end(Condition::ChangesUnheard));
        assert!(conditions.begin(Condition::ChangesUnheard));
        assert!(!conditions.begin(Condition::ChangesUnheard));
        assert!(conditions.holds(Condition::ChangesUnheard));
        assert!(conditions.begin(Condition::ExpiryUnannounced));
        assert!(conditions.end(Condition::ChangesUnheard));
        assert!(!conditions.end(Condition::ChangesUnheard));
        assert!(!conditions.holds(Condition::ChangesUnheard));
    }

    #[test]
    fn what_gets_worse_and_better_is_known() {
        let conditions = Conditions::default();
        let check = Condition::Found("memory");
        let all = [Severity::Warning, Severity::Error, Severity::Ok];
        let before = all.map(|severity| conditions.set(check, severity));
        assert_eq!(before, [Severity::Ok, Severity::Warning, Severity::Error]);
    }
}
