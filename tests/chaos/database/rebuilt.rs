//! The rules if Redis has lost jobs, and they were brought back from the copy.
//!
//! A loss breaks other rules by design. The counters of the ledgers begin anew, or go back. Records of
//! ended jobs that Redis had not handed over are not in the archive. Rows of the outbox are passed on
//! again, so that jobs run again, and are accepted more often than they were committed.

use std::collections::HashSet;

use super::accounts::Accounts;
use super::judge::{PENDING, Runs, by_key, fates};
use crate::journal::Version;

/// What is wrong with the jobs of transactions. Of keys that had a row up to this one, an older
/// snapshot can have had a job, which stayed as it was there.
pub(super) fn judge(accounts: &Accounts, runs: &Runs, kept: i64) -> Vec<String> {
    let ran: HashSet<Version> = runs.reminded.values().copied().collect();
    let mut wrong = Vec::new();
    for (key, orders) in by_key(accounts) {
        if orders[0].id <= kept {
            continue;
        }
        for (version, fates) in fates(&orders) {
            let is_pending = accounts.pending.contains(&version);
            let told = match fates[..] {
                ["done"] if !ran.contains(&version) => "never ran",
                [PENDING] if !is_pending => "is not pending",
                _ if is_pending && !fates.contains(&PENDING) => "is pending",
                _ if ran.contains(&version) && !fates.contains(&"done") => "ran",
                _ => continue,
            };
            wrong.push(format!(
                "version {version} of {key} {told}, and should be one of {fates:?}: {orders:?}"
            ));
        }
    }
    wrong
}
