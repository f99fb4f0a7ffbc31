//! What is wrong, in one line each, the worst first.

use std::time::Duration;

use keyfall_daemon::shapes::{
    CountOut, DoctorOut, OverviewKindOut, PausedOut, SeverityOut, SinceOut,
};

use crate::kinds::Kinds;
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
    pub(crate) kinds: Option<&'a Kinds>,
    pub(crate) totals: Option<&'a CountOut>,
    pub(crate) paused: Option<&'a PausedOut>,
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
    if let Some(lapsed) = seen.totals.map(|it| it.lapsed).filter(|it| *it > 0) {
        let text = page.count("trouble.lapsed", &lapsed);
        all.push(warning(text, Some("jobs?q=state%3Alapsed")));
    }
    if let Some(dead) = seen.totals.map(|it| it.dead).filter(|it| *it > 0) {
        let text = page.count("trouble.dead", &dead);
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
    let unseen = seen.kinds.into_iter().flat_map(|kinds| &kinds.unseen);
    unseen.map(|one| error(page.t2("trouble.away", &one.server, &one.error), None))
}

fn instances(page: &Page, seen: &Seen<'_>) -> Vec<Trouble> {
    let Some(live) = seen.kinds.and_then(|kinds| kinds.instances.as_ref()) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let pending = seen.totals.map_or(0, |totals| totals.pending);
    if live.is_empty() && pending > 0 {
        let text = page.count("trouble.nobody", &pending);
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

/// How long jobs of a kind have been due that do not start, although the kind is not paused, and no
/// limit holds them back; `None` if they start.
pub(crate) fn late_for(one: &OverviewKindOut) -> Option<Duration> {
    let counts = &one.kind.counts;
    let since = one.overdue_for?.0;
    (!counts.paused && counts.held == 0 && since >= LATE).then_some(since)
}

/// Jobs that are due and do not start, although their kinds are not paused, and no limit holds them
/// back.
fn late(page: &Page, seen: &Seen<'_>) -> Option<Trouble> {
    let late = seen.kinds.into_iter().flat_map(|kinds| &kinds.all);
    let late = late.filter_map(|one| Some((one, late_for(one)?)));
    let late: Vec<_> = late.collect();
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
    let paused = seen.paused.into_iter();
    let rules = paused.clone().flat_map(|paused| &paused.prefixes);
    let all: Vec<&SinceOut> = rules.clone().collect();
    // A kind below a paused prefix goes without saying.
    let alone = paused.flat_map(|paused| &paused.kinds).filter(move |kind| {
        let name = format!("{}:", kind.name);
        !all.iter().any(|rule| name.starts_with(&rule.name))
    });
    rules.chain(alone).map(|one| {
        let since = times::relative(one.since.0, page.now, page.words);
        let text = match &*one.name {
            "" => page.t1("trouble.all_paused", since),
            name => page.t2("trouble.paused", name, since),
        };
        warning(text, Some("pauses"))
    })
}
