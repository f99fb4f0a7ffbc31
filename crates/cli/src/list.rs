//! `keyfall list` and `keyfall count`: show and count many jobs.

use keyfall::Cursor;

use super::connect::Server;
use super::out::{self, Form};
use super::plain::{aside, plain};
use super::unseen;
use super::when::shown;
use super::which::Among;
use keyfall_daemon::shapes::{Job, ListIn, Moment, PageOut, Payloads, State};

/// The most jobs of one call.
const PAGE: usize = 1000;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    among: Among,

    /// The state of the listed jobs
    #[arg(long, value_enum, default_value = "pending")]
    state: State,

    /// Only jobs that are due before this time, or within this duration: 1h, 2026-12-24T18:00:00Z
    #[arg(long, value_name = "WHEN")]
    due_before: Option<Moment>,

    /// Only jobs that are due at this time or later, or after this duration
    #[arg(long, value_name = "WHEN")]
    due_after: Option<Moment>,

    /// Only jobs of which more than this number of attempts have begun
    #[arg(long, value_name = "N")]
    attempts_over: Option<u32>,

    /// Only jobs whose last error contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Only recurring jobs
    #[arg(long)]
    recurring: bool,

    /// The most jobs to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// Go on at the end of an earlier list
    #[arg(long, alias = "after", value_name = "CURSOR")]
    cursor: Option<Cursor>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Count {
    #[command(flatten)]
    among: Among,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let mut cursor = options.cursor.map(|cursor| cursor.to_string());
    let mut left = options.limit;
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    while left > 0 {
        let wanted = ListIn {
            prefix: options.among.prefix(),
            state: options.state,
            limit: Some(left.min(PAGE)),
            cursor: cursor.take(),
            payloads: Payloads::Exact,
            due_before: options.due_before,
            due_after: options.due_after,
            attempts_over: options.attempts_over,
            error: options.error.clone(),
            reason: None,
            recurring: options.recurring,
        };
        let page = jobs.list(&wanted).await?;
        left = left.saturating_sub(page.jobs.len());
        tell_damaged(&page);
        for job in &page.jobs {
            if options.form.json {
                out::json(job)?;
            } else {
                rows.push(row(job));
            }
        }
        unseen::add(&mut missed, page.unseen);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if !options.form.json {
        out::table(["key", "state", "due", ">attempts", "last error"], rows)?;
    }
    if let Some(cursor) = cursor {
        aside(format!("there are more: `--cursor '{cursor}'`"));
    }
    unseen::told(&missed)
}

fn row(job: &Job) -> [String; 5] {
    [
        job.key.clone(),
        job.state.word().to_owned(),
        shown(job.due),
        job.attempts.to_string(),
        job.last_error.clone().unwrap_or_default(),
    ]
}

/// Prints the jobs of a page that cannot be shown.
pub(crate) fn tell_damaged(page: &PageOut) {
    for job in &page.damaged {
        aside(format!("damaged: {}: {}", plain(&job.name), job.error));
    }
}

pub(crate) async fn count(options: Count) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let counts = jobs.count(options.among.prefix().as_deref()).await?;
    if options.form.json {
        out::json(&counts)?;
        return unseen::told(&counts.unseen);
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
    unseen::told(&counts.unseen)
}
