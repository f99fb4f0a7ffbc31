//! Reads what was sent, and says what is wrong with it: which field, and why.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use keyfall::JobKey;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// A body in JSON. No body is `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|refused| match refused.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "payload_too_large",
                    "The body is too large",
                    "the body is larger than this daemon takes: see `http.body_limit`",
                ),
                _ => Problem::invalid("body", format!("the body cannot be read: {refused}")),
            })?;
        let bytes: &[u8] = if bytes.trim_ascii().is_empty() {
            b"{}"
        } else {
            &bytes
        };
        read(bytes).map(Body)
    }
}

/// Reads JSON, and names the field that is wrong.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let field = error.path().to_string();
        let field = if field == "." {
            "body".to_owned()
        } else {
            field
        };
        Problem::invalid(field, error.into_inner().to_string())
    })?;
    reader
        .end()
        .map_err(|error| Problem::invalid("body", error.to_string()))?;
    Ok(read)
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
