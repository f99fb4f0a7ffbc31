//! Makes calls of the HTTP API, in this process.

use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Method, Request, header};
use keyfall_daemon::shapes::Problem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use crate::fault::Fault;

/// The characters of a segment that stay as they are.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// The calls. Clones share them.
#[derive(Clone)]
pub(crate) struct Api {
    calls: Router,
    pub(crate) is_read_only: bool,
}

/// The calls in the name of one person.
#[derive(Clone)]
pub(crate) struct Caller {
    api: Api,
    /// The token, as a header.
    bearer: Option<HeaderValue>,
    /// The address that the calls are counted for.
    peer: Option<SocketAddr>,
}

/// A call.
pub(crate) struct Call {
    method: Method,
    /// The path with its query, encoded.
    path: String,
    body: Vec<u8>,
}

impl Api {
    pub(crate) fn new(calls: Router) -> Self {
        Api {
            calls,
            is_read_only: false,
        }
    }

    /// Refuses calls that change something.
    pub(crate) fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    pub(crate) fn allow_changes(mut self) -> Self {
        self.is_read_only = false;
        self
    }

    pub(crate) fn caller(&self, token: Option<&str>, peer: Option<SocketAddr>) -> Caller {
        let bearer = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
        Caller {
            api: self.clone(),
            bearer,
            peer,
        }
    }
}

impl Caller {
    /// Makes a call and reads its answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call) -> Result<T, Fault> {
        let body = to_bytes(self.open(call).await?, usize::MAX).await;
        let body = body.map_err(|error| Fault::unexpected(&error.to_string()))?;
        // A call that was accepted without an answer has no body.
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).map_err(|error| Fault::unexpected(&error.to_string()))
    }

    /// Makes a call whose answer comes bit by bit.
    pub(crate) async fn open(&self, call: Call) -> Result<Body, Fault> {
        if self.api.is_read_only && call.method != Method::GET {
            return Err(Fault::read_only());
        }
        let mut request = Request::builder().method(call.method).uri(&call.path);
        // A person does this: it belongs into the log of actions.
        request = request.header("x-keyfall-action", "web");
        if let Some(bearer) = &self.bearer {
            request = request.header(header::AUTHORIZATION, bearer);
        }
        if let Some(peer) = self.peer {
            request = request.extension(ConnectInfo(peer));
        }
        let request = request.body(Body::from(call.body));
        let request = request.map_err(|error| Fault::unexpected(&error.to_string()))?;
        let Ok(answer) = self.api.calls.clone().oneshot(request).await;
        if answer.status().as_u16() < 400 {
            return Ok(answer.into_body());
        }
        let body = to_bytes(answer.into_body(), usize::MAX).await;
        let problem: Option<Problem> = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok());
        Err(problem.map_or_else(
            || Fault::unexpected("the answer has no problem document"),
            Fault::from,
        ))
    }
}

impl Call {
    /// A call that reads; the segments stand behind `/v1`.
    pub(crate) fn get(path: &[&str]) -> Self {
        Call::new(Method::GET, path)
    }

    pub(crate) fn post(path: &[&str]) -> Self {
        Call::new(Method::POST, path)
    }

    pub(crate) fn put(path: &[&str]) -> Self {
        Call::new(Method::PUT, path)
    }

    pub(crate) fn delete(path: &[&str]) -> Self {
        Call::new(Method::DELETE, path)
    }

    fn new(method: Method, path: &[&str]) -> Self {
        let mut encoded = String::from("/v1");
        for segment in path {
            encoded.push('/');
            encoded.extend(utf8_percent_encode(segment, SEGMENT));
        }
        Call {
            method,
            path: encoded,
            body: Vec::new(),
        }
    }

    /// Adds the fields of this object behind the `?`; a list gives its name once for each value.
    pub(crate) fn asking(mut self, query: &impl Serialize) -> Self {
        let fields = serde_json::to_value(query).expect("texts and numbers are JSON");
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        for (name, value) in fields.as_object().into_iter().flatten() {
            let values = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            for value in values {
                match value {
                    Value::String(text) => pairs.append_pair(name, text),
                    other => pairs.append_pair(name, &other.to_string()),
                };
            }
        }
        let pairs = pairs.finish();
        if !pairs.is_empty() {
            self.path.push('?');
            self.path.push_str(&pairs);
        }
        self
    }

    /// The path with its query.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn with(mut self, body: &impl Serialize) -> Self {
        self.body = serde_json::to_vec(body).expect("texts and numbers are JSON");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_parameters_are_encoded() {
        let call = Call::get(&["jobs", "a:b:c:x/y?z%#.."]);
        assert_eq!(call.path, "/v1/jobs/a%3Ab%3Ac%3Ax%2Fy%3Fz%25%23..");
        let query = serde_json::json!({"n": 1, "prefix": ["a&b", "c d"]});
        let call = Call::get(&["tail"]).asking(&query);
        assert_eq!(call.path, "/v1/tail?n=1&prefix=a%26b&prefix=c+d");
    }
}
