//! `keyfall reshard`: gives a kind another number of shards.

use anyhow::bail;
use keyfall::{MAX_SHARDS, Resharding};
use serde::Serialize;

use super::connect::{Remedy, Server};
use super::out::{self, Form};
use super::progress::Progress;
use super::stop::Stop;
use super::which::{Unasked, kind};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// app:module:biz
    #[arg(value_parser = kind)]
    kind: String,

    #[command(flatten)]
    unasked: Unasked,

    /// The new number of shards; without it, the present number is printed
    #[arg(long, value_name = "SHARDS", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_SHARDS)))]
    to: Option<u16>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// The result, as JSON.
#[derive(Serialize)]
struct ReshardOut<'a> {
    kind: &'a str,
    shards: u16,
    /// The old number of shards, while the kind is being resharded.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u16>,
    /// Names of jobs and dead letters that this call moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<u64>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let Options {
        kind,
        to,
        form,
        server,
        ..
    } = options;
    let Some(client) = server.client(Remedy::Redis).await? else {
        bail!(Stop::wrong(
            "jobs are moved within Redis, which a daemon does not offer: name the Redis by \
             --redis-url instead of --api"
        ));
    };
    let mut told = ReshardOut {
        kind: &kind,
        shards: 0,
        from: None,
        moved: None,
    };
    if let Some(shards) = to {
        let progress = Progress::new(None, "moved");
        let mut seen = Resharding::default();
        let reshard = client.reshard(&kind, shards).on_progress(|now| {
            progress.advance(usize::try_from(now.moved - seen.moved).unwrap_or(0));
            if now.running > 0 && seen.running == 0 {
                progress.note("waiting for the ends of runs, to move their jobs; Ctrl-C is safe");
            }
            seen = now;
        });
        told.moved = Some(reshard.await?.moved);
    }
    (told.shards, told.from) = client.shards(&kind).await?;
    if form.json {
        return Ok(out::json(&told)?);
    }
    let shards = match told.shards {
        1 => "1 shard".to_owned(),
        more => format!("{more} shards"),
    };
    Ok(out::line(match (told.moved, told.from) {
        (Some(moved), _) => format!("{kind} has {shards}; {moved} moved"),
        (None, None) => format!("{kind} has {shards}"),
        (None, Some(from)) => format!(
            "{kind} is being resharded from {from} to {shards}: `keyfall reshard {kind} --to {}` \
             continues it",
            told.shards
        ),
    })?)
}
