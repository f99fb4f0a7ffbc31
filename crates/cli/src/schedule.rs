//! `keyfall schedule`: a job, from the command line.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use keyfall::{JobKey, MaxLateness, RetryPolicy};

use super::connect::Server;
use super::durably::Durably;
use super::out::Form;
use super::plain::aside;
use super::recur;
use super::stop::Stop;
use super::when::{When, shown};
use keyfall_daemon::duration;
use keyfall_daemon::shapes::{Condition, DurableIn, NewJobIn, Payloads, PlacedOut, Span};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The name of the job, app:module:biz:id
    key: JobKey,

    /// The payload, stored as it is written here: JSON, for a handler that reads JSON
    #[arg(default_value = "null", hide_default_value = true)]
    payload: String,

    /// Read the payload from a file, byte for byte; `-` is the standard input
    #[arg(long, value_name = "PATH", conflicts_with = "payload")]
    file: Option<PathBuf>,

    #[command(flatten)]
    when: When,

    /// Gather calls for this name: due when they have been silent for so long, with the last payload
    #[arg(long, value_name = "DURATION", value_parser = duration::parse,
        requires = "at_most", conflicts_with_all = ["after", "at"])]
    debounce: Option<Duration>,

    /// How long after the first call a gathered job is due at the latest
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "debounce")]
    at_most: Option<Duration>,

    /// Space the jobs of this name: one is due at once, the next so long after that, with the last
    /// payload
    #[arg(long, value_name = "DURATION", value_parser = duration::parse,
        conflicts_with_all = ["after", "at", "debounce"])]
    throttle: Option<Duration>,

    /// Let it recur: a cron expression (`0 9 * * MON-FRI`), `every 90m`, or a table in JSON
    #[arg(long, value_name = "RULE", conflicts_with_all = ["after", "at"])]
    recur: Option<String>,

    /// The zone of the rule, such as Europe/Berlin; by default UTC
    #[arg(long, value_name = "ZONE", requires = "recur")]
    recur_zone: Option<String>,

    /// Say the rule in words, with its next five times, and schedule nothing
    #[arg(long, requires = "recur")]
    preview: bool,

    /// A text that travels with the job; can be given several times
    #[arg(long, value_name = "NAME=TEXT", value_parser = header)]
    header: Vec<(String, String)>,

    /// The delays of the retries, instead of the route's policy: `15s 3m 1h`, or `none`
    #[arg(long, value_name = "LADDER")]
    retry: Option<RetryPolicy>,

    /// The most attempts, the first run included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: Option<u32>,

    /// Hours on which it is not to be due, such as `22:00-08:00`, or a table in JSON
    #[arg(long, value_name = "HOURS")]
    quiet: Option<String>,

    /// The longest duration of a run
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    /// How late it may start, and what becomes of it if it could start only later: `1h skip`, `1h
    /// bury`, `1h spread 10m`
    #[arg(long, value_name = "LIMIT")]
    max_lateness: Option<MaxLateness>,

    /// Only if there is no such job
    #[arg(long, conflicts_with = "if_present")]
    if_absent: bool,

    /// Only if there is such a job, pending or running
    #[arg(long)]
    if_present: bool,

    #[command(flatten)]
    durably: Durably,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let recurring = match &options.recur {
        Some(text) => {
            let rule = recur::rule(text, options.recur_zone.as_deref());
            Some(rule.map_err(|fault| Stop::wrong(format!("`--recur {text}`: {fault}")))?)
        }
        None => None,
    };
    if let (true, Some(rule)) = (options.preview, &recurring) {
        return Ok(recur::preview(rule, options.form)?);
    }
    let (json, base64) = match &options.file {
        Some(path) => Payloads::Exact.show(&read(path)?),
        None => Payloads::Exact.show(options.payload.as_bytes()),
    };
    let condition = match (options.if_absent, options.if_present) {
        (true, _) => Some(Condition::Absent),
        (_, true) => Some(Condition::Present),
        _ => None,
    };
    let DurableIn { durable, fsynced } = options.durably.asked();
    let job = NewJobIn {
        payload: json,
        payload_base64: base64,
        after: options.when.after(),
        at: options.when.at()?,
        debounce: options.debounce.map(Span),
        at_most: options.at_most.map(Span),
        throttle: options.throttle.map(Span),
        recurring,
        quiet: match &options.quiet {
            Some(text) => Some(super::series::quiet(text)?),
            None => None,
        },
        headers: options.header.into_iter().collect(),
        retry: options.retry,
        attempts: options.attempts,
        timeout: options.timeout.map(Span),
        max_lateness: options.max_lateness,
        condition,
        durable,
        fsynced,
    };
    let jobs = options.server.connect().await?;
    let scheduled = jobs.schedule(&options.key, &job).await?;
    let done = match scheduled.placed {
        PlacedOut::Created => "is scheduled",
        PlacedOut::Replaced => "replaces the pending job",
        PlacedOut::Succeeds => "follows the running job",
        PlacedOut::LeftOut => "is left out by its quiet hours, and not stored",
    };
    let reached = options.durably.told(scheduled.reached);
    let sentence = format!(
        "{} {done}: due {}{reached}",
        scheduled.key,
        shown(scheduled.due)
    );
    options.form.say(&scheduled, sentence)?;
    for warning in &scheduled.warnings {
        aside(format!("warning: {}", warning.detail));
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut payload = Vec::new();
        let read = std::io::stdin().read_to_end(&mut payload);
        read.context("the standard input cannot be read")?;
        return Ok(payload);
    }
    std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
}

fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let parts = parts.filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("write a name, an equals sign, and a text: tenant=acme")?;
    Ok((name.to_owned(), value.to_owned()))
}
