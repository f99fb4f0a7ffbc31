//! What an ACL user must be allowed, tried before anything depends on it.

use std::time::Instant;

use redis::Cmd;
#[cfg(feature = "worker")]
use redis::Value;

#[cfg(feature = "worker")]
use super::link::Request;
use super::{Store, unique_id};
use crate::error::ErrorKind;
#[cfg(feature = "worker")]
use crate::error::{Error, Result};
use crate::key::Kind;
use crate::names::MARKER;

/// What scripts do to triggers, on one that is not there: it can be asked of every server, and
/// nothing changes. The scripts pass over what fails of it, since a trigger is a hint.
fn on_a_trigger(kind: &Kind) -> [(&'static str, Cmd); 4] {
    let trigger = format!("{kind}:{}", unique_id());
    [
        ("SET", &[MARKER, "XX", "PX", "1"][..]),
        ("GETRANGE", &["0", "1"]),
        ("PEXPIREAT", &["1"]),
        ("DEL", &[]),
    ]
    .map(|(command, arguments)| {
        let mut cmd = redis::cmd(command);
        cmd.arg(&trigger).arg(arguments);
        (command, cmd)
    })
}

impl Store {
    /// Warns of a user who may store jobs of a kind and not keep their triggers.
    pub(crate) async fn warn_of_rights(&self, kind: &Kind, until: Instant) {
        for (command, cmd) in on_a_trigger(kind) {
            if let Err(error) = self.command(&cmd, until).await
                && error.kind() == ErrorKind::Denied
            {
                return tracing::warn!(
                    %kind,
                    address = self.address(),
                    "this user may not {command} `{kind}:*`: jobs are stored and run, some of \
                     them late; allow it with `ACL SETUSER … ~{kind}:* +{}`, or see acl.conf",
                    command.to_lowercase(),
                );
            }
        }
    }

    /// Refuses a user who may not change the triggers or the ledger of a kind, and whose jobs
    /// would be claimed and never settled. Tries the commands themselves, on a name that no job
    /// has and fields that no ledger has: every server can be asked that, and nothing changes.
    #[cfg(feature = "worker")]
    pub(crate) async fn check_rights(&self, kind: &Kind, until: Instant) -> Result<()> {
        let ledger = self.names.ledger(kind);
        let mut tries = redis::pipe();
        let mut names: Vec<(&str, String)> = Vec::new();
        let mut look = redis::cmd("EXISTS");
        look.arg(format!("{kind}:{}", unique_id()));
        for (command, cmd) in [("EXISTS", look)].into_iter().chain(on_a_trigger(kind)) {
            tries.add_command(cmd);
            names.push((command, format!("{kind}:*")));
        }
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
        // A range that ends before it begins.
        tries.cmd("ZREMRANGEBYRANK").arg(&ledger.due).arg(1).arg(0);
        names.push(("ZREMRANGEBYRANK", ledger.due));
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
                         `ACL SETUSER … ~{kind}:* ~{}:* +{}`, or see acl.conf",
                        self.address(),
                        self.names.namespace(),
                        command.to_lowercase(),
                    ),
                ));
            }
        }
        Ok(())
    }
}
