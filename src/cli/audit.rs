//! `keyfall audit`: whether the books of each kind balance, and what is wrong with which job.

use anyhow::bail;

use super::connect::Server;
use super::kinds::absent;
use super::out::{self, Form};
use super::unseen;
use crate::daemon::shapes::{AuditIn, AuditedOut};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// What the kinds begin with, such as app1:trans:notice: with the colon at its end; all there
    /// are, unless it is given
    prefix: Option<String>,

    /// Repair what is found; no job is lost by it
    #[arg(long)]
    repair: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let wanted = AuditIn {
        prefix: options.prefix,
        repair: options.repair,
    };
    let audited = jobs.audit(&wanted).await?;
    let is_nothing = audited.kinds.is_empty() && audited.unseen.is_empty();
    if let Some(prefix) = wanted.prefix.filter(|_| is_nothing) {
        return Err(absent(&prefix));
    }
    if options.form.json {
        out::json(&audited)?;
    } else {
        show(&audited.kinds)?;
    }
    // What was not seen is no fault of the books.
    let is_unclean = |kind: &&AuditedOut| !kind.clean && kind.unseen.is_empty();
    let unclean = audited.kinds.iter().filter(is_unclean).count();
    if unclean > 0 {
        let remedy = if options.repair {
            "what is left is not repaired: see `docs/states.md`, Audit"
        } else {
            "`--repair` mends what has a remedy"
        };
        bail!(
            "{unclean} of {} kinds are not as they should be; {remedy}",
            audited.kinds.len()
        );
    }
    unseen::told(&audited.unseen)
}

fn show(reports: &[AuditedOut]) -> anyhow::Result<()> {
    let rows = reports.iter().map(|report| {
        [
            report.kind.clone(),
            match (report.clean, &*report.unseen) {
                (true, _) => "clean",
                (false, []) => "not clean",
                (false, _) => "not all seen",
            }
            .to_owned(),
            report.scanned.to_string(),
            report.difference.to_string(),
            report.letters_difference.to_string(),
            report.flaws.len().to_string(),
        ]
    });
    let titles = [
        "kind",
        "books",
        ">looked at",
        ">missing",
        ">letters missing",
        ">flaws",
    ];
    out::table(titles, rows)?;
    for flaw in reports.iter().flat_map(|report| &report.flaws) {
        let done = if flaw.repaired { ", repaired" } else { "" };
        let what = flaw.flaw.replace('_', " ");
        out::line(format!("{}: {what}{done}", flaw.name))?;
    }
    Ok(())
}
