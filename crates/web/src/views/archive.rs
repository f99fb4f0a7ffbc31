//! The archive: the search for jobs that have ended, and one of them, with which it is scheduled again.

use std::fmt::Write;

use askama::Template;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use keyfall_daemon::shapes::{
    ArchivePageOut, ArchiveSearchIn, EndedIn, EndedJobOut, EndedOut, EndedRequeueIn,
    EndedRequeuedOut, Moment, Payloads, Time,
};
use serde::Deserialize;

use crate::actions::Details;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::payload::Payload;
use crate::read::{Form, Query};

/// Jobs of one page.
const JOBS: usize = 50;

/// The ways to end.
const ENDS: [&str; 5] = ["done", "skipped", "cancelled", "replaced", "buried"];

#[derive(Template)]
#[template(path = "archive.html")]
struct Archive {
    page: Page,
    asked: Asked,
    /// The jobs; none if the search failed.
    jobs: Vec<EndedOut>,
    /// Why it failed: the database is away, or the search took too long.
    fault: Option<String>,
    first: String,
    next: Option<String>,
}

/// The fields of the search.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    prefix: String,
    how: String,
    since: String,
    until: String,
    error: String,
    cursor: String,
}

pub(crate) async fn show(cx: Cx, Query(mut asked): Query<Asked>) -> Result<Response, Fault> {
    let cx = cx.at("archive");
    asked.prefix = cx.page.reach(asked.prefix.trim());
    let call = Call::get(&["archive"]).asking(&asked.search()?);
    let (status, found, fault) = match cx.caller.ask::<ArchivePageOut>(call).await {
        Ok(found) => (StatusCode::OK, found, None),
        // The search stays on the page, to be narrowed.
        Err(fault) if fault.is_of_archive() => {
            let line = fault.said(cx.page.words);
            (fault.status, ArchivePageOut::default(), Some(line))
        }
        Err(fault) => return Err(fault),
    };
    let next = found.next.as_ref();
    let view = Archive {
        page: cx.page.clone(),
        first: asked.link(""),
        next: next.map(|cursor| asked.link(cursor)),
        jobs: found.jobs,
        fault,
        asked,
    };
    Ok((status, cx.show(&view)).into_response())
}

impl Asked {
    fn search(&self) -> Result<ArchiveSearchIn, Fault> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let moment = |field: &str, text: &str| {
            let Some(text) = some(text) else {
                return Ok(None);
            };
            let read = text.parse::<Moment>().map(Some);
            read.map_err(|_| Fault::invalid(field, "fault.moment", &[&format!("{text:?}")]))
        };
        Ok(ArchiveSearchIn {
            prefix: some(&self.prefix),
            how: some(&self.how),
            since: moment("since", &self.since)?,
            until: moment("until", &self.until)?,
            error: some(&self.error),
            limit: Some(JOBS),
            cursor: some(&self.cursor),
        })
    }

    /// This search, from a place on.
    fn link(&self, cursor: &str) -> String {
        link(
            "archive",
            &[
                ("prefix", &self.prefix),
                ("how", &self.how),
                ("since", &self.since),
                ("until", &self.until),
                ("error", &self.error),
                ("cursor", cursor),
            ],
        )
    }

    fn is_how(&self, how: &str) -> bool {
        self.how == how
    }

    fn is_empty(&self) -> bool {
        self.link("") == "archive"
    }
}

/// The page of a run.
pub(crate) fn ended(run: &EndedOut) -> String {
    link(
        "ended",
        &[("key", &run.key), ("ended", &run.ended.to_string())],
    )
}

#[derive(Template)]
#[template(path = "ended.html")]
struct Ended {
    page: Page,
    run: EndedOut,
    job: EndedJobOut,
    /// `None` if the archive does not have it.
    payload: Option<Payload>,
    /// A name of the call, so that a form that is sent twice schedules one job.
    call: String,
    is_done: bool,
}

#[derive(Deserialize)]
pub(crate) struct Wanted {
    key: String,
    ended: Time,
    #[serde(default)]
    done: String,
}

pub(crate) async fn one(cx: Cx, Query(wanted): Query<Wanted>) -> Result<Response, Fault> {
    let cx = cx.at("archive");
    let job = wanted.ask(&cx).await?;
    let bytes = job.bytes()?;
    Ok(cx.show(&Ended {
        page: cx.page.clone(),
        run: job.run.clone(),
        payload: bytes.as_deref().map(Payload::of),
        job,
        call: call(),
        is_done: wanted.done == "yes",
    }))
}

/// The payload as a file, byte for byte.
pub(crate) async fn payload(cx: Cx, Query(wanted): Query<Wanted>) -> Result<Response, Fault> {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"payload\"",
        ),
    ];
    let bytes = wanted.ask(&cx).await?.bytes()?;
    Ok((headers, bytes.unwrap_or_default()).into_response())
}

impl Wanted {
    async fn ask(&self, cx: &Cx) -> Result<EndedJobOut, Fault> {
        let wanted = EndedIn {
            ended: Some(self.ended),
            payloads: Payloads::Exact,
        };
        let call = Call::get(&["archive", &self.key]).asking(&wanted);
        cx.caller.ask(call).await
    }
}

/// A new name of a call.
fn call() -> String {
    let mut name = String::with_capacity(24);
    for byte in rand::random::<[u8; 12]>() {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// The form that schedules a job again.
#[derive(Deserialize)]
pub(crate) struct Sent {
    key: String,
    ended: Time,
    call: String,
    #[serde(flatten)]
    details: Details,
}

pub(crate) async fn requeue(cx: Cx, Form(sent): Form<Sent>) -> Result<Response, Fault> {
    let (after, at) = sent.details.due(&cx)?;
    let wanted = EndedRequeueIn {
        ended: sent.ended,
        after,
        at,
        call: Some(sent.call),
    };
    let call = Call::post(&["archive", &sent.key, "requeue"]).with(&wanted);
    cx.caller.ask::<EndedRequeuedOut>(call).await?;
    let ended = sent.ended.to_string();
    let to = [("key", &*sent.key), ("ended", &ended), ("done", "yes")];
    Ok(redirect(&link("ended", &to)))
}

impl Ended {
    fn may_operate(&self) -> bool {
        self.page.may("operate", &self.run.key)
    }
}
