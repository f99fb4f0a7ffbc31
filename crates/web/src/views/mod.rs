//! The pages, one module each: it makes the calls, and gives a template the answers.
//!
//! Each page is one segment below the root, and what it is about stands behind the `?`. So every
//! link is relative to the same folder, and a key with slashes or dots is no path.
//!
//! | page | content |
//! |---|---|
//! | [`overview`] | what is wrong, or that all is on time; the kinds |
//! | [`ahead`] | the chart of the jobs to come |
//! | [`past`] | the charts of the last hour or day |
//! | [`jobs`] | the search, and the jobs that it finds |
//! | [`job`] | one job: payload, terms, story, actions |
//! | [`archive`] | the search for jobs that have ended, and one of them, which is scheduled again |
//! | [`dead`] | dead letters by kind and reason, requeued and deleted in groups |
//! | [`live`] | what happens, as it happens |
//! | [`workers`] | the live instances and their routes |
//! | [`places`] | a part of it: the servers, and the kinds with several shards |
//! | [`limits`] | the limits and what waits for them, and setting and removing them |
//! | [`pauses`] | the pauses, and pausing and resuming |
//! | [`doctor`] | the findings of the doctor, and repairing them |
//! | [`actions`] | the log of actions |
//! | [`login`] | login and logout |
//! | [`problem`] | the page of an error |

pub(crate) mod actions;
pub(crate) mod ahead;
pub(crate) mod archive;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod limits;
pub(crate) mod live;
pub(crate) mod login;
pub(crate) mod overview;
pub(crate) mod past;
pub(crate) mod pauses;
pub(crate) mod places;
pub(crate) mod problem;
pub(crate) mod workers;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::fault::Fault;
use crate::{Web, assets};

/// The pages for persons who were let in.
pub(crate) fn inside() -> Router<Arc<Web>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/ahead", get(ahead::show))
        .route("/past", get(past::show))
        .route("/jobs", get(jobs::show))
        .route("/job", get(job::show).post(job::act))
        .route("/payload", get(job::payload))
        .route("/dead", get(dead::show).post(dead::act))
        .route("/archive", get(archive::show))
        .route("/ended", get(archive::one).post(archive::requeue))
        .route("/ended-payload", get(archive::payload))
        .route("/actions", get(actions::show))
        .route("/live", get(live::show))
        .route("/stream", get(live::stream))
        .route("/workers", get(workers::show))
        .route("/breakers", post(workers::close_breaker))
        .route("/limits", get(limits::show).post(limits::change))
        .route("/pauses", get(pauses::show).post(pauses::switch))
        .route("/doctor", get(doctor::show).post(doctor::fix))
        .fallback(async || Fault::unknown_page())
        .method_not_allowed_fallback(async || Fault::wrong_method())
}

/// The pages in front of the door.
pub(crate) fn outside() -> Router<Arc<Web>> {
    Router::new()
        .route("/login", get(login::ask).post(login::enter))
        .route("/open", get(login::open))
        .route("/logout", post(login::leave))
        .route("/assets/{name}", get(assets::show))
}
