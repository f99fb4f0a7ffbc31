//! `keyfall audit`: whether the books of each kind balance, and the flaws of each job.

use anyhow::bail;

use super::connect::Server;
use super::kinds::absent;
use super::out::{self, Form};
use super::unseen;
use super::which::{Among, Unasked};
use keyfall_daemon::shapes::{AuditIn, AuditOut, AuditedOut, DamageOut};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    among: Among,

    /// Repair the findings; no job is lost by it
    #[arg(long, alias = "fix")]
    repair: bool,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let wanted = AuditIn {
        prefix: options.among.prefix(),
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
        show(&audited)?;
    }
    if !audited.searched {
        eprintln!(
            "the search for unlisted kinds did not see all keys: it needs a user who may `SCAN` \
             on all servers, and at most ten million keys on each"
        );
    }
    // An unread part does not show a fault of the books.
    let is_unclean = |kind: &&AuditedOut| !kind.clean && kind.unseen.is_empty();
    let unclean = audited.kinds.iter().filter(is_unclean).count();
    let damaged = audited.damaged.iter().filter(|it| !it.repaired).count();
    if unclean + damaged > 0 {
        let remedy = if options.repair {
            "a repair leaves the rest: see `docs/states.md`, Audit"
        } else {
            "`--repair` mends the flaws that have a remedy"
        };
        let common = match damaged {
            0 => String::new(),
            _ => ", and the keys that all kinds share,".to_owned(),
        };
        bail!(
            "{unclean} of {} kinds{common} are not as they should be; {remedy}",
            audited.kinds.len()
        );
    }
    unseen::told(&audited.unseen)
}

fn show(audited: &AuditOut) -> anyhow::Result<()> {
    let reports = &audited.kinds;
    let rows = reports.iter().map(|report| {
        [
            report.kind.clone(),
            match (report.clean, &*report.unseen, &report.error) {
                (true, ..) => "clean",
                (.., Some(_)) => "not audited",
                (false, [], None) => "not clean",
                (false, _, None) => "not all seen",
            }
            .to_owned(),
            report.scanned.to_string(),
            report.difference.to_string(),
            report.letters_difference.to_string(),
            (report.flaws.len() + report.damaged.len()).to_string(),
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
    for report in reports {
        for damage in &report.damaged {
            tell(damage)?;
        }
        for flaw in &report.flaws {
            let done = if flaw.repaired {
                ", repaired"
            } else {
                "; `--repair`"
            };
            let what = flaw.flaw.replace('_', " ");
            out::line(format!("{}: {what}{done}: {}", flaw.name, flaw.remedy))?;
        }
        if let Some(error) = &report.error {
            out::line(format!("{}: {error}", report.kind))?;
        }
    }
    for damage in &audited.damaged {
        tell(damage)?;
    }
    Ok(())
}

/// A finding as one line.
fn tell(damage: &DamageOut) -> anyhow::Result<()> {
    let field = damage.field.as_deref().map(|field| format!(" {field}"));
    let done = if damage.repaired { "repaired: " } else { "" };
    out::line(format!(
        "{}{}: {}; {done}{}",
        damage.key,
        field.unwrap_or_default(),
        damage.what,
        damage.remedy
    ))?;
    Ok(())
}
