//! The findings of the doctor, the worst first, and a button for each that it can repair.

use std::time::{Duration, UNIX_EPOCH};

use askama::Template;
use axum::response::Response;
use keyfall_daemon::shapes::{DoctorOut, FindingOut, FixIn, SeverityOut, Time};
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::gathered::oldest;
use crate::links::link;
use crate::page::Page;
use crate::read::{Form, Query};

#[derive(Template)]
#[template(path = "doctor.html")]
struct Doctor {
    page: Page,
    /// The server; `None` while it is examined for the first time.
    server: Option<String>,
    /// When it was examined, if that is a while ago.
    since: Option<Time>,
    /// The findings that are not as they should be.
    bad: Vec<FindingOut>,
    good: Vec<FindingOut>,
    /// The check that was just repaired.
    done: Option<String>,
    /// Whether the findings are older than the question: the page asks again until they are not.
    waits: bool,
    again: String,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    done: String,
    /// When the reader asked first, in milliseconds.
    #[serde(default)]
    asked: String,
}

pub(crate) async fn show(
    axum::extract::State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("doctor");
    let gathered = &web.gathered;
    let seen = gathered
        .ask::<DoctorOut>(&cx, "", Call::get(&["doctor"]))
        .await?;
    let since = oldest(seen.as_ref().map(|seen| seen.at), cx.page.now).map(Time);
    let now = cx.page.now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = asked.asked.parse().map_or(now, Duration::from_millis);
    let waits = seen
        .as_ref()
        .is_none_or(|seen| seen.at < UNIX_EPOCH + first.min(now));
    let first = first.as_millis().to_string();
    let findings = seen.as_ref().map_or(&[][..], |seen| &seen.answer.findings);
    let (good, mut bad): (Vec<_>, Vec<_>) = findings
        .iter()
        .cloned()
        .partition(|one| one.severity == SeverityOut::Ok);
    bad.sort_by_key(|one| std::cmp::Reverse(one.severity));
    Ok(cx.show(&Doctor {
        page: cx.page.clone(),
        server: seen.map(|seen| seen.answer.server.clone()),
        since,
        waits,
        again: link("doctor", &[("done", &asked.done), ("asked", &first)]),
        done: Some(asked.done).filter(|id| good.iter().any(|it| it.id == *id)),
        bad,
        good,
    }))
}

#[derive(Deserialize)]
pub(crate) struct Sent {
    /// The check to repair.
    fix: String,
}

/// Repairs the finding of one check.
pub(crate) async fn fix(
    axum::extract::State(web): Shared,
    cx: Cx,
    Form(Sent { fix }): Form<Sent>,
) -> Result<Response, Fault> {
    let only = Some(vec![fix.clone()]);
    let call = Call::post(&["doctor", "fix"]).with(&FixIn { only });
    let out: DoctorOut = cx.caller.ask(call).await?;
    web.gathered.forget("/v1/doctor");
    let refused = out.findings.into_iter().find(|it| !it.repaired);
    let why = refused.and_then(|it| {
        let fixed = it.fixed?;
        Some(cx.page.words.say(it.fixed_said.as_ref(), &fixed))
    });
    match why {
        Some(why) => Err(Fault::redis_refuses(&why)),
        None => Ok(redirect(&link("doctor", &[("done", &fix)]))),
    }
}

impl Doctor {
    fn may(&self) -> bool {
        self.page.may("operate", "")
    }
}

/// The word of a severity.
fn word(severity: &SeverityOut) -> &'static str {
    match severity {
        SeverityOut::Ok => "ok",
        SeverityOut::Info => "info",
        SeverityOut::Warning => "warning",
        SeverityOut::Error => "error",
    }
}
