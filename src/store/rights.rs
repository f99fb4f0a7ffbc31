//! What an ACL user must be allowed, tried before anything depends on it.

use std::time::Instant;

use redis::Value;

use super::link::Request;
use super::{Store, unique_id};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::names::MARKER;

impl Store {
    /// Refuses a user who may not change the triggers or the ledger of a kind, and whose jobs
    /// would be claimed and never settled. Tries the commands themselves, on a name that no job
    /// has and fields that no ledger has: every server can be asked that, and nothing changes.
    pub(crate) async fn check_rights(&self, kind: &Kind, until: Instant) -> Result<()> {
        let trigger = format!("{kind}:{}", unique_id());
        let ledger = self.names.ledger(kind);
        let mut tries = redis::pipe();
        let mut names: Vec<(&str, String)> = Vec::new();
        for command in ["EXISTS", "DEL"] {
            tries.cmd(command).arg(&trigger);
            names.push((command, format!("{kind}:*")));
        }
        let set = tries.cmd("SET").arg(&trigger).arg(MARKER);
        set.arg("XX").arg("PX").arg(1);
        names.push(("SET", format!("{kind}:*")));
        for (command, keys) in [
            ("ZREM", [&ledger.due, &ledger.leased, &ledger.dead]),
            ("HDEL", [&ledger.shadow, &ledger.lease, &ledger.next]),
            ("HDEL", [&ledger.grave, &ledger.stats, &ledger.calls]),
        ] {
            for key in keys {
                tries.cmd(command).arg(key).arg("");
                names.push((command, key.clone()));
            }
        }
        let answers = self
            .link
            .send(Request::Many(tries.ignore_errors()), until)
            .await?;
        let Value::Array(answers) = answers.value else {
            return Ok(());
        };
        for (answer, (command, name)) in answers.iter().zip(names) {
            // Whatever else is wrong, such as a full memory, may pass, and is told elsewhere.
            if let Value::ServerError(error) = answer
                && error.code() == "NOPERM"
            {
                return Err(Error::new(
                    ErrorKind::Denied,
                    format!(
                        "Redis at {}: this user may not {command} `{name}`, without which jobs of \
                         {kind} could be claimed and never settled: allow it with \
                         `ACL SETUSER … ~{kind}:* ~{}:* +@all -@admin`",
                        self.address(),
                        self.names.namespace(),
                    ),
                ));
            }
        }
        Ok(())
    }
}
