//! `keyfall completions`: the script by which a shell completes commands and flags.

use std::io::Write;

use clap_complete::{Shell, generate};

use super::out::stdout;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The shell that reads the script
    shell: Shell,
}

pub(crate) fn run(options: &Options, mut command: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    generate(options.shell, &mut command, "keyfall", &mut script);
    stdout().write_all(&script)?;
    Ok(())
}
