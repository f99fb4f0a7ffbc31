//! Which jobs a command is about: one by its key, or many by what their keys begin with.

use keyfall::JobKey;

use crate::daemon::shapes::BulkIn;

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
    /// Of many jobs, which.
    pub(crate) fn many(&self, dry_run: bool) -> BulkIn {
        among(self.prefix.clone(), dry_run)
    }

    pub(crate) fn prefix(&self) -> Option<String> {
        self.prefix.clone()
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

/// What begins so, or all of it.
pub(crate) fn among(prefix: Option<String>, dry_run: bool) -> BulkIn {
    BulkIn {
        everything: prefix.is_none(),
        prefix,
        dry_run,
    }
}
