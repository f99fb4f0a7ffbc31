//! `keyfall breakers`: which hosts of callbacks are left alone because they are down.

use serde::Serialize;

use super::connect::Server;
use super::out::{self, Form};
use super::unseen;
use super::which::Unasked;
use keyfall_daemon::shapes::BreakerIn;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Have a host called again at once, by all workers
    Close(Close),
}

#[derive(clap::Args, Debug)]
struct Close {
    /// The host as `keyfall breakers` lists it: with its port, unless that is the default of the
    /// scheme
    host: String,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// A host that a worker leaves alone.
#[derive(Serialize)]
struct Open {
    host: String,
    worker: String,
    pid: u32,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.command {
        Some(Command::Close(close)) => self::close(close).await,
        None => list(options).await,
    }
}

async fn close(options: Close) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let host = BreakerIn { host: options.host };
    let closed = jobs.close_breaker(&host).await?;
    if options.form.json {
        return Ok(out::json(&closed)?);
    }
    Ok(out::line(match closed.instances {
        0 => format!("no worker said that it leaves {} alone", closed.host),
        number => format!("called again: {}; workers: {number}", closed.host),
    })?)
}

async fn list(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let live = jobs.instances().await?;
    let open: Vec<Open> = live
        .instances
        .into_iter()
        .flat_map(|one| {
            let (worker, pid) = (one.host, one.pid);
            one.open_breakers.into_iter().map(move |host| Open {
                host,
                worker: worker.clone(),
                pid,
            })
        })
        .collect();
    if options.form.json {
        out::json(&open)?;
    } else {
        let rows = open.into_iter();
        let rows = rows.map(|it| [it.host, it.worker, it.pid.to_string()]);
        out::table(["host", "left alone by", ">pid"], rows)?;
    }
    unseen::told(&live.unseen)
}
