//! `keyfall kinds`: which there are, and how many jobs each has.

use futures_util::{StreamExt, TryStreamExt, stream};
use keyfall::{Client, Kind, Stats};
use serde::Serialize;

use super::connect::Server;
use super::out::{self, Form};
use super::stop::Stop;

/// How many kinds are asked for at a time.
const AT_ONCE: usize = 32;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// What they begin with, such as app1:; all there are, unless it is given
    prefix: Option<String>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// All that a ledger counts.
#[derive(Serialize)]
struct KindLine<'a> {
    kind: &'a str,
    paused: bool,
    pending: u64,
    overdue: u64,
    leased: u64,
    successors: u64,
    dead: u64,
    accepted: u64,
    requeued: u64,
    done: u64,
    cancelled: u64,
    replaced: u64,
    buried: u64,
    deleted: u64,
    trimmed: u64,
    failed: u64,
    again: u64,
    snoozed: u64,
    returned: u64,
    lapsed: u64,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let kinds = beginning(&client, options.prefix.as_deref()).await?;
    let told = stream::iter(&kinds).map(async |kind| {
        let stats = client.stats(kind.as_str()).await?;
        Ok::<_, keyfall::Error>((kind, stats))
    });
    let told: Vec<(&Kind, Stats)> = told.buffered(AT_ONCE).try_collect().await?;
    if options.form.json {
        let lines: Vec<_> = told.iter().map(|(kind, stats)| line(kind, stats)).collect();
        out::json(&lines)?;
        return Ok(());
    }
    let titles = [
        "kind", "paused", ">pending", ">overdue", ">running", ">dead", ">done",
    ];
    let rows = told.iter().map(|(kind, stats)| {
        [
            kind.to_string(),
            if stats.paused { "paused" } else { "" }.to_owned(),
            stats.pending.to_string(),
            stats.overdue.to_string(),
            stats.leased.to_string(),
            stats.dead.to_string(),
            stats.done.to_string(),
        ]
    });
    out::table(titles, rows)?;
    Ok(())
}

/// The kinds that begin so, or all of them. That there are none is an error only of a text that
/// somebody gave.
pub(crate) async fn beginning(client: &Client, prefix: Option<&str>) -> anyhow::Result<Vec<Kind>> {
    let mut kinds = client.kinds().await?;
    if let Some(prefix) = prefix {
        // With the colon, because a prefix that means one kind ends with it.
        kinds.retain(|kind| format!("{kind}:").starts_with(prefix));
        if kinds.is_empty() {
            let absent = format!("there is no kind that begins with {prefix}");
            return Err(Stop::absent(absent).into());
        }
    }
    Ok(kinds)
}

fn line<'a>(kind: &'a Kind, stats: &Stats) -> KindLine<'a> {
    KindLine {
        kind: kind.as_str(),
        paused: stats.paused,
        pending: stats.pending,
        overdue: stats.overdue,
        leased: stats.leased,
        successors: stats.successors,
        dead: stats.dead,
        accepted: stats.accepted,
        requeued: stats.requeued,
        done: stats.done,
        cancelled: stats.cancelled,
        replaced: stats.replaced,
        buried: stats.buried,
        deleted: stats.deleted,
        trimmed: stats.trimmed,
        failed: stats.failed,
        again: stats.again,
        snoozed: stats.snoozed,
        returned: stats.returned,
        lapsed: stats.lapsed,
    }
}
