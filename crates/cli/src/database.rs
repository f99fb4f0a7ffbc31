//! `keyfall database`: the tables of the outbox in PostgreSQL, and what waits there.

use anyhow::Context;
use keyfall_daemon::config::{Args, Config};
use keyfall_database::Database;

use super::out;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make the tables, or bring them up to date; `keyfall serve` does so unless it may not
    #[command(
        after_help = "Example:\n  keyfall database migrate --database-url postgresql:///orders"
    )]
    Migrate(Args),
    /// Check the tables, and tell how many rows wait and how many were refused
    #[command(after_help = "Example:\n  keyfall database check --config keyfall.toml")]
    Check(Args),
}

/// The remedy if no setting names the database.
pub(crate) const UNNAMED: &str = "no database is named: write `--database-url postgresql://user@host:5432/name`, \
     KEYFALL_DATABASE_URL, or `database.url` into the configuration";

/// The configuration that these arguments name.
pub(crate) fn loaded(args: &Args) -> anyhow::Result<Config> {
    Config::load(args).map_err(|faults| {
        let s = if faults.count() == 1 { "" } else { "s" };
        anyhow::anyhow!(
            "the configuration has {} fault{s}\n{faults}",
            faults.count()
        )
    })
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let (Command::Migrate(args) | Command::Check(args)) = &command;
    let config = loaded(args)?;
    let settings = config.database_settings().context(UNNAMED)?;
    let database = Database::open(settings)?;
    match command {
        Command::Migrate(_) => {
            let before = database.migrate().await?;
            match before {
                0 => out::line("the tables are up to date")?,
                steps => out::line(format!(
                    "the tables were brought up to date, in {steps} steps"
                ))?,
            }
        }
        Command::Check(_) => {
            database.check().await?;
            let outbox = database.outbox().await?;
            out::line("the tables are up to date")?;
            let more = if outbox.is_more { " or more" } else { "" };
            match outbox.oldest {
                Some(age) => out::line(format!(
                    "rows that wait: {}{more}, the oldest for {:.1} s",
                    outbox.waiting,
                    age.as_secs_f64()
                ))?,
                None => out::line("no row waits")?,
            }
            match outbox.refused {
                0 => out::line("no row was refused")?,
                rows => out::line(format!(
                    "refused, with the reason in keyfall_outbox_refused: {rows}"
                ))?,
            }
            for copied in database.copied_kinds().await? {
                let whole = if copied.is_filled {
                    ""
                } else {
                    ", not all of them yet"
                };
                out::line(format!(
                    "copied of {}: {} pending jobs{whole}",
                    copied.kind, copied.pending
                ))?;
            }
            if let Some(why) = database.copy_state().await?.and_then(|state| state.stopped) {
                out::line(format!(
                    "the copy is stopped: {why}: look with `keyfall rebuild`"
                ))?;
            }
        }
    }
    Ok(())
}
