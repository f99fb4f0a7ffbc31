//! `keyfall kinds`: lists the kinds with their counts of jobs, and drops an empty kind.

use super::connect::Server;
use super::out::{self, Form};
use super::stop::Stop;
use super::unseen;
use super::which::{Among, Unasked, kind};

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    among: Among,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Remove an empty kind: one without jobs and dead letters
    #[command(
        after_help = "Producers and workers may go on meanwhile: a later schedule of one of its jobs creates it again.\n\nExample:\n  keyfall kinds drop app1:trans:notice"
    )]
    Drop(DropOptions),
}

#[derive(clap::Args, Debug)]
struct DropOptions {
    /// app:module:biz
    #[arg(value_parser = kind)]
    kind: String,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    if let Some(Command::Drop(options)) = options.command {
        return drop_one(options).await;
    }
    let jobs = options.server.connect().await?;
    let mut told = jobs.kinds().await?;
    if let Some(prefix) = &options.among.prefix() {
        // With the colon, because a prefix that means one kind ends with it.
        told.kinds
            .retain(|one| format!("{}:", one.counts.kind).starts_with(prefix));
        if told.kinds.is_empty() && told.unseen.is_empty() {
            return Err(absent(prefix));
        }
    }
    if options.form.json {
        out::json(&told)?;
        return unseen::told(&told.unseen);
    }
    let titles = [
        "kind", "paused", ">pending", ">overdue", ">running", ">dead", ">done",
    ];
    let rows = told.kinds.into_iter().map(|one| {
        [
            one.counts.kind,
            if one.counts.paused { "paused" } else { "" }.to_owned(),
            one.counts.pending.to_string(),
            one.counts.overdue.to_string(),
            one.counts.leased.to_string(),
            one.counts.dead.to_string(),
            one.counters.done.to_string(),
        ]
    });
    out::table(titles, rows)?;
    unseen::told(&told.unseen)
}

async fn drop_one(options: DropOptions) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let told = jobs.drop_kind(&options.kind).await?;
    match options.form.json {
        true => out::json(&told)?,
        false => out::line(format!("{} is gone", told.kind))?,
    }
    Ok(())
}

/// A missing kind is an error only if a prefix was given.
pub(crate) fn absent(prefix: &str) -> anyhow::Error {
    Stop::absent(format!("there is no kind that begins with {prefix}")).into()
}
