//! `keyfall import`: jobs from an export, or from another system's data in Redis.
//!
//! | part | task |
//! |---|---|
//! | [`lines`], [`zset`] | read jobs, a batch at a time |
//! | [`foreign`] | the delayed jobs of BullMQ, Celery, rq and Sidekiq |
//! | [`layout`] | reads the data beside a sorted set; [`template`] makes keys |
//! | [`entry`] | a job from any source |
//! | [`pace`] | limits the rate of the import |
//! | [`intake`] | schedules the jobs, and counts the outcomes |

mod entry;
mod foreign;
mod intake;
mod layout;
mod lines;
mod pace;
mod template;
mod zset;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use keyfall::Kind;
use redis::{ClientTlsConfig, TlsCertificates};

use self::entry::Entry;
use self::foreign::celery::Celery;
use self::foreign::{Delayed, Naming, Renamed, System};
use self::intake::Intake;
use self::layout::{Layout, Unit};
use self::lines::Lines;
use self::pace::Pace;
use self::template::Template;
use self::zset::Zset;
use super::bookmark::{Bookmark, Mark};
use super::connect::Server;
use super::out::{Form, json, line};
use super::progress::Progress;
use super::stop::Stop;
use super::which::Unasked;
use keyfall_daemon::classic::Names;
use keyfall_daemon::config::Redis;
use keyfall_daemon::duration;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The lines to import; `-`, the default, is the standard input
    #[arg(default_value = "-", hide_default_value = true)]
    file: PathBuf,

    /// The sort of the source
    #[arg(long, value_enum, default_value = "ndjson")]
    from: From,

    /// The sorted set: members by their due times
    #[arg(long, value_name = "KEY", required_if_eq_any([("from", "redis-zset"), ("from", "classic-queue")]))]
    due_key: Option<String>,

    /// The unit of the due times
    #[arg(long, value_enum, required_if_eq("from", "redis-zset"))]
    due_unit: Option<Unit>,

    /// The hash: payloads by member
    #[arg(long, value_name = "KEY", required_if_eq("from", "redis-zset"))]
    payload_key: Option<String>,

    /// The key of each job, such as app1:trans:notice:{member}; {1}, {2} are the parts between the
    /// colons of a member
    #[arg(long, value_name = "TEMPLATE", required_if_eq("from", "redis-zset"))]
    key: Option<Template>,

    /// The place for the topics of a classic queue, such as app1:queue: the `classic.prefix` of the
    /// daemon
    #[arg(long, value_name = "APP:MODULE", value_parser = topics, required_if_eq("from", "classic-queue"))]
    prefix: Option<Names>,

    /// The queue of the other system. Defaults to `celery` for Celery, and to all queues of Sidekiq
    #[arg(long, value_name = "NAME", required_if_eq_any([("from", "bullmq"), ("from", "rq")]))]
    queue: Option<String>,

    /// The kind for the jobs of the other system, such as app1:mail:send, or for its jobs of one
    /// name: Welcome=app1:mail:welcome. Can be given several times
    #[arg(
        long = "as",
        value_name = "[NAME=]KIND",
        required_if_eq_any([("from", "bullmq"), ("from", "celery"), ("from", "rq"), ("from", "sidekiq")])
    )]
    renamed: Vec<Renamed>,

    /// What the keys of the other system begin with, if it is not the default: the `prefix` of
    /// BullMQ, the namespace of Sidekiq with its colon, the `global_keyprefix` of Celery
    #[arg(long, value_name = "PREFIX")]
    source_prefix: Option<String>,

    /// Schedule nothing: count the jobs, and name the first
    #[arg(long)]
    dry_run: bool,

    /// The Redis to import from, unless it is the target as well
    #[arg(
        long,
        value_name = "URL",
        env = "KEYFALL_SOURCE_URL",
        hide_env_values = true
    )]
    source_url: Option<String>,

    /// The highest rate of the import: 200/s, 30/m
    #[arg(long, value_name = "N/s")]
    pace: Option<Pace>,

    /// Pause the kinds first, so that no job starts before `keyfall resume`
    #[arg(long)]
    paused: bool,

    /// Leave out jobs that have been overdue for longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    skip_overdue: Option<Duration>,

    /// Schedule dead letters as jobs that are due now and have all their attempts ahead
    #[arg(long)]
    requeue_dead: bool,

    /// Replace jobs that are there already, instead of leaving them as they are
    #[arg(long)]
    replace: bool,

    /// Skip invalid entries, instead of ending at the first
    #[arg(long)]
    skip_invalid: bool,

    /// Keep the progress in this file; the same command again then goes on from there
    #[arg(long, value_name = "PATH")]
    cursor_file: Option<PathBuf>,

    /// Go on at the end of an earlier import: after this many lines, or at the place that the
    /// import named
    #[arg(
        long,
        alias = "after",
        value_name = "CURSOR",
        conflicts_with = "cursor_file"
    )]
    cursor: Option<String>,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum From {
    /// The output of `keyfall export`
    Ndjson,
    /// A sorted set of due times and a hash of payloads
    RedisZset,
    /// A sorted set of due times in seconds, and each job under its bare id, in MessagePack: one
    /// bucket of a delay queue after Youzan's model
    ClassicQueue,
    /// The delayed jobs of a queue of BullMQ
    Bullmq,
    /// The tasks of a queue of Celery that have an `eta` or a `countdown`
    Celery,
    /// The scheduled jobs of a queue of rq
    Rq,
    /// The jobs of Sidekiq that were scheduled by `perform_in` or `perform_at`
    Sidekiq,
}

impl Options {
    /// The source, for the cursor file.
    fn source_name(&self) -> String {
        let queue = self.queue.as_deref().unwrap_or_default();
        match (&self.from, &self.due_key) {
            (From::Ndjson, _) => self.file.display().to_string(),
            (_, Some(key)) => key.clone(),
            (from, None) => format!("{from:?} {queue}"),
        }
    }

    /// What the keys of the other system begin with.
    fn prefix_there(&self) -> String {
        self.source_prefix
            .clone()
            .unwrap_or_else(|| match self.from {
                From::Bullmq => "bull".to_owned(),
                From::Rq => "rq".to_owned(),
                _ => String::new(),
            })
    }

    fn delayed(&self, system: System) -> (String, Layout) {
        let delayed = Delayed {
            system,
            prefix: self.prefix_there(),
            queue: self.queue.clone(),
            naming: Naming(self.renamed.clone()),
        };
        (delayed.due_key(), Layout::Foreign(delayed))
    }

    /// The sorted set to read, if the source is one, and its layout.
    fn sorted_set(&self) -> Option<(String, Layout)> {
        let layout = match self.from {
            From::Ndjson | From::Celery => return None,
            From::Bullmq => return Some(self.delayed(System::Bullmq)),
            From::Rq => return Some(self.delayed(System::Rq)),
            From::Sidekiq => return Some(self.delayed(System::Sidekiq)),
            From::RedisZset => Layout::Hash {
                payload_key: self.payload_key.clone()?,
                unit: self.due_unit?,
                template: self.key.clone()?,
            },
            From::ClassicQueue => Layout::Classic(self.prefix.clone()?),
        };
        Some((self.due_key.clone()?, layout))
    }
}

fn topics(prefix: &str) -> Result<Names, &'static str> {
    match Kind::parse(&format!("{prefix}:topic")) {
        Ok(_) => Ok(Names::new(prefix)),
        Err(_) => {
            Err("it is not the beginning of job keys: write two segments, such as app1:queue")
        }
    }
}

/// The entries of one read.
#[derive(Default)]
struct Batch {
    jobs: Vec<Read>,
    /// The place to go on from.
    after: String,
    /// The size of these entries, in the unit of the source.
    size: usize,
}

struct Read {
    /// The place of the entry, for messages.
    place: String,
    job: Result<Entry, Fault>,
}

/// The reason why an entry is no job to import.
#[derive(Debug)]
enum Fault {
    Invalid(String),
    /// A valid job that stays in the other system: what is true of such jobs.
    LeftOut(String),
}

/// Of jobs that the workers of the other system take at once.
const LEFT_READY: &str = "are ready to run: their own workers take them";

impl std::convert::From<String> for Fault {
    fn from(fault: String) -> Self {
        Fault::Invalid(fault)
    }
}

enum Source {
    Lines(Lines),
    Zset(Box<Zset>),
    Celery(Box<Celery>),
}

pub(crate) async fn run(mut options: Options) -> anyhow::Result<()> {
    let of = format!("an import of {}", options.source_name());
    let bookmark = Bookmark::new(options.cursor_file.take());
    let mut after = match bookmark.read(&of)? {
        Some(mark) => Some(mark.after),
        None => options.cursor.take(),
    };
    let jobs = options.server.connect().await?;
    let mut source = Source::open(&options, after.as_deref()).await?;
    let progress = source.progress();
    let mut intake = Intake::new(&jobs, &options, &progress);
    while let Some(batch) = source.next().await? {
        let taken = intake.take(batch.jobs).await;
        taken.with_context(|| {
            let again = match &after {
                Some(place) => format!(" with `--cursor {place}`"),
                None => String::new(),
            };
            format!(
                "it ended early, and can be started again{again}: jobs that exist are left as \
                     they are"
            )
        })?;
        progress.advance(batch.size);
        if !options.dry_run {
            bookmark.write(&Mark {
                of: of.clone(),
                after: batch.after.clone(),
                bytes: None,
            })?;
        }
        after = Some(batch.after);
    }
    for (reason, number) in source.others().await? {
        intake.leave_out(reason, number);
    }
    let report = intake.report();
    drop(progress);
    if options.form.json {
        json(&report)?;
    } else {
        report.to_string().lines().try_for_each(line)?;
    }
    if report.invalid > 0 {
        bail!("{} were not valid, and were left out", report.invalid);
    }
    Ok(())
}

/// The certificates in these settings, if there are any.
fn certificates(redis: &Redis) -> anyhow::Result<Option<TlsCertificates>> {
    if redis.ca_file.is_none() && redis.cert_file.is_none() {
        return Ok(None);
    }
    let read = |path: &PathBuf| {
        std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let client_tls = match (&redis.cert_file, &redis.key_file) {
        (Some(chain), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(chain)?,
            client_key: read(key)?,
        }),
        _ => None,
    };
    Ok(Some(TlsCertificates {
        client_tls,
        root_cert: redis.ca_file.as_ref().map(read).transpose()?,
    }))
}

impl Source {
    async fn open(options: &Options, after: Option<&str>) -> anyhow::Result<Self> {
        if let From::Ndjson = options.from {
            return Ok(Source::Lines(Lines::open(&options.file, after)?));
        }
        let source = match &options.source_url {
            Some(url) => redis::Client::open(url.as_str()),
            None => {
                let redis = options.server.redis()?.ok_or_else(|| {
                    Stop::wrong(
                        "which Redis has the jobs? Name it by `--source-url` or \
                         KEYFALL_SOURCE_URL",
                    )
                })?;
                match certificates(&redis)? {
                    Some(certificates) => {
                        redis::Client::build_with_tls(redis.url.reveal(), certificates)
                    }
                    None => redis::Client::open(redis.url.reveal()),
                }
            }
        };
        let source = source.context("the URL of the source is not valid")?;
        let Some((due_key, layout)) = options.sorted_set() else {
            let queue = options.queue.clone().unwrap_or_else(|| "celery".to_owned());
            let naming = Naming(options.renamed.clone());
            let prefix = options.prefix_there();
            let celery = Celery::open(&source, &prefix, queue, naming, after).await?;
            return Ok(Source::Celery(Box::new(celery)));
        };
        let zset = Zset::open(&source, due_key, layout, after).await?;
        Ok(Source::Zset(Box::new(zset)))
    }

    fn progress(&self) -> Progress {
        match self {
            Source::Lines(lines) => Progress::new(lines.size, "bytes"),
            Source::Zset(zset) => Progress::new(Some(zset.size), "members"),
            Source::Celery(celery) => Progress::new(Some(celery.size), "tasks"),
        }
    }

    async fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        match self {
            Source::Lines(lines) => lines.next(),
            Source::Zset(zset) => zset.next().await,
            Source::Celery(celery) => celery.next().await,
        }
    }

    /// The number of further jobs, by the reason why they are left out.
    async fn others(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        match self {
            Source::Zset(zset) => zset.others().await,
            Source::Lines(_) | Source::Celery(_) => Ok(BTreeMap::new()),
        }
    }
}
