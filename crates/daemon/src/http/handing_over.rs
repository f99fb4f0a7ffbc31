//! Answers that hand out jobs.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use keyfall::target::Pulled;

use super::connections::Sent;

/// The number of bytes of an answer that are written at once. Between two parts its jobs can go
/// back.
const PART: usize = 64 * 1024;

/// An answer in JSON with jobs. The jobs belong to the consumer once its last byte has gone; then
/// each is accepted. If the connection breaks before, they go back. If one of them goes back
/// before, or the consumer loses the right to them, the answer is cut short, so that no consumer
/// believes that it has the jobs.
pub(crate) fn handed_over(
    text: Vec<u8>,
    pulled: Vec<Pulled>,
    sent: Sent,
    may: impl Fn() -> bool + Clone + Send + 'static,
    accept: impl Fn(Pulled) + Clone + Send + 'static,
) -> Response {
    let kind = HeaderValue::from_static("application/json");
    // With a length, the connection adds no bytes of its own, such as the mark of an end.
    let length = HeaderValue::from(text.len());
    let head = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_LENGTH, length),
    ];
    let whole = (Bytes::from(text), pulled);
    let parts = stream::try_unfold(whole, move |(mut text, pulled)| {
        let (sent, may, accept) = (sent.clone(), may.clone(), accept.clone());
        async move {
            if text.is_empty() {
                return Ok(None);
            }
            if pulled.iter().any(Pulled::has_gone_back) {
                let error = "the worker stopped before the jobs were handed out";
                return Err(std::io::Error::other(error));
            }
            if !may() {
                return Err(std::io::Error::other(
                    "the token does not allow it any more",
                ));
            }
            let part = text.split_to(text.len().min(PART));
            if !text.is_empty() {
                return Ok(Some((part, (text, pulled))));
            }
            // The part is requested now, so it is written next.
            sent.then(move || pulled.into_iter().for_each(accept));
            Ok(Some((part, (text, Vec::new()))))
        }
    });
    (head, Body::from_stream(parts)).into_response()
}
