//! `keyfall archive`: which kinds leave records of their ended jobs, the search through these, and
//! [`requeue`], which schedules such jobs again.

mod requeue;

use keyfall_daemon::shapes::{ArchiveIn, ArchiveOut, ArchiveSearchIn, Moment};

use crate::connect::Server;
use crate::out::{self, Form};
use crate::stop::Stop;
use crate::when::shown;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// List the kinds that leave records of their ended jobs
    Ls(List),
    /// Have the jobs of a kind, or of all kinds with a prefix, leave a record when they end
    #[command(
        after_help = "Example:\n  keyfall archive set app1:mail: --payload 4096 --keep-months 24"
    )]
    Set(Set),
    /// End that; records that wait stay until they are in the archive
    Off(Off),
    /// Look for ended jobs in the archive, the one that ended last first
    #[command(
        after_help = "Example:\n  keyfall archive search app1:mail: --how buried --since 7d --error timeout \
                      --api http://127.0.0.1:9276"
    )]
    Search(Search),
    /// Schedule ended jobs again, with the payload, headers and terms that the archive has of them
    #[command(
        after_help = "Examples:\n  keyfall archive requeue app1:mail:send:42 --after 5m --api http://127.0.0.1:9276\n  \
                      keyfall archive requeue app1:mail: --how buried --since 7d --dry-run --api http://127.0.0.1:9276"
    )]
    Requeue(requeue::Options),
}

#[derive(clap::Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) form: Form,

    #[command(flatten)]
    pub(crate) server: Server,
}

/// The kinds of an archive or a copy.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Kinds {
    /// A kind, app:module:biz, or a prefix of kinds that ends with a colon, app:module:
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,

    /// All kinds
    #[arg(long)]
    all: bool,
}

impl Kinds {
    pub(crate) fn prefix(&self) -> String {
        self.prefix.clone().unwrap_or_default()
    }

    /// The kinds, in words.
    pub(crate) fn named(&self) -> &str {
        named(self.prefix.as_deref().unwrap_or_default())
    }
}

/// The kinds of a prefix, in words.
pub(crate) fn named(prefix: &str) -> &str {
    match prefix {
        "" => "all kinds",
        prefix => prefix,
    }
}

#[derive(clap::Args, Debug)]
pub(crate) struct Set {
    #[command(flatten)]
    kinds: Kinds,

    /// The longest payload that a record carries; a longer one is left out; none by default
    #[arg(long, value_name = "BYTES")]
    payload: Option<u64>,

    /// How many bytes of records may wait in each ledger while the database is away; 64 MiB by default
    #[arg(long, value_name = "BYTES")]
    waiting: Option<u64>,

    /// For how many months a record is kept; for ever by default
    #[arg(long, value_name = "N")]
    keep_months: Option<u16>,

    /// The same for dead letters
    #[arg(long, value_name = "N")]
    keep_dead_months: Option<u16>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Off {
    #[command(flatten)]
    pub(crate) kinds: Kinds,

    #[command(flatten)]
    pub(crate) form: Form,

    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Search {
    /// The beginning of the job keys, or a whole key; all jobs by default
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,

    /// How the jobs ended: done, skipped, cancelled, replaced or buried
    #[arg(long)]
    how: Option<String>,

    /// Jobs that ended at this time or later, 2026-12-24T18:00:00Z, or within the last 7d
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,

    /// Jobs that ended before this time, or longer ago than this
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,

    /// Jobs whose error has all of these words
    #[arg(long, value_name = "WORDS")]
    error: Option<String>,

    /// The most jobs, up to 1,000
    #[arg(long, default_value_t = 100)]
    limit: usize,

    /// The start of the page, as the page before names it
    #[arg(long)]
    cursor: Option<String>,

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
        Command::Search(options) => search(options).await,
        Command::Requeue(options) => requeue::run(options).await,
    }
}

async fn list(options: List) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let archives = jobs.archives().await?;
    if options.form.json {
        return Ok(out::json(&archives)?);
    }
    let months = |months: u16| match months {
        0 => "for ever".to_owned(),
        months => format!("{months} months"),
    };
    let rows = archives.archives.iter().map(|one: &ArchiveOut| {
        [
            named(&one.prefix).to_owned(),
            months(one.keep_months),
            months(one.keep_dead_months),
            one.payload.to_string(),
            one.waiting.to_string(),
            shown(one.since),
            one.by.clone(),
        ]
    });
    let heads = [
        "kinds",
        "keep",
        "dead letters",
        "payload",
        "waiting",
        "since",
        "by",
    ];
    Ok(out::table(heads, rows)?)
}

async fn set(options: Set) -> anyhow::Result<()> {
    let wanted = ArchiveIn {
        prefix: options.kinds.prefix(),
        payload: options.payload,
        waiting: options.waiting,
        keep_months: options.keep_months,
        keep_dead_months: options.keep_dead_months,
    };
    wanted.check()?;
    let jobs = options.server.connect().await?;
    let set = jobs.set_archive(&wanted).await?;
    if options.form.json {
        return Ok(out::json(&set)?);
    }
    let (kinds, named) = (set.kinds.len(), options.kinds.named());
    let text = format!("ended jobs leave records: {named}, {kinds} kinds so far");
    Ok(out::line(text)?)
}

async fn off(options: Off) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let stopped = jobs.stop_archive(&options.kinds.prefix()).await?;
    if options.form.json {
        return Ok(out::json(&stopped)?);
    }
    let named = options.kinds.named();
    Ok(out::line(format!(
        "ended jobs leave no records by this prefix: {named}"
    ))?)
}

async fn search(options: Search) -> anyhow::Result<()> {
    if !(1..=1000).contains(&options.limit) {
        let limit = options.limit;
        let wrong =
            format!("--limit is from 1 to 1000, not {limit}; the next page comes by --cursor");
        return Err(Stop::wrong(wrong).into());
    }
    let jobs = options.server.connect().await?;
    let page = jobs
        .search_archive(&ArchiveSearchIn {
            prefix: options.prefix,
            how: options.how,
            since: options.since,
            until: options.until,
            error: options.error,
            limit: Some(options.limit),
            cursor: options.cursor,
        })
        .await?;
    if options.form.json {
        return Ok(out::json(&page)?);
    }
    let rows = page.jobs.iter().map(|one| {
        [
            shown(one.ended),
            one.how.clone(),
            one.key.clone(),
            one.attempts.to_string(),
            one.worker.clone().unwrap_or_default(),
            one.error.clone().unwrap_or_default().replace('\n', " "),
        ]
    });
    out::table(["ended", "how", "key", "attempts", "by", "error"], rows)?;
    if let Some(next) = page.next {
        out::line(format!("more: --cursor {next}"))?;
    }
    Ok(())
}
