//! Asks for confirmation before changes that cannot be undone.

use std::io::{self, IsTerminal};

use anyhow::bail;

use super::plain::plain;
use super::stop::Stop;

/// Returns if the user has confirmed by `--yes`, or confirms now. `what` is the sentence to agree
/// to.
pub(crate) fn confirm(what: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        bail!(Stop::wrong(format!(
            "{what}, and there is no terminal to ask at: add `--yes` to confirm"
        )));
    }
    eprint!("{}. Go on? [y/N] ", plain(what));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}
