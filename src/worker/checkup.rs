//! The doctor of a worker: looks at the server with each new connection, and says what is wrong
//! with it when that is new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::doctor::{EVICTION_POLICY, Finding, NOTIFY_FLAGS, SERVER_LOADING, Severity, of_server};
use crate::store::Store;

/// How often it looks at the most, however often the connection breaks.
const AT_LEAST: Duration = Duration::from_secs(3);

/// Looks at one server.
pub(crate) struct Checkup {
    store: Arc<Store>,
    asked: Notify,
}

/// What was said, and not yet taken back: check → how bad it is.
type Said = BTreeMap<&'static str, Severity>;

impl Checkup {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Checkup {
            store,
            asked: Notify::new(),
        }
    }

    /// The connection is new. Nobody waits for the look.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Looks whenever somebody asks for it, for ever.
    pub(crate) async fn run(&self) {
        // Said by the client, when it connected.
        let mut said = None;
        loop {
            self.asked.notified().await;
            match of_server(&self.store).await {
                Ok(findings) => {
                    let before = said.get_or_insert_with(|| said_by_client(&findings));
                    tell(findings, before, &self.store.address());
                }
                // Whoever is away will be back, and is asked again then.
                Err(error) => tracing::debug!(%error, "the server could not be looked at"),
            }
            sleep(AT_LEAST).await;
        }
    }
}

fn said_by_client(findings: &[Finding]) -> Said {
    let of_eviction = findings.iter().filter(|it| it.check == &EVICTION_POLICY);
    of_eviction.map(|it| (it.check.id, it.severity)).collect()
}

/// Says what is new, and what is over.
fn tell(findings: Vec<Finding>, said: &mut Said, server: &str) {
    for finding in findings {
        let (check, severity) = (finding.check, finding.severity);
        // Whoever looks after the flags speaks of them, and whoever asks a server that is loading;
        // what was not seen is as it was, for all that is known.
        if [&NOTIFY_FLAGS, &SERVER_LOADING].contains(&check) || !finding.is_seen {
            continue;
        }
        let before = said.insert(check.id, severity).unwrap_or(Severity::Ok);
        if before == severity {
            continue;
        }
        let Finding { found, remedy, .. } = finding;
        let remedy = remedy.unwrap_or_default();
        match severity {
            Severity::Error => {
                tracing::error!(check = check.id, server, found, remedy, "{}", check.why);
            }
            Severity::Warning => {
                tracing::warn!(check = check.id, server, found, remedy, "{}", check.why);
            }
            _ if before > Severity::Info => {
                tracing::info!(check = check.id, server, found, "that is over");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_any_more_is_not_over() {
        let mut said = Said::from([(EVICTION_POLICY.id, Severity::Warning)]);
        let unseen = Finding {
            check: &EVICTION_POLICY,
            severity: Severity::Info,
            is_seen: false,
            found: "not seen: NOPERM".to_owned(),
            remedy: None,
            fixed: None,
        };
        tell(vec![unseen], &mut said, "");
        assert_eq!(said[EVICTION_POLICY.id], Severity::Warning);
    }
}
