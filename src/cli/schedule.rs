//! `keyfall schedule`: a job, from the command line.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use keyfall::{IfAbsent, IfPresent, JobKey, Placed, RetryPolicy, Scheduled};
use serde::Serialize;

use super::connect::Server;
use super::out::Form;
use super::stop::Stop;
use super::when::{When, shown, stamp};
use crate::duration;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The name of the job, app:module:biz:id
    key: JobKey,

    /// What it carries, stored as it is written here: JSON, for a handler that reads JSON
    #[arg(default_value = "null", hide_default_value = true)]
    payload: String,

    /// Read the payload from a file, byte for byte; `-` is the standard input
    #[arg(long, value_name = "PATH", conflicts_with = "payload")]
    file: Option<PathBuf>,

    #[command(flatten)]
    when: When,

    /// A text that travels with the job; can be given several times
    #[arg(long, value_name = "NAME=TEXT", value_parser = header)]
    header: Vec<(String, String)>,

    /// When it runs again if it fails, instead of what its route says: `15s 3m 1h`, or `none`
    #[arg(long, value_name = "LADDER")]
    retry: Option<RetryPolicy>,

    /// How many attempts it has, the first run included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: Option<u32>,

    /// How long a run of it may take
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    /// Only if there is no such job
    #[arg(long, conflicts_with = "if_present")]
    if_absent: bool,

    /// Only if there is such a job, pending or running
    #[arg(long)]
    if_present: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// As the HTTP API answers.
#[derive(Serialize)]
struct Answer<'a> {
    key: &'a str,
    placed: &'static str,
    due: Timestamp,
    armed: bool,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let at = options.when.at()?;
    let payload = match &options.file {
        Some(path) => read(path)?,
        None => options.payload.into_bytes(),
    };
    let client = options.server.connect().await?;
    let key = &options.key;
    let mut job = client.schedule_bytes(key, payload);
    for (name, text) in options.header {
        job = job.header(name, text);
    }
    if let Some(delay) = options.when.after {
        job = job.after(delay);
    }
    if let Some(due) = at {
        job = job.at(due);
    }
    if let Some(policy) = options.retry {
        job = job.retry(policy);
    }
    if let Some(limit) = options.attempts {
        job = job.attempts(limit);
    }
    if let Some(limit) = options.timeout {
        job = job.timeout(limit);
    }
    let scheduled = if options.if_absent {
        match job.if_absent().await? {
            IfAbsent::Scheduled(scheduled) => scheduled,
            IfAbsent::Present(_) => {
                return Err(anyhow!("{key} is there already: it was left as it is"));
            }
        }
    } else if options.if_present {
        match job.if_present().await? {
            IfPresent::Scheduled(scheduled) => scheduled,
            IfPresent::Absent => {
                return Err(Stop::absent(format!("there is no job {key}")).into());
            }
        }
    } else {
        job.await?
    };
    tell(key, &scheduled, options.form)
}

fn tell(key: &JobKey, scheduled: &Scheduled, form: Form) -> anyhow::Result<()> {
    let (placed, done) = match scheduled.placed {
        Placed::Created => ("created", "is scheduled"),
        Placed::Replaced => ("replaced", "takes the place of the one that was pending"),
        _ => ("succeeds", "follows the one that is running"),
    };
    let answer = Answer {
        key: key.as_str(),
        placed,
        due: stamp(scheduled.due),
        armed: scheduled.armed,
    };
    let due: SystemTime = scheduled.due;
    form.say(&answer, format!("{key} {done}: due {}", shown(due)))?;
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
