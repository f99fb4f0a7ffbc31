//! One job: its payload, headers, terms and story, and the actions on it.

use crate::read::{Form, Query};
use askama::Template;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use keyfall_daemon::shapes::{
    Job, LettersOut, Payloads, PreviewOut, SeriesOut, ShowIn, State, StoryIn, StoryOut,
};
use serde::{Deserialize, Serialize};

use crate::Shared;
use crate::actions::{Act, Done};
use crate::api::Call;
use crate::commands::{self, Command};
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::payload::Payload;
use crate::recurs::{Recurs, Written};
use crate::serial::{self, Proposed};

#[derive(Template)]
#[template(path = "job.html")]
struct Shown {
    page: Page,
    key: String,
    /// None if only the history knows the job.
    job: Option<Job>,
    payload: Option<Payload>,
    recurs: Option<Recurs>,
    /// The series whose plan it is.
    series: Option<SeriesOut>,
    /// Another date of the series, which waits for a confirmation.
    proposed_date: Option<Proposed>,
    /// Another rule, which waits for a confirmation.
    proposed: Option<(Written, PreviewOut)>,
    story: Option<StoryOut>,
    /// Earlier dead letters of the same name.
    letters: Vec<Job>,
    /// The address of its trace in another program.
    trace: Option<String>,
    commands: Vec<Command>,
    done: Option<Done>,
    /// The action that waits for a confirmation.
    asked: Option<Act>,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    key: String,
    done: Option<Done>,
    ask: Option<Act>,
    /// Another date of a series.
    #[serde(default)]
    anchor: String,
    #[serde(flatten)]
    rule: Written,
}

const EXACT: ShowIn = ShowIn {
    payloads: Payloads::Exact,
};

pub(crate) async fn show(
    axum::extract::State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("jobs");
    let key = asked.key.as_str();
    let zone = Some(cx.page.zone_name().to_owned());
    let story = Call::get(&["jobs", key, "story"]).asking(&StoryIn { zone });
    let (job, story, letters) = tokio::join!(
        cx.caller
            .ask::<Job>(Call::get(&["jobs", key]).asking(&EXACT)),
        cx.caller.ask::<StoryOut>(story),
        cx.caller
            .ask::<LettersOut>(Call::get(&["dead", key]).asking(&EXACT)),
    );
    let absent = |fault: &Fault| fault.status == StatusCode::NOT_FOUND;
    let (job, story) = match (job, story) {
        (Ok(job), Ok(story)) => (Some(job), Some(story)),
        (Ok(job), Err(fault)) if absent(&fault) => (Some(job), None),
        (Err(fault), Ok(story)) if absent(&fault) => (None, Some(story)),
        (Err(fault), _) | (_, Err(fault)) => return Err(fault),
    };
    let mut letters = letters?.letters;
    letters.retain(|letter| job.as_ref().is_none_or(|job| job.letter != letter.letter));
    let payload = job.as_ref().map(payload_of).transpose()?;
    let trace = job.as_ref().and_then(|job| {
        let parent = job.headers.get("traceparent")?;
        Some(
            web.trace_url
                .as_ref()?
                .replace("{trace_id}", trace_id(parent)?),
        )
    });
    let series: Option<SeriesOut> = match job.as_ref().is_some_and(|job| job.series.is_some()) {
        true => match cx.caller.ask(Call::get(&["series", key])).await {
            // The plan has ended in between.
            Err(fault) if absent(&fault) => None,
            found => Some(found?),
        },
        false => None,
    };
    let proposed = match asked.rule.rule.is_empty() {
        true => None,
        false => {
            let call = Call::post(&["rules", "preview"]).with(&asked.rule.form()?);
            let preview: PreviewOut = cx.caller.ask(call).await?;
            Some((asked.rule, preview))
        }
    };
    let proposed_date = match asked.anchor.trim().is_empty() || series.is_none() {
        true => None,
        false => Some(Proposed::ask(&cx, key, &asked.anchor).await?),
    };
    let view = Shown {
        proposed_date,
        trace,
        recurs: job.as_ref().and_then(Recurs::of),
        series,
        proposed,
        page: cx.page.clone(),
        commands: commands::of_job(key),
        key: asked.key,
        payload: payload.as_deref().map(Payload::of),
        job,
        story,
        letters,
        done: asked.done,
        asked: asked.ask,
    };
    Ok(cx.show(&view))
}

/// The payload as a file, byte for byte.
pub(crate) async fn payload(cx: Cx, Query(asked): Query<Asked>) -> Result<Response, Fault> {
    let call = Call::get(&["jobs", &asked.key]).asking(&EXACT);
    let job: Job = cx.caller.ask(call).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"payload\"",
        ),
    ];
    Ok((headers, payload_of(&job)?).into_response())
}

/// The id of the trace in a header `traceparent`, if the header is valid.
fn trace_id(parent: &str) -> Option<&str> {
    let mut parts = parent.split('-');
    let version = parts.next()?;
    let id = parts.next()?;
    let is_hex = |text: &str| {
        text.bytes()
            .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_valid = version.len() == 2 && is_hex(version) && id.len() == 32 && is_hex(id);
    (is_valid && id.bytes().any(|it| it != b'0')).then_some(id)
}

fn payload_of(job: &Job) -> Result<Vec<u8>, Fault> {
    job.bytes().map_err(Fault::from)
}

/// A form of the page: the job, the action, and what the action needs.
#[derive(Deserialize)]
pub(crate) struct Sent {
    key: String,
    #[serde(rename = "do")]
    act: Act,
    #[serde(flatten)]
    details: crate::actions::Details,
}

pub(crate) async fn act(cx: Cx, Form(sent): Form<Sent>) -> Result<Response, Fault> {
    let done = sent.act.carry_out(&cx, &sent.key, &sent.details).await?;
    let job = link("job", &[("key", &sent.key), ("done", done.word())]);
    Ok(redirect(&job))
}

impl Shown {
    /// The retry policy as it is written.
    fn retry(&self) -> Option<String> {
        self.job.as_ref()?.retry.as_ref().map(written)
    }

    /// The key of the series that the job may be a member of.
    fn whole(&self) -> Option<&str> {
        let (series, _) = self.key.rsplit_once('~')?;
        let job = self.job.as_ref()?;
        (job.series.is_none() && series.matches(':').count() == 3).then_some(series)
    }

    /// The date of the series as a person writes it.
    fn written_date(&self) -> String {
        self.series.as_ref().map_or(String::new(), serial::written)
    }

    /// Whether the job waits, so that it can be fired, postponed, changed and cancelled.
    fn waits(&self) -> bool {
        let state = self.job.as_ref().map(|job| job.state);
        matches!(state, Some(State::Pending | State::Retrying))
    }

    fn is_dead(&self) -> bool {
        self.job
            .as_ref()
            .is_some_and(|job| job.state == State::Dead)
    }

    fn may_change(&self) -> bool {
        self.page.may("schedule", &self.key)
    }

    fn may_operate(&self) -> bool {
        self.page.may("operate", &self.key)
    }
}

/// A retry policy as people write it.
pub(crate) fn written(policy: &impl Serialize) -> String {
    let policy = serde_json::to_value(policy).unwrap_or_default();
    match policy.get("ladder").and_then(|steps| steps.as_array()) {
        Some(steps) => {
            let steps: Vec<&str> = steps.iter().filter_map(|step| step.as_str()).collect();
            steps.join(" ")
        }
        None => policy.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::trace_id;

    #[test]
    fn only_a_valid_header_has_the_id_of_a_trace() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace_id(&format!("00-{id}-00f067aa0ba902b7-01")), Some(id));
        for parent in [
            "",
            "00-4bf92f35-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47/6-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            assert_eq!(trace_id(parent), None, "{parent}");
        }
    }
}
