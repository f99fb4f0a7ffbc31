//! One job: its payload, headers, terms and story, and the actions on it.

use crate::read::{Form, Query};
use askama::Template;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use keyfall_daemon::shapes::{Job, LettersOut, Payloads, ShowIn, State, StoryIn, StoryOut};
use serde::Deserialize;

use crate::actions::{Act, Done};
use crate::api::Call;
use crate::commands::{self, Command};
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::payload::Payload;

#[derive(Template)]
#[template(path = "job.html")]
struct Shown {
    page: Page,
    key: String,
    /// None if only the history knows the job.
    job: Option<Job>,
    payload: Option<Payload>,
    story: Option<StoryOut>,
    /// Earlier dead letters of the same name.
    letters: Vec<Job>,
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
}

const EXACT: ShowIn = ShowIn {
    payloads: Payloads::Exact,
};

pub(crate) async fn show(cx: Cx, Query(asked): Query<Asked>) -> Result<Response, Fault> {
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
    let view = Shown {
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
        let policy = self.job.as_ref()?.retry.as_ref()?;
        let policy = serde_json::to_value(policy).ok()?;
        let ladder = policy.get("ladder").and_then(|steps| steps.as_array());
        Some(match ladder {
            Some(steps) => {
                let steps: Vec<&str> = steps.iter().filter_map(|step| step.as_str()).collect();
                steps.join(" ")
            }
            None => policy.to_string(),
        })
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
