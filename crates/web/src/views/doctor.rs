//! The findings of the doctor, the worst first.

use askama::Template;
use axum::response::Response;
use keyfall_daemon::shapes::{DoctorOut, FindingOut, SeverityOut};

use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::page::Page;

#[derive(Template)]
#[template(path = "doctor.html")]
struct Doctor {
    page: Page,
    server: String,
    /// The findings that are not as they should be.
    bad: Vec<FindingOut>,
    good: Vec<FindingOut>,
}

pub(crate) async fn show(cx: Cx) -> Result<Response, Fault> {
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
        bad,
        good,
    }))
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
