//! `keyfall config`: a configuration to start from, and a check of one.

use std::path::PathBuf;

use keyfall_daemon::config::{Args, Config, DEFAULT, Flags, misspelt_variables};

use super::out;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the faults of a configuration, each with its line; or the settings of a configuration
    /// without faults
    #[command(after_help = "Example:\n  keyfall config check keyfall.toml\n\n\
        The environment and flags are read as `keyfall serve` reads them.")]
    Check {
        /// The configuration file
        file: PathBuf,
        #[command(flatten)]
        flags: Flags,
    },
}

pub(crate) fn run(options: Options) -> anyhow::Result<()> {
    match options.command {
        None => out::text(DEFAULT)?,
        Some(Command::Check { file, flags }) => check(file, flags)?,
    }
    Ok(())
}

fn check(file: PathBuf, flags: Flags) -> anyhow::Result<()> {
    let shown = file.display().to_string();
    let args = Args {
        config: Some(file),
        flags,
    };
    for warning in misspelt_variables() {
        eprintln!("warning: {warning}");
    }
    let config = Config::load(&args).map_err(|faults| {
        let s = if faults.count() == 1 { "" } else { "s" };
        anyhow::anyhow!("{shown}: {} fault{s}\n{faults}", faults.count())
    })?;
    out::line(format!("{shown}: no fault"))?;
    for (field, value, origin) in config.given() {
        out::line(format!("{field} = {value} ({origin})"))?;
    }
    for route in &config.routes {
        out::line(format!("route {}", route.pattern))?;
    }
    Ok(())
}
