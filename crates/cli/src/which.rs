//! The selection of jobs for a command: one by its key, or many by the prefix of their keys.

use std::str::FromStr;

use keyfall::{JobKey, Kind};

use super::stop::Stop;
use keyfall_daemon::shapes::BulkIn;

#[derive(clap::Args, Debug, Clone)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// The key of one job, app:module:biz:id, or the prefix of many, with the colon at its end:
    /// app1:trans:notice:
    #[arg(value_name = "KEY|PREFIX:")]
    named: Option<Named>,

    /// The prefix of many jobs, such as app1:trans:notice: with the colon at its end, since
    /// app1:trans:notice2 begins the same way
    #[arg(long)]
    prefix: Option<String>,

    /// All jobs there are
    #[arg(long)]
    all: bool,
}

/// The prefix of the job keys, or of the kinds, of a command: all of them by default.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Among {
    /// Their prefix, such as app1:trans:notice: with the colon at its end; all of them by default
    #[arg(value_name = "PREFIX", conflicts_with_all = ["prefix", "all"])]
    named: Option<String>,

    /// The same as PREFIX
    #[arg(long, conflicts_with = "all")]
    prefix: Option<String>,

    /// All of them
    #[arg(long, hide = true)]
    all: bool,
}

impl Among {
    pub(crate) fn prefix(&self) -> Option<String> {
        self.named.clone().or_else(|| self.prefix.clone())
    }

    /// Whether all jobs are selected explicitly.
    pub(crate) fn is_all(&self) -> bool {
        self.all
    }
}

/// For commands without a question: every command that changes something accepts `--yes`.
#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct Unasked {
    /// No effect: this command asks no question
    #[arg(long = "yes", hide = true)]
    _yes: bool,
}

/// A kind, also with the colon that ends a prefix.
pub(crate) fn kind(text: &str) -> Result<String, keyfall::Error> {
    let text = text.strip_suffix(':').unwrap_or(text);
    Kind::parse(text).map(|kind| kind.to_string())
}

#[derive(Debug, Clone)]
enum Named {
    Job(JobKey),
    Prefix(String),
}

impl FromStr for Named {
    type Err = keyfall::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.ends_with(':') {
            true => Ok(Named::Prefix(text.to_owned())),
            false => JobKey::parse(text).map(Named::Job),
        }
    }
}

impl Which {
    /// The one job, unless the command is about many.
    pub(crate) fn key(&self) -> Option<&JobKey> {
        match &self.named {
            Some(Named::Job(key)) => Some(key),
            _ => None,
        }
    }

    /// The many jobs.
    pub(crate) fn many(&self, dry_run: bool) -> BulkIn {
        among(self.prefix(), dry_run)
    }

    pub(crate) fn prefix(&self) -> Option<String> {
        match &self.named {
            Some(Named::Prefix(prefix)) => Some(prefix.clone()),
            _ => self.prefix.clone(),
        }
    }

    /// As in "12 jobs, all whose keys begin with app1:".
    pub(crate) fn jobs(&self, count: u64) -> String {
        let jobs = if count == 1 { "job" } else { "jobs" };
        match self.prefix() {
            Some(prefix) => format!("{count} {jobs}, all whose keys begin with {prefix}"),
            None => format!("{count} {jobs}, all there are"),
        }
    }

    /// Refuses a flag that has no meaning for one job.
    pub(crate) fn refuse_for_one(&self, flag: &str, is_given: bool) -> Result<(), Stop> {
        if is_given && self.key().is_some() {
            return Err(Stop::wrong(format!(
                "`{flag}` is for many jobs, and a key names one: leave it out, or give a prefix"
            )));
        }
        Ok(())
    }

    /// Refuses a flag that has no meaning for many jobs.
    pub(crate) fn refuse_for_many(&self, flag: &str, is_given: bool) -> Result<(), Stop> {
        if is_given && self.key().is_none() {
            return Err(Stop::wrong(format!(
                "`{flag}` is for one job: leave it out, or give the key of the job"
            )));
        }
        Ok(())
    }
}

/// The jobs with this prefix, or all.
pub(crate) fn among(prefix: Option<String>, dry_run: bool) -> BulkIn {
    BulkIn {
        everything: prefix.is_none(),
        prefix,
        dry_run,
    }
}
