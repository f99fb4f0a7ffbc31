//! `keyfall man`: the manual pages, from the same declarations as the help.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap_mangen::{Man, generate_to};

use super::out::stdout;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Write a page for each command into this folder, instead of printing the page of `keyfall`
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(options: &Options, command: clap::Command) -> anyhow::Result<()> {
    // Its pages would be those of the commands once more.
    let command = command.disable_help_subcommand(true);
    if let Some(dir) = &options.dir {
        return generate_to(command, dir)
            .with_context(|| format!("the manual pages cannot be written to {}", dir.display()));
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    stdout().write_all(&page)?;
    Ok(())
}
