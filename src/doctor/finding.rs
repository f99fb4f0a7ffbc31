//! The result of one check: [`Finding`], with its [`Severity`].

use std::fmt;

use super::checks::Check;
use crate::phrase::Phrase;
use crate::store::Observed;

/// How bad a finding is. The order is from the best to the worst.
///
/// ```
/// use keyfall::doctor::Severity;
///
/// assert!(Severity::Warning < Severity::Error);
/// assert_eq!(Severity::Warning.as_str(), "warning");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// All is as it should be.
    Ok,
    /// Worth knowing, or not visible to this user; nothing has to be done.
    Info,
    /// Jobs run late, or may be lost in a later failure.
    Warning,
    /// Jobs are lost, refused or not run, now or at the next restart.
    Error,
}

/// The result of one check.
///
/// Its `Display` is one line: severity, id, the facts, the expected state, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The check; one of [`CHECKS`](super::CHECKS).
    pub check: &'static Check,
    /// How bad the finding is.
    pub severity: Severity,
    /// Whether the facts could be seen. If not, [`found`](Self::found) says why, and the severity
    /// is [`Info`](Severity::Info).
    pub is_seen: bool,
    /// The facts, as a short phrase without a full stop.
    pub found: Phrase,
    /// The remedy: a command, or a line of `redis.conf`. `None` if nothing has to be done.
    pub remedy: Option<Phrase>,
    /// The change that [`fix`](super::Diagnose::fix) made, and how to make it last, or the refusal
    /// of Redis. `None` if it tried nothing.
    pub fixed: Option<Phrase>,
    /// Whether [`fix`](super::Diagnose::fix) has repaired it. `false` if it tried nothing, or Redis
    /// refused the change.
    pub is_fixed: bool,
}

impl Severity {
    /// The name in lower case: `ok`, `info`, `warning`, `error`.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One line: severity, id, the facts, the expected state, and the remedy.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            check,
            severity,
            found,
            ..
        } = self;
        write!(
            f,
            "{severity} {}: {found}; expected: {}",
            check.id, check.expected
        )?;
        match &self.remedy {
            Some(remedy) => write!(f, "; remedy: {remedy}"),
            None => Ok(()),
        }
    }
}

impl Finding {
    /// Whether [`fix`](super::Diagnose::fix) would try to repair it: its facts are wrong and could
    /// be seen, and the repair does no harm to other users of the server.
    pub fn is_fixable(&self) -> bool {
        self.check.is_mended && self.is_seen && self.severity > Severity::Ok
    }

    /// A finding from facts that could be seen.
    pub(super) fn new(
        check: &'static Check,
        severity: Severity,
        found: impl Into<Phrase>,
        remedy: Option<Phrase>,
    ) -> Self {
        Finding {
            check,
            severity,
            is_seen: true,
            found: found.into(),
            remedy,
            fixed: None,
            is_fixed: false,
        }
    }

    /// A finding of severity [`Ok`](Severity::Ok).
    pub(super) fn fine(check: &'static Check, found: impl Into<Phrase>) -> Self {
        Finding::new(check, Severity::Ok, found, None)
    }

    /// A finding of severity [`Info`](Severity::Info), without a remedy.
    pub(super) fn info(check: &'static Check, found: impl Into<Phrase>) -> Self {
        Finding::new(check, Severity::Info, found, None)
    }

    /// A finding of severity [`Warning`](Severity::Warning), with its remedy.
    pub(super) fn warning(
        check: &'static Check,
        found: impl Into<Phrase>,
        remedy: impl Into<Phrase>,
    ) -> Self {
        Finding::new(check, Severity::Warning, found, Some(remedy.into()))
    }

    /// A finding of severity [`Error`](Severity::Error), with its remedy.
    pub(super) fn error(
        check: &'static Check,
        found: impl Into<Phrase>,
        remedy: impl Into<Phrase>,
    ) -> Self {
        Finding::new(check, Severity::Error, found, Some(remedy.into()))
    }

    /// A finding for a check whose facts could not be seen, for this reason. If the check expects
    /// lines in `redis.conf`, they are its remedy.
    pub(super) fn unseen(check: &'static Check, why: impl Into<Phrase>) -> Self {
        let remedy = match check.settings {
            [] => None,
            lines => Some(Phrase::new(
                "remedy.conf",
                "make sure that redis.conf has `{}`",
                [lines.join("`, `").into()],
            )),
        };
        Finding {
            is_seen: false,
            ..Finding::new(
                check,
                Severity::Info,
                Phrase::new("found.unseen", "not seen: {}", [why.into()]),
                remedy,
            )
        }
    }

    /// Rewrites a remedy `CONFIG SET …` for a server that refuses `CONFIG`: as a setting for the
    /// operator of the server.
    pub(super) fn without_config(&mut self) {
        let set = self.remedy.as_mut();
        let Some((remedy, setting)) = set.and_then(|it| {
            let setting = it.strip_prefix("CONFIG SET ")?.to_owned();
            Some((it, setting))
        }) else {
            return;
        };
        *remedy = Phrase::new(
            "remedy.refuses-config",
            "set `{}` in redis.conf, or in the settings of your Redis provider: this server \
             refuses CONFIG",
            [setting.into()],
        );
    }

    /// The finding, with the server that it is about.
    pub(super) fn at(mut self, address: &str) -> Self {
        self.found = Phrase::new("found.at", "{}: {}", [address.into(), self.found]);
        self
    }

    /// The finding that `judge` makes from the facts, or [`unseen`](Self::unseen) without them.
    pub(super) fn of<T>(
        check: &'static Check,
        seen: Observed<T>,
        judge: impl FnOnce(&'static Check, T) -> Finding,
    ) -> Self {
        match seen {
            Ok(seen) => judge(check, seen),
            Err(why) => Finding::unseen(check, why),
        }
    }
}

/// The things that a finding counts.
#[derive(Clone, Copy)]
pub(super) enum Thing {
    Job,
    RecurringJob,
    DeadLetter,
    Replica,
    Key,
    Slot,
    MoreKind,
}

/// A count with its noun, in the plural where needed: `1 job`, `2 jobs`.
pub(super) fn things(count: u64, thing: Thing) -> Phrase {
    let number = [count.into()];
    match (thing, count) {
        (Thing::Job, 1) => Phrase::new("count.jobs", "{} job", number),
        (Thing::Job, _) => Phrase::new("count.jobs", "{} jobs", number),
        (Thing::RecurringJob, 1) => Phrase::new("count.recurring", "{} recurring job", number),
        (Thing::RecurringJob, _) => Phrase::new("count.recurring", "{} recurring jobs", number),
        (Thing::DeadLetter, 1) => Phrase::new("count.letters", "{} dead letter", number),
        (Thing::DeadLetter, _) => Phrase::new("count.letters", "{} dead letters", number),
        (Thing::Replica, 1) => Phrase::new("count.replicas", "{} replica", number),
        (Thing::Replica, _) => Phrase::new("count.replicas", "{} replicas", number),
        (Thing::Key, 1) => Phrase::new("count.keys", "{} key", number),
        (Thing::Key, _) => Phrase::new("count.keys", "{} keys", number),
        (Thing::Slot, 1) => Phrase::new("count.slots", "{} slot", number),
        (Thing::Slot, _) => Phrase::new("count.slots", "{} slots", number),
        (Thing::MoreKind, 1) => Phrase::new("count.more-kinds", "and {} more kind", number),
        (Thing::MoreKind, _) => Phrase::new("count.more-kinds", "and {} more kinds", number),
    }
}

/// The names of a list, and the number of the names beyond the list.
pub(super) fn named(names: &str, more: usize) -> Phrase {
    match more {
        0 => names.into(),
        more => Phrase::new("list.more", "{} and {} more", [names.into(), more.into()]),
    }
}

/// The remedy for data that another version wrote.
pub(super) fn other_version() -> Phrase {
    Phrase::new(
        "remedy.other-version",
        "run the version of Keyfall that wrote this data, or use another namespace",
        [],
    )
}
