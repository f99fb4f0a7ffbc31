//! `keyfall audit`: whether the books of each kind balance, and what is wrong with which job.

use anyhow::bail;
use keyfall::{AuditReport, Kind};
use serde::Serialize;

use super::connect::Server;
use super::kinds::beginning;
use super::out::{self, Form};

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

#[derive(Serialize)]
struct KindReport {
    kind: String,
    /// Whether nothing is wrong any more.
    clean: bool,
    scanned: u64,
    complete: bool,
    consistent: bool,
    /// How many more jobs came than are accounted for.
    difference: i64,
    letters_difference: i64,
    flaws: Vec<FlawLine>,
}

#[derive(Serialize)]
struct FlawLine {
    name: String,
    flaw: String,
    repaired: bool,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let mut reports = Vec::new();
    for kind in beginning(&client, options.prefix.as_deref()).await? {
        let mut audit = client.audit(kind.as_str());
        if options.repair {
            audit = audit.repair();
        }
        reports.push(KindReport::new(&kind, audit.await?));
    }
    if options.form.json {
        out::json(&reports)?;
    } else {
        show(&reports)?;
    }
    let unclean = reports.iter().filter(|report| !report.clean).count();
    if unclean > 0 {
        let remedy = if options.repair {
            "what is left is not repaired: see `docs/states.md`, Audit"
        } else {
            "`--repair` mends what has a remedy"
        };
        bail!(
            "{unclean} of {} kinds are not as they should be; {remedy}",
            reports.len()
        );
    }
    Ok(())
}

impl KindReport {
    fn new(kind: &Kind, report: AuditReport) -> Self {
        let flaws = report.flawed.into_iter().map(|flawed| FlawLine {
            name: flawed.name,
            flaw: words(&format!("{:?}", flawed.flaw)),
            repaired: flawed.repaired,
        });
        let flaws: Vec<FlawLine> = flaws.collect();
        KindReport {
            kind: kind.to_string(),
            clean: report.stats.is_balanced()
                && report.is_consistent
                && report.is_complete
                && flaws.iter().all(|flaw| flaw.repaired),
            scanned: report.scanned,
            complete: report.is_complete,
            consistent: report.is_consistent,
            difference: report.stats.difference(),
            letters_difference: report.stats.letters_difference(),
            flaws,
        }
    }
}

fn show(reports: &[KindReport]) -> anyhow::Result<()> {
    let rows = reports.iter().map(|report| {
        [
            report.kind.clone(),
            if report.clean { "clean" } else { "not clean" }.to_owned(),
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

/// `DueWithoutRecord` as `due_without_record`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    words
}
