//! Reads bodies and queries, and reports faults: the field and the reason.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header;
use axum::http::request::Parts;
use futures_util::StreamExt;
use keyfall::JobKey;
use serde::de::{DeserializeOwned, Deserializer};
use tokio::time::timeout;

use super::problem::Problem;
use super::{Api, Settings};

/// The number of bytes that are read from a body that is too large, so that a client that is still
/// sending can read the answer.
const READ_IN_VAIN: usize = 16 * 1024 * 1024;

/// A body in JSON. No body is `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        received(request, &api.settings).await.map(Body)
    }
}

/// A body in JSON, within the limits of size and time. No body is `{}`.
pub(crate) async fn received<T: DeserializeOwned>(
    request: Request,
    settings: &Settings,
) -> Result<T, Problem> {
    let patience = settings.body_timeout;
    let bytes = timeout(patience, whole(request, settings.body_limit));
    let Ok(bytes) = bytes.await else {
        return Err(Problem::too_slow(patience));
    };
    let bytes = bytes?;
    let bytes: &[u8] = if bytes.trim_ascii().is_empty() {
        b"{}"
    } else {
        &bytes
    };
    read(bytes)
}

/// The whole body, if it is not larger than this.
async fn whole(request: Request, limit: usize) -> Result<Vec<u8>, Problem> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length: Option<usize> = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let mut got = Vec::with_capacity(length.unwrap_or(0).min(limit));
    let mut seen = 0;
    let mut parts = request.into_body().into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(broken)?;
        seen += part.len();
        if seen <= limit {
            got.extend_from_slice(&part);
        } else if seen > limit + READ_IN_VAIN {
            break;
        }
    }
    if seen > limit {
        return Err(Problem::too_large("the body", limit));
    }
    Ok(got)
}

pub(super) fn broken(error: axum::Error) -> Problem {
    Problem::invalid("body", format!("the body cannot be read: {error}"))
}

/// Reads JSON, and names the field that is wrong.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // A list would be taken for the fields in their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let detail = "this is a list, and has to be an object: `{…}`";
        return Err(Problem::invalid("body", detail));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = read_from(&mut reader)?;
    reader
        .end()
        .map_err(|error| Problem::invalid("body", error.to_string()))?;
    Ok(read)
}

/// Reads a value from a parser that has begun.
pub(super) fn read_from<'de, T, D>(reader: D) -> Result<T, Problem>
where
    T: DeserializeOwned,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let field = error.path().to_string();
        let error = error.into_inner();
        // If the text is not JSON, no field is faulty.
        let field = if field == "." || !error.is_data() {
            "body".to_owned()
        } else {
            field
        };
        Problem::invalid(field, error.to_string())
    })
}

/// The job key in the path.
pub(super) struct Key(pub(super) JobKey);

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(key) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|refused| Problem::invalid("key", refused.to_string()))?;
        Ok(Key(JobKey::parse(&key)?))
    }
}

/// The parameters behind the `?`.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        let reader = serde_urlencoded::Deserializer::new(pairs);
        let read = serde_path_to_error::deserialize(reader).map_err(|error| {
            // A parameter that is missing has no path.
            let field = match error.path().to_string() {
                path if path == "." => "query".to_owned(),
                path => path,
            };
            Problem::invalid(field, error.into_inner().to_string())
        })?;
        Ok(Params(read))
    }
}

/// The parameters behind the `?`, if a name may occur several times.
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Params(pairs) = Params::from_request_parts(parts, state).await?;
        Ok(Pairs(pairs))
    }
}
