//! `keyfall history`: the length of histories.

use super::connect::Server;
use super::out::{self, Form};
use super::stop::Stop;
use super::which::{Among, Unasked};
use keyfall_daemon::shapes::HistoryIn;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    among: Among,

    #[command(flatten)]
    unasked: Unasked,

    /// Keep this number of entries in each history from now on, a million at the most
    #[arg(long, value_name = "ENTRIES", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,

    /// Stop the history, and delete its entries
    #[arg(long, conflicts_with = "keep")]
    off: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let entries = options.keep.or(options.off.then_some(0));
    let prefix = options.among.prefix();
    if entries.is_some() && prefix.is_none() && !options.among.is_all() {
        let which = "which kinds? Give a PREFIX, such as app1:trans:notice:, or `--all`";
        return Err(Stop::wrong(which).into());
    }
    let jobs = options.server.connect().await?;
    let mut kept = match entries {
        Some(entries) => {
            let wanted = HistoryIn {
                prefix: prefix.clone(),
                everything: options.among.is_all(),
                entries,
            };
            jobs.keep_history(&wanted).await?
        }
        None => jobs.histories().await?,
    };
    if let (None, Some(prefix)) = (entries, &prefix) {
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
