//! `keyfall doctor`: the findings of the doctor, the worst first.

use anyhow::bail;
use keyfall::doctor::CHECKS;

use super::connect::{Remedy, Server};
use super::out::{self, Form};
use super::stop::Stop;
use super::which::Unasked;
use keyfall_daemon::config::Redis;
use keyfall_daemon::shapes::{DoctorOut, FindingOut, FixIn, SeverityOut};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Repair settings that no other program depends on: merge the notification flags, raise the
    /// output buffer of subscribers. Lasts until Redis restarts
    #[arg(long, alias = "repair")]
    fix: bool,

    #[command(flatten)]
    unasked: Unasked,

    /// Show these checks only, and with --fix repair no others; separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,

    /// Show the checks without a finding, too
    #[arg(short, long, alias = "all")]
    verbose: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    if let Some(id) = options.only.iter().find(|id| !is_known(id)) {
        let known: Vec<&str> = CHECKS.iter().map(|check| check.id).collect();
        bail!(Stop::wrong(format!(
            "--only {id}: there is no such check; there are {}",
            known.join(", ")
        )));
    }
    let mut answer = ask(&options).await?;
    if !options.only.is_empty() {
        answer.findings.retain(|it| options.only.contains(&it.id));
        let severities = answer.findings.iter().map(|it| it.severity);
        answer.worst = severities.max().unwrap_or(SeverityOut::Ok);
    }
    if options.form.json {
        out::json(&answer)?;
    } else {
        show(&answer, options.verbose)?;
    }
    let count = |severity| {
        let findings = answer.findings.iter();
        findings.filter(|it| it.severity == severity).count()
    };
    match (count(SeverityOut::Error), count(SeverityOut::Warning)) {
        (0, 0) => Ok(()),
        (0, warnings) => bail!(Stop::warned(things(warnings, "warning"))),
        (errors, 0) => bail!(things(errors, "error")),
        (errors, warnings) => bail!(
            "{} and {}",
            things(errors, "error"),
            things(warnings, "warning")
        ),
    }
}

/// Asks the doctor. It examines a Redis without a connected client, because a client refuses some
/// of the servers that need the doctor.
async fn ask(options: &Options) -> anyhow::Result<DoctorOut> {
    match options.server.redis()? {
        Some(redis) => {
            let diagnose = redis.client().diagnose();
            let diagnose = if options.fix {
                diagnose.fix()
            } else {
                diagnose
            };
            let diagnose = if options.only.is_empty() {
                diagnose
            } else {
                diagnose.only(&options.only)
            };
            let found = options.server.explained(diagnose.await, Remedy::Any)?;
            let answer = DoctorOut::from(found);
            log(&redis, &answer).await;
            Ok(answer)
        }
        None if options.fix => {
            let only = Some(options.only.clone()).filter(|only| !only.is_empty());
            let jobs = options.server.connect().await?;
            jobs.fix(&FixIn { only }).await
        }
        None => options.server.connect().await?.doctor().await,
    }
}

/// Logs the repairs as an action of this process. They are made, so a failure here is only told.
async fn log(redis: &Redis, answer: &DoctorOut) {
    let Some((count, note)) = answer.repairs() else {
        return;
    };
    let logged = async {
        let client = redis.client().connect().await?;
        let action = client.log_action("fix", "");
        action.count(count).note(note).await
    };
    if let Err(error) = logged.await {
        eprintln!("keyfall: the repair was made, and could not be logged: {error}");
    }
}

fn is_known(id: &str) -> bool {
    CHECKS.iter().any(|check| check.id == id)
}

fn things(count: usize, name: &str) -> String {
    match count {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}

fn show(answer: &DoctorOut, all: bool) -> anyhow::Result<()> {
    let mut shown: Vec<&FindingOut> = answer.findings.iter().collect();
    shown.sort_by_key(|it| std::cmp::Reverse(it.severity));
    let (mut fine, mut unseen) = (Vec::new(), Vec::new());
    for finding in shown {
        if finding.severity > SeverityOut::Info || all || finding.fixed.is_some() {
            whole(finding)?;
        } else if !finding.seen {
            unseen.push(finding);
        } else if finding.severity == SeverityOut::Info {
            out::line(format!("info     {}: {}", finding.id, finding.found))?;
        } else {
            fine.push(finding.id.as_str());
        }
    }
    if !unseen.is_empty() {
        unseens(&unseen)?;
    }
    if !fine.is_empty() {
        out::line(format!("ok       {}: {}", fine.len(), fine.join(", ")))?;
    }
    Ok(())
}

fn whole(finding: &FindingOut) -> anyhow::Result<()> {
    let name = match finding.severity {
        SeverityOut::Ok => "ok",
        SeverityOut::Info => "info",
        SeverityOut::Warning => "warning",
        SeverityOut::Error => "error",
    };
    out::line(format!("{name:8} {}: {}", finding.id, finding.found))?;
    let parts = [
        ("expected", Some(&finding.expected)),
        ("why", Some(&finding.why)),
        ("remedy", finding.remedy.as_ref()),
        ("done", finding.fixed.as_ref()),
    ];
    for (part, text) in parts {
        if let Some(text) = text {
            out::line(format!("         {part:8}  {text}"))?;
        }
    }
    Ok(())
}

/// Prints the checks that could not see their settings, one line for each reason: one reason can
/// affect many checks.
fn unseens(findings: &[&FindingOut]) -> anyhow::Result<()> {
    let mut rest = findings.to_vec();
    while let Some(first) = rest.first().copied() {
        let (alike, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|it| it.found == first.found);
        let ids: Vec<&str> = alike.iter().map(|it| it.id.as_str()).collect();
        out::line(format!("info     {}: {}", ids.join(", "), first.found))?;
        rest = others;
    }
    Ok(())
}
