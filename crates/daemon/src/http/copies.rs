//! The copy: which kinds' pending jobs are mirrored in the database.

use axum::Json;
use keyfall::{CopyTerms, ErrorKind, TermsOf};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::archive::{ArchivePrefixIn, ArchiveSetOut, changed, select};
use super::auth::{Caller, Scope};
use super::body::{Body, Params};
use super::problem::Problem;
use super::wire::Time;

/// The kinds whose jobs are copied.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyIn {
    /// A kind, `app1:mail:send:`, or a prefix of kinds that ends with a colon; empty for all kinds.
    /// The longest prefix that covers a kind holds.
    #[schema(example = "app1:mail:")]
    pub prefix: String,
    /// How many changed jobs may wait in each ledger while the database is away, from 1,000. Beyond
    /// that all jobs of the ledger are copied again. Defaults to 1,000,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
}

/// The kinds whose jobs are copied.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CopiesOut {
    pub copies: Vec<CopyOut>,
}

/// A prefix of kinds whose jobs are copied.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CopyOut {
    /// Empty for all kinds.
    #[schema(example = "app1:mail:")]
    pub prefix: String,
    /// How many changed jobs may wait in each ledger.
    pub waiting: u64,
    pub since: Time,
    /// The id of the token and its note, or the address or process, that set the terms.
    pub by: String,
}

impl From<TermsOf<CopyTerms>> for CopyOut {
    fn from(it: TermsOf<CopyTerms>) -> Self {
        CopyOut {
            prefix: it.prefix,
            waiting: it.terms.get_waiting(),
            since: Time(it.since),
            by: it.by,
        }
    }
}

impl CopyIn {
    /// Checks the terms, without a connection.
    ///
    /// # Errors
    /// If they cannot be kept; names the field, the rule and the remedy.
    pub fn check(&self) -> keyfall::Result<()> {
        self.terms().check().map(drop)
    }

    fn terms(&self) -> CopyTerms {
        let new = CopyTerms::new();
        new.waiting(self.waiting.unwrap_or(new.get_waiting()))
    }
}

/// The kinds whose jobs are copied. With a token, those that it can see.
#[utoipa::path(get, path = "/v1/copies", operation_id = "list_copies", tag = "archive",
    responses((status = 200, body = CopiesOut)))]
pub(super) async fn list(caller: Caller) -> Result<Json<CopiesOut>, Problem> {
    let copies = caller.sees_its_own()?.client.copies().await?.into_iter();
    let seen = copies.filter(|it| caller.can(Scope::Read, &it.prefix));
    Ok(Json(CopiesOut {
        copies: seen.map(CopyOut::from).collect(),
    }))
}

/// Has the pending jobs of these kinds copied. It replaces the terms of this prefix.
#[utoipa::path(put, path = "/v1/copies", operation_id = "set_copy", tag = "archive",
    request_body = CopyIn, responses((status = 200, body = ArchiveSetOut)))]
pub(super) async fn set(
    caller: Caller,
    Body(body): Body<CopyIn>,
) -> Result<Json<ArchiveSetOut>, Problem> {
    let set = select(&caller, &body.prefix)?.copy(body.terms());
    let kinds = match caller.operator() {
        Some(operator) => set.by(operator).await,
        None => set.await,
    };
    let kinds = kinds.map_err(|error| match error.kind() {
        ErrorKind::InvalidSetting => Problem::from(error).field("waiting"),
        _ => Problem::of_prefix(error),
    })?;
    Ok(changed(&caller, "copy", body.prefix, &kinds).await)
}

/// Removes the terms of a prefix. Without the terms of a shorter prefix, the copy loses these kinds.
#[utoipa::path(delete, path = "/v1/copies", operation_id = "stop_copy", tag = "archive",
    params(ArchivePrefixIn), responses((status = 200, body = ArchiveSetOut)))]
pub(super) async fn stop(
    caller: Caller,
    Params(ArchivePrefixIn { prefix }): Params<ArchivePrefixIn>,
) -> Result<Json<ArchiveSetOut>, Problem> {
    let stop = select(&caller, &prefix)?.stop_copy();
    let kinds = stop.await.map_err(Problem::of_prefix)?;
    Ok(changed(&caller, "stop_copy", prefix, &kinds).await)
}
