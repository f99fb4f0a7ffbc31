//! `keyfall copy`: which kinds' pending jobs are copied to PostgreSQL.

use keyfall_daemon::shapes::{CopyIn, CopyOut};

use super::archive::{Kinds, List, Off, named};
use super::connect::Server;
use super::out::{self, Form};
use super::when::shown;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// List the kinds whose pending jobs are copied
    Ls(List),
    /// Have the pending jobs of a kind, or of all kinds with a prefix, copied
    #[command(after_help = "Example:\n  keyfall copy set app1:order:")]
    Set(Set),
    /// End that; the copy of these kinds is removed
    Off(Off),
}

#[derive(clap::Args, Debug)]
pub(crate) struct Set {
    #[command(flatten)]
    kinds: Kinds,

    /// How many changed jobs may wait in each ledger while the database is away; 1,000,000 by default
    #[arg(long, value_name = "JOBS")]
    waiting: Option<u64>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(options) => list(options).await,
        Command::Set(options) => set(options).await,
        Command::Off(options) => off(options).await,
    }
}

async fn list(options: List) -> anyhow::Result<()> {
    let copies = options.server.connect().await?.copies().await?;
    if options.form.json {
        return Ok(out::json(&copies)?);
    }
    let rows = copies.copies.iter().map(|one: &CopyOut| {
        [
            named(&one.prefix).to_owned(),
            one.waiting.to_string(),
            shown(one.since),
            one.by.clone(),
        ]
    });
    Ok(out::table(["kinds", "waiting", "since", "by"], rows)?)
}

async fn set(options: Set) -> anyhow::Result<()> {
    let wanted = CopyIn {
        prefix: options.kinds.prefix(),
        waiting: options.waiting,
    };
    wanted.check()?;
    let jobs = options.server.connect().await?;
    let set = jobs.set_copy(&wanted).await?;
    if options.form.json {
        return Ok(out::json(&set)?);
    }
    let (kinds, named) = (set.kinds.len(), options.kinds.named());
    let text = format!("pending jobs are copied: {named}, {kinds} kinds so far");
    Ok(out::line(text)?)
}

async fn off(options: Off) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let stopped = jobs.stop_copy(&options.kinds.prefix()).await?;
    if options.form.json {
        return Ok(out::json(&stopped)?);
    }
    let named = options.kinds.named();
    Ok(out::line(format!(
        "pending jobs are not copied by this prefix: {named}"
    ))?)
}
