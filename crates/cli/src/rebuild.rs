//! `keyfall rebuild`: brings back the jobs that Redis has lost, from the copy in PostgreSQL.

use anyhow::Context;
use keyfall_daemon::config::Args;
use keyfall_daemon::shapes::Time;
use keyfall_database::{Database, Missing, Rebuild, Rebuilt};

use super::connect::{Remedy, client_of};
use super::database::loaded;
use super::out;
use super::when::shown;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Bring back what is missing; without it, only tell
    #[arg(long)]
    yes: bool,

    /// Go on without the jobs that cannot be brought back, and give them up
    #[arg(long, requires = "yes")]
    leave_unreadable: bool,

    #[command(flatten)]
    args: Args,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let config = loaded(&options.args)?;
    let settings = config
        .database_settings()
        .context(super::database::UNNAMED)?;
    let database = Database::open(settings)?;
    database.check().await?;
    // A payload that was accepted once is accepted again.
    let client = client_of(&config.redis, config.names_redis(), Remedy::Redis).await?;
    if let Some(state) = database.copy_state().await? {
        match state.stopped {
            Some(why) => out::line(format!("the copy is stopped: {why}"))?,
            None => out::line("the copy goes on: Redis has the data set that was copied")?,
        }
    }
    let mut rebuild = Rebuild::new(client, database);
    if options.leave_unreadable {
        rebuild = rebuild.leave_unreadable();
    }
    if options.yes {
        return done(&rebuild.run().await?);
    }
    tell(&rebuild.missing().await?)
}

fn tell(kinds: &[Missing]) -> anyhow::Result<()> {
    let rows = kinds.iter().map(|one| {
        [
            one.kind.clone(),
            one.copied.to_string(),
            one.missing.to_string(),
            one.overdue.to_string(),
            one.kept.to_string(),
            one.until
                .map(|until| shown(Time(until)))
                .unwrap_or_default(),
            one.first.join(" "),
        ]
    });
    let heads = [
        "kind",
        "copied",
        "missing",
        "overdue",
        "outbox rows",
        "copied until",
        "first",
    ];
    out::table(heads, rows)?;
    let missing: u64 = kinds.iter().map(|it| it.missing + it.kept).sum();
    Ok(out::line(match missing {
        0 => "nothing of the copy is missing in Redis",
        _ => {
            "`keyfall rebuild --yes` brings back what is missing; its kinds are paused until you resume \
             them"
        }
    })?)
}

fn done(kinds: &[Rebuilt]) -> anyhow::Result<()> {
    let rows = kinds.iter().map(|one| {
        [
            one.kind.clone(),
            one.restored.to_string(),
            one.present.to_string(),
            one.kept.to_string(),
            one.refused.len().to_string(),
        ]
    });
    out::table(
        [
            "kind",
            "brought back",
            "were there",
            "outbox rows",
            "given up",
        ],
        rows,
    )?;
    for refused in kinds.iter().flat_map(|it| &it.refused) {
        out::line(format!("given up: {refused}"))?;
    }
    Ok(out::line(
        "these kinds are paused: look at them, and let them run with `keyfall resume`",
    )?)
}
