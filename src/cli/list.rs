//! `keyfall list` and `keyfall count`: many jobs, looked at.

use keyfall::{Cursor, JobView, Page};
use serde::Serialize;

use super::connect::Server;
use super::job::{JobLine, State};
use super::out::{self, Form};
use super::when::shown;
use super::which::select;

/// How many jobs one call brings at the most.
const PAGE: usize = 1000;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// What their keys begin with, such as app1:trans:notice: with the colon at its end; all
    /// there are, unless it is given
    prefix: Option<String>,

    /// Which of them
    #[arg(long, value_enum, default_value = "pending")]
    state: State,

    /// How many at the most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// Go on where an earlier list ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<Cursor>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Count {
    /// What their keys begin with, such as app1:trans:notice: with the colon at its end; all
    /// there are, unless it is given
    prefix: Option<String>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let mut after = options.after;
    let mut left = options.limit;
    let mut rows = Vec::new();
    while left > 0 {
        let list = select(&client, options.prefix.as_deref()).list(options.state.into());
        let mut list = list.limit(left.min(PAGE));
        if let Some(cursor) = after.take() {
            list = list.after(cursor);
        }
        let page = list.await?;
        left = left.saturating_sub(page.jobs.len());
        tell_damaged(&page);
        for job in &page.jobs {
            if options.form.json {
                out::json(&JobLine::of(job))?;
            } else {
                rows.push(row(job));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if !options.form.json {
        out::table(TITLES, rows)?;
    }
    if let Some(cursor) = after {
        eprintln!("there are more: `--after '{cursor}'`");
    }
    Ok(())
}

pub(crate) const TITLES: [&str; 5] = ["key", "state", "due", ">attempts", "last error"];

pub(crate) fn row(job: &JobView) -> [String; 5] {
    [
        job.key().to_string(),
        State::from(job.state()).word().to_owned(),
        shown(job.due()),
        job.attempts().to_string(),
        job.last_error().unwrap_or_default().to_owned(),
    ]
}

/// Those of a page that cannot be shown.
pub(crate) fn tell_damaged(page: &Page) {
    for job in &page.damaged {
        eprintln!("damaged: {}: {}", job.name.escape_debug(), job.error);
    }
}

pub(crate) async fn count(options: Count) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Answer {
        pending: u64,
        overdue: u64,
        running: u64,
        lapsed: u64,
        dead: u64,
    }
    let client = options.server.connect().await?;
    let counts = select(&client, options.prefix.as_deref()).count().await?;
    if options.form.json {
        return Ok(out::json(&Answer {
            pending: counts.pending,
            overdue: counts.overdue,
            running: counts.running,
            lapsed: counts.lapsed,
            dead: counts.dead,
        })?);
    }
    let titles = [">pending", ">overdue", ">running", ">lapsed", ">dead"];
    let row = [
        counts.pending,
        counts.overdue,
        counts.running,
        counts.lapsed,
        counts.dead,
    ];
    out::table(titles, [row.map(|count| count.to_string())])?;
    Ok(())
}
