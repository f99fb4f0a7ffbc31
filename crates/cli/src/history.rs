//! `keyfall history`: how much of what happens is kept.

use super::connect::Server;
use super::out::{self, Form};
use keyfall_daemon::shapes::HistoryIn;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// What the kinds begin with, such as app1:trans:notice: with the colon at its end; all of
    /// them, and only to look, if it is left out
    prefix: Option<String>,

    /// All of them
    #[arg(long, conflicts_with = "prefix")]
    all: bool,

    /// Keep so many entries of each from now on, a million at the most
    #[arg(long, value_name = "ENTRIES", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,

    /// Write nothing any more, and delete what was written
    #[arg(long, conflicts_with = "keep")]
    off: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let entries = options.keep.or(options.off.then_some(0));
    let mut kept = match entries {
        Some(entries) => {
            let wanted = HistoryIn {
                prefix: options.prefix.clone(),
                everything: options.all,
                entries,
            };
            jobs.keep_history(&wanted).await?
        }
        None => jobs.histories().await?,
    };
    if let (None, Some(prefix)) = (entries, &options.prefix) {
        kept.kinds
            .retain(|one| format!("{}:", one.kind).starts_with(prefix.as_str()));
    }
    if options.form.json {
        return Ok(out::json(&kept)?);
    }
    let rows = kept.kinds.into_iter().map(|one| {
        let entries = match one.entries {
            0 => "off".to_owned(),
            entries => entries.to_string(),
        };
        [one.kind, entries]
    });
    Ok(out::table(["kind", ">entries kept"], rows)?)
}
