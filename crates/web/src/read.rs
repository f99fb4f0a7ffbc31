//! Reads the parameters of an address and the fields of a form; a fault becomes a page.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::fault::Fault;

/// The parameters behind the `?`.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        axum::extract::Query::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Query(read)| Query(read))
            .map_err(|refused| Fault::invalid("address", "fault.form", &[&refused.body_text()]))
    }
}

/// The fields of a form.
pub(crate) struct Form<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Form<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Result<Self, Fault> {
        axum::extract::Form::from_request(request, state)
            .await
            .map(|axum::extract::Form(read)| Form(read))
            .map_err(|refused| Fault::invalid("form", "fault.form", &[&refused.body_text()]))
    }
}
