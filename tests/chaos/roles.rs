//! The processes of a trial: this program, started again in another role, and daemons.

use std::path::Path;
use std::process::Command;

use keyfall_testing::process::LoggedProcess;
use serde::Serialize;

/// This program in another role.
fn in_role(role: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.arg(role);
    command
}

/// The command `keyfall`: the code that was built with the suite, not an installed one.
pub(crate) fn keyfall() -> Command {
    in_role("keyfall")
}

/// Starts this program in a role. Its output goes to a file of its name in `dir`.
pub(crate) fn start(
    role: &str,
    name: &str,
    terms: &impl Serialize,
    dir: &Path,
    environment: &[(String, String)],
) -> LoggedProcess {
    let mut command = command(role, terms);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    LoggedProcess::spawn(command, name, dir)
}

/// The command that starts this program in a role.
pub(crate) fn command(role: &str, terms: &impl Serialize) -> Command {
    let mut command = in_role(role);
    command.arg(serde_json::to_string(terms).expect("terms are plain data"));
    command
}
