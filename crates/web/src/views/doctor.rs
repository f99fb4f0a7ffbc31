//! The findings of the doctor, the worst first, and a button for each that it can repair.

use askama::Template;
use axum::response::Response;
use keyfall_daemon::shapes::{DoctorOut, FindingOut, FixIn, SeverityOut};
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::read::{Form, Query};

#[derive(Template)]
#[template(path = "doctor.html")]
struct Doctor {
    page: Page,
    server: String,
    /// The findings that are not as they should be.
    bad: Vec<FindingOut>,
    good: Vec<FindingOut>,
    /// The check that was just repaired.
    done: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    done: Option<String>,
}

pub(crate) async fn show(cx: Cx, Query(asked): Query<Asked>) -> Result<Response, Fault> {
    let cx = cx.at("doctor");
    let seen: DoctorOut = cx.caller.ask(Call::get(&["doctor"])).await?;
    let (good, mut bad): (Vec<_>, Vec<_>) = seen
        .findings
        .into_iter()
        .partition(|one| one.severity == SeverityOut::Ok);
    bad.sort_by_key(|one| std::cmp::Reverse(one.severity));
    Ok(cx.show(&Doctor {
        page: cx.page.clone(),
        server: seen.server,
        done: asked.done.filter(|id| good.iter().any(|it| it.id == *id)),
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
    web.checkup.forget().await;
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
