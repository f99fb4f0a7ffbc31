//! The rights of the caller, for programs that offer only calls that will be allowed.

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Caller, Scope};
use super::problem::Problem;

/// The rights of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RightsOut {
    /// The id of the token; missing if the daemon knows no tokens, and so allows everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "3f9a1c20")]
    pub token: Option<String>,
    /// The allowed sorts of calls: `read`, `schedule`, `consume`, `operate`.
    pub scopes: Vec<String>,
    /// The prefixes of the job keys that the calls may reach. The empty prefix stands for all.
    pub prefixes: Vec<String>,
}

/// The rights of the caller: the scopes and prefixes of its token.
#[utoipa::path(get, path = "/v1/rights", operation_id = "get_rights", tag = "instances",
    responses((status = 200, body = RightsOut)))]
pub(super) async fn show(caller: Caller) -> Result<Json<RightsOut>, Problem> {
    let grant = caller.grant()?;
    let (scopes, prefixes) = match &grant {
        Some(grant) => (grant.scopes(), grant.prefixes()),
        None => (Scope::ALL.to_vec(), vec![String::new()]),
    };
    let scopes = scopes.into_iter().map(|scope| scope.as_str().to_owned());
    Ok(Json(RightsOut {
        token: grant.map(|grant| grant.id().to_owned()),
        scopes: scopes.collect(),
        prefixes,
    }))
}
