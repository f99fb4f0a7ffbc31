//! The reported problems of one server. The worker logs each problem once when it begins, again
//! when its severity changes, and once when it ends.
//!
//! Outages are not among them: the store detects and [reports](crate::store::Health) these.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::doctor::Severity;

/// A problem of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    /// The server does not announce expired keys.
    ExpiryUnannounced,
    /// The server does not announce changes of keys.
    ChangesUnannounced,
    /// The connection that receives changes of keys is down.
    ChangesUnheard,
    /// The worker may not read which events the server announces.
    SettingUnknown,
    /// The server has plain keys whose names cannot be job keys.
    UnfitKeys,
    /// The server has plain keys whose jobs belong to another server.
    MisplacedKeys,
    /// The check of the doctor with this id found a problem.
    Found(&'static str),
}

/// The reported problems of one server, with their severities. A missing entry means
/// [`Severity::Ok`].
#[derive(Default)]
pub(crate) struct Conditions(Mutex<BTreeMap<Condition, Severity>>);

impl Conditions {
    /// Records that the condition holds, as a warning. Returns `true` if it is new, and has to be
    /// reported.
    pub(crate) fn begin(&self, condition: Condition) -> bool {
        self.set(condition, Severity::Warning) == Severity::Ok
    }

    /// Records that the condition is over. Returns `true` if it was reported before, and its end
    /// has to be reported.
    pub(crate) fn end(&self, condition: Condition) -> bool {
        self.lock().remove(&condition).is_some()
    }

    /// Whether the condition was reported, and its end was not.
    pub(crate) fn holds(&self, condition: Condition) -> bool {
        self.lock().contains_key(&condition)
    }

    /// Records the severity of the condition, and returns the one before. [`Severity::Ok`] ends it.
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
    fn the_begin_and_end_of_a_condition_are_reported_once() {
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
    fn setting_a_condition_returns_its_old_severity() {
        let conditions = Conditions::default();
        let check = Condition::Found("memory");
        let all = [Severity::Warning, Severity::Error, Severity::Ok];
        let before = all.map(|severity| conditions.set(check, severity));
        assert_eq!(before, [Severity::Ok, Severity::Warning, Severity::Error]);
    }
}
