//! For tests: a daemon in this process that gives prepared answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Response, header};
use serde::Serialize;
use serde_json::json;

use super::Jobs;
use super::redis::Redis;

/// A daemon that gives these answers one after the other.
pub(crate) fn jobs(answers: impl Into<VecDeque<Response<Body>>>) -> Jobs {
    let answers = Arc::new(Mutex::new(answers.into()));
    let routes = Router::new().fallback(move || {
        let answer = answers.lock().unwrap().pop_front();
        async { answer.expect("nobody asks for more") }
    });
    Jobs::Redis(Redis { routes })
}

pub(crate) fn found(value: &impl Serialize) -> Response<Body> {
    Response::new(Body::from(serde_json::to_vec(value).unwrap()))
}

pub(crate) fn refused(status: u16, code: &str, wait: u64) -> Response<Body> {
    let problem = json!({"status": status, "title": code, "detail": code, "code": code,
        "retryable": true});
    let answer = Response::builder().status(status);
    let answer = answer.header(header::RETRY_AFTER, wait);
    answer.body(Body::from(problem.to_string())).unwrap()
}
