//! What one check has found.

use std::fmt;

use super::checks::Check;
use crate::store::Observed;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// It is as it should be.
    Ok,
    /// Worth knowing, or could not be seen; nothing has to be done.
    Info,
    /// Jobs run late, or may be lost when something else goes wrong.
    Warning,
    /// Jobs are lost, refused or not run, now or at the next restart.
    Error,
}

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Which check it is.
    pub check: &'static Check,
    /// How bad it is.
    pub severity: Severity,
    /// Whether it could be looked at. If not, [`found`](Self::found) says why.
    pub is_seen: bool,
    /// What was found.
    pub found: String,
    /// What puts it right: a command, or a line of `redis.conf`. `None` if nothing has to be done.
    pub remedy: Option<String>,
    /// What [`fix`](super::Diagnose::fix) has done about it, and how to make that last.
    pub fixed: Option<String>,
}

impl Severity {
    /// In lower case: `ok`, `info`, `warning`, `error`.
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

/// In one line.
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
    pub(super) fn new(
        check: &'static Check,
        severity: Severity,
        found: impl Into<String>,
        remedy: Option<String>,
    ) -> Self {
        Finding {
            check,
            severity,
            is_seen: true,
            found: found.into(),
            remedy,
            fixed: None,
        }
    }

    /// It is as it should be.
    pub(super) fn fine(check: &'static Check, found: impl Into<String>) -> Self {
        Finding::new(check, Severity::Ok, found, None)
    }

    /// Nothing has to be done.
    pub(super) fn info(check: &'static Check, found: impl Into<String>) -> Self {
        Finding::new(check, Severity::Info, found, None)
    }

    pub(super) fn warning(
        check: &'static Check,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(check, Severity::Warning, found, Some(remedy.into()))
    }

    pub(super) fn error(
        check: &'static Check,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(check, Severity::Error, found, Some(remedy.into()))
    }

    /// It could not be looked at, for this reason.
    pub(super) fn unseen(check: &'static Check, why: impl fmt::Display) -> Self {
        let remedy = match check.settings {
            [] => None,
            lines => Some(format!("see that redis.conf has `{}`", lines.join("`, `"))),
        };
        Finding {
            is_seen: false,
            ..Finding::new(check, Severity::Info, format!("not seen: {why}"), remedy)
        }
    }

    /// Where `CONFIG` is refused, a remedy is for whoever runs the server.
    pub(super) fn without_config(&mut self) {
        let set = self.remedy.as_mut();
        let Some((remedy, setting)) = set.and_then(|it| {
            let setting = it.strip_prefix("CONFIG SET ")?.to_owned();
            Some((it, setting))
        }) else {
            return;
        };
        *remedy = format!(
            "`{setting}` in redis.conf, or among the settings of whoever runs this server: it \
             refuses CONFIG"
        );
    }

    /// What `judge` makes of what was looked for, if it could be seen.
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

/// How many: `1 job`, `2 jobs`.
pub(super) fn things(count: u64, name: &str) -> String {
    match count {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}
