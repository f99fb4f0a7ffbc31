//! The checkup: runs the server checks of the doctor after each new connection, and logs new
//! problems and the ends of problems.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::conditions::{Condition, Conditions};
use crate::doctor::{EVICTION_POLICY, Finding, NOTIFY_FLAGS, SERVER_LOADING, Severity, of_server};
use crate::store::Server;

/// Shortest time between two checkups, however often the connection breaks.
const AT_LEAST: Duration = Duration::from_secs(3);

/// Checks one server.
pub(crate) struct Checkup {
    server: Arc<Server>,
    /// Shared with the other parts of the server's monitor, so that each problem is logged once.
    conditions: Arc<Conditions>,
    /// Requests a checkup.
    asked: Notify,
}

impl Checkup {
    pub(crate) fn new(server: Arc<Server>, conditions: Arc<Conditions>) -> Self {
        Checkup {
            server,
            conditions,
            asked: Notify::new(),
        }
    }

    /// Requests a checkup, because the connection is new. Returns at once.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Runs a checkup after each request, for ever.
    pub(crate) async fn run(&self) {
        let mut is_first = true;
        loop {
            self.asked.notified().await;
            match of_server(&self.server).await {
                Ok(findings) => {
                    if std::mem::take(&mut is_first) {
                        note_said_by_client(&findings, &self.conditions);
                    }
                    tell(findings, &self.conditions, &self.server.address());
                }
                // A server that is away is checked again when it is back.
                Err(error) => tracing::debug!(%error, "the server could not be checked"),
            }
            sleep(AT_LEAST).await;
        }
    }
}

/// Records the findings that the client has logged already, when it connected.
fn note_said_by_client(findings: &[Finding], conditions: &Conditions) {
    for finding in findings.iter().filter(|it| it.check == &EVICTION_POLICY) {
        conditions.set(Condition::Found(finding.check.id), finding.severity);
    }
}

/// Logs the findings that are new or have changed, and the ends of findings.
fn tell(findings: Vec<Finding>, conditions: &Conditions, server: &str) {
    for finding in findings {
        let (check, severity) = (finding.check, finding.severity);
        // `Events` reports the flags, and the connection reports a loading server. A check that
        // could not be made changes nothing.
        if [&NOTIFY_FLAGS, &SERVER_LOADING].contains(&check) || !finding.is_seen {
            continue;
        }
        let before = conditions.set(Condition::Found(check.id), severity);
        if before == severity {
            continue;
        }
        let Finding { found, remedy, .. } = finding;
        let found: &str = &found;
        let remedy = remedy.as_deref().unwrap_or_default();
        match severity {
            Severity::Error => {
                tracing::error!(check = check.id, server, found, remedy, "{}", check.why);
            }
            Severity::Warning => {
                tracing::warn!(check = check.id, server, found, remedy, "{}", check.why);
            }
            _ if before > Severity::Info => {
                tracing::info!(check = check.id, server, found, "this finding is over");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_that_can_no_longer_be_checked_is_not_over() {
        let conditions = Conditions::default();
        let policy = Condition::Found(EVICTION_POLICY.id);
        conditions.set(policy, Severity::Warning);
        let unseen = Finding {
            check: &EVICTION_POLICY,
            severity: Severity::Info,
            is_seen: false,
            found: "not seen: NOPERM".into(),
            remedy: None,
            fixed: None,
            is_fixed: false,
        };
        tell(vec![unseen], &conditions, "");
        assert!(conditions.holds(policy));
    }
}
