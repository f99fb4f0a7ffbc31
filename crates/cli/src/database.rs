//! `keyfall database`: the tables of the outbox in PostgreSQL, and what waits there.

use anyhow::Context;
use keyfall_daemon::config::{Args, Config};
use keyfall_database::Database;

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

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let (Command::Migrate(args) | Command::Check(args)) = &command;
    let config = Config::load(args).map_err(|faults| {
        let s = if faults.count() == 1 { "" } else { "s" };
        anyhow::anyhow!(
            "the configuration has {} fault{s}\n{faults}",
            faults.count()
        )
    })?;
    let settings = config.database_settings().context(
        "no database is named: write `--database-url postgresql://user@host:5432/name`, \
         KEYFALL_DATABASE_URL, or `database.url` into the configuration",
    )?;
    let database = Database::open(settings)?;
    match command {
        Command::Migrate(_) => {
            let before = database.migrate().await?;
            match before {
                0 => println!("the tables are up to date"),
                steps => println!("the tables were brought up to date, in {steps} steps"),
            }
        }
        Command::Check(_) => {
            database.check().await?;
            let outbox = database.outbox().await?;
            println!("the tables are up to date");
            let more = if outbox.is_more { " or more" } else { "" };
            match outbox.oldest {
                Some(age) => println!(
                    "rows that wait: {}{more}, the oldest for {:.1} s",
                    outbox.waiting,
                    age.as_secs_f64()
                ),
                None => println!("no row waits"),
            }
            match outbox.refused {
                0 => println!("no row was refused"),
                rows => println!("refused, with the reason in keyfall_outbox_refused: {rows}"),
            }
        }
    }
    Ok(())
}
