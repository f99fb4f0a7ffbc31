//! Which jobs a command is about: one by its key, or many by what their keys begin with.

use keyfall::{Client, JobKey, Selection};

#[derive(clap::Args, Debug, Clone)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// The key of one job, app:module:biz:id
    pub(crate) key: Option<JobKey>,

    /// All whose keys begin so, such as app1:trans:notice: with the colon at its end, since
    /// app1:trans:notice2 begins alike
    #[arg(long)]
    prefix: Option<String>,

    /// All there are
    #[arg(long)]
    all: bool,
}

impl Which {
    pub(crate) fn among<'a>(&self, client: &'a Client) -> Selection<'a> {
        select(client, self.prefix.as_deref())
    }

    /// As in "12 jobs, all whose keys begin with app1:".
    pub(crate) fn jobs(&self, count: u64) -> String {
        let jobs = if count == 1 { "job" } else { "jobs" };
        match &self.prefix {
            Some(prefix) => format!("{count} {jobs}, all whose keys begin with {prefix}"),
            None => format!("{count} {jobs}, all there are"),
        }
    }
}

/// The jobs that begin so, or all of them.
pub(crate) fn select<'a>(client: &'a Client, prefix: Option<&str>) -> Selection<'a> {
    match prefix {
        Some(prefix) => client.prefix(prefix),
        None => client.everything(),
    }
}
