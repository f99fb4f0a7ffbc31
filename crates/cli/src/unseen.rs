//! Reports the parts that a command could not look at, because one of several servers is away.

use anyhow::bail;

use super::plain::aside;
use super::stop::Stop;
use keyfall_daemon::shapes::UnseenOut;

/// Prints the missing parts, and fails with an exit code that a script can test.
pub(crate) fn told(unseen: &[UnseenOut]) -> anyhow::Result<()> {
    if unseen.is_empty() {
        return Ok(());
    }
    for one in unseen {
        let shards = match &*one.shards {
            [] => String::new(),
            shards => format!("; it has {}", shards.join(", ")),
        };
        aside(format!("not seen: {}: {}{shards}", one.server, one.error));
    }
    bail!(Stop::unavailable(
        "a server is away, and its part is missing here: try again when it is back"
    ))
}
