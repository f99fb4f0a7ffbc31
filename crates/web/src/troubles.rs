//! What is wrong, in one line each, the worst first.

use std::time::Duration;

use keyfall_daemon::shapes::{CountOut, DoctorOut, OverviewOut, PausedOut, SeverityOut};

use crate::links;
use crate::page::Page;
use crate::times;

/// A job that is due starts within milliseconds; one that still waits after this time is late.
const LATE: Duration = Duration::from_secs(5);

/// An instance that was not heard of for this long may be gone. It beats every few seconds.
const QUIET_MS: u64 = 15_000;

/// A line at the head of the overview.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// `error` or `warning`.
    pub(crate) level: &'static str,
    pub(crate) text: String,
    /// The page that shows more.
    pub(crate) link: Option<String>,
}

/// The answers that troubles are found in.
pub(crate) struct Seen<'a> {
    pub(crate) overview: &'a OverviewOut,
    pub(crate) totals: &'a CountOut,
    pub(crate) paused: &'a PausedOut,
    /// The findings of the doctor, if the reader may see them.
    pub(crate) findings: Option<&'a DoctorOut>,
}

pub(crate) fn troubles(page: &Page, seen: &Seen<'_>) -> Vec<Trouble> {
    let mut all = Vec::new();
    all.extend(away(page, seen));
    all.extend(instances(page, seen));
    all.extend(late(page, seen));
    all.extend(findings(page, seen));
    all.extend(paused(page, seen));
    if seen.totals.lapsed > 0 {
        let text = page.count("trouble.lapsed", &seen.totals.lapsed);
        all.push(warning(text, Some("jobs?q=state%3Alapsed")));
    }
    if seen.totals.dead > 0 {
        let text = page.count("trouble.dead", &seen.totals.dead);
        all.push(warning(text, Some("dead")));
    }
    all.sort_by_key(|one| one.level != "error");
    all
}

fn error(text: String, link: Option<&str>) -> Trouble {
    Trouble {
        level: "error",
        text,
        link: link.map(ToOwned::to_owned),
    }
}

fn warning(text: String, link: Option<&str>) -> Trouble {
    Trouble {
        level: "warning",
        text,
        link: link.map(ToOwned::to_owned),
    }
}

/// Servers that did not answer.
fn away<'a>(page: &'a Page, seen: &Seen<'a>) -> impl Iterator<Item = Trouble> {
    let unseen = seen.overview.unseen.iter();
    unseen.map(|one| error(page.t2("trouble.away", &one.server, &one.error), None))
}

fn instances(page: &Page, seen: &Seen<'_>) -> Vec<Trouble> {
    let Some(live) = &seen.overview.instances else {
        return Vec::new();
    };
    let mut all = Vec::new();
    if live.is_empty() && seen.totals.pending > 0 {
        let text = page.count("trouble.nobody", &seen.totals.pending);
        all.push(error(text, Some("workers")));
    }
    for one in live.iter().filter(|one| one.seen_ms > QUIET_MS) {
        let name = format!("{}:{}", one.host, one.pid);
        let text = page.t2("trouble.quiet", name, page.millis(&one.seen_ms));
        all.push(warning(text, Some("workers")));
    }
    for host in live.iter().flat_map(|one| &one.open_breakers) {
        let text = page.t1("trouble.breaker", host);
        if !all.iter().any(|one| one.text == text) {
            all.push(warning(text, Some("workers")));
        }
    }
    all
}

/// Jobs that are due and do not start, although their kinds are not paused, and no limit holds them
/// back.
fn late(page: &Page, seen: &Seen<'_>) -> Option<Trouble> {
    let late = seen.overview.kinds.iter();
    let late = late.filter(|one| !one.kind.counts.paused && one.kind.counts.held == 0);
    let late = late.filter_map(|one| Some((one, one.overdue_for?.0)));
    let late: Vec<_> = late.filter(|(_, since)| *since >= LATE).collect();
    let oldest = late.iter().map(|(_, since)| *since).max()?;
    let jobs: u64 = late.iter().map(|(one, _)| one.kind.counts.overdue).sum();
    let oldest = times::span(oldest, page.words);
    let text = match &*late {
        [(one, _)] => page.words.fill(
            "trouble.late_in",
            &[&page.number(&jobs), &one.kind.counts.kind, &oldest],
        ),
        _ => page.words.fill(
            "trouble.late",
            &[
                &page.number(&jobs),
                &page.number(&(late.len() as u64)),
                &oldest,
            ],
        ),
    };
    let link = match &*late {
        [(one, _)] => links::jobs(&format!("{}:", one.kind.counts.kind)),
        _ => "jobs".to_owned(),
    };
    Some(error(text, Some(&link)))
}

fn findings(page: &Page, seen: &Seen<'_>) -> Vec<Trouble> {
    let Some(doctor) = seen.findings else {
        return Vec::new();
    };
    let bad = doctor.findings.iter();
    let bad = bad.filter(|one| one.severity >= SeverityOut::Warning);
    bad.map(|one| {
        let found = page.words.say(one.found_said.as_ref(), &one.found);
        let text = page.t2("trouble.finding", &one.id, found);
        let link = format!("doctor#{}", one.id);
        match one.severity {
            SeverityOut::Error => error(text, Some(&link)),
            _ => warning(text, Some(&link)),
        }
    })
    .collect()
}

fn paused<'a>(page: &'a Page, seen: &Seen<'a>) -> impl Iterator<Item = Trouble> {
    let rules = &seen.paused.prefixes;
    // A kind below a paused prefix goes without saying.
    let alone = seen.paused.kinds.iter().filter(|kind| {
        let name = format!("{}:", kind.name);
        !rules.iter().any(|rule| name.starts_with(&rule.name))
    });
    rules.iter().chain(alone).map(|one| {
        let since = times::relative(one.since.0, page.now, page.words);
        let text = match &*one.name {
            "" => page.t1("trouble.all_paused", since),
            name => page.t2("trouble.paused", name, since),
        };
        warning(text, Some("pauses"))
    })
}
