//! Limits of kinds and of prefixes of kinds, which all workers share.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::Path;
use keyfall::{ErrorKind, KindLimit, Limit, LimitScope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::Body;
use super::problem::Problem;
use super::wire::{Time, UnseenOut};

/// A limit: a rate, a concurrency, or both; of a kind, or with `per` of each group of its jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitIn {
    /// How many jobs start in a time, evenly spaced: `10/s`, `50/m`, `5/h`, `1/d` or `1/90s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "10/s")]
    pub rate: Option<String>,
    /// How many jobs may start at once; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// How many jobs may run at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Where the group of a job is found: `header:tenant`, or `id/1` for the part of the id before its
    /// first slash. The groups take turns, and the fields above are the limit of each group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "header:tenant")]
    pub per: Option<String>,
    /// The rate of all groups together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "100/s")]
    pub total_rate: Option<String>,
    /// The burst of all groups together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_burst: Option<u32>,
    /// How many jobs of all groups together may run at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_concurrency: Option<u32>,
    /// By group, how many starts it gets for one start of another group: 0.001 to 1,000, 1 by
    /// default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(example = json!({"acme": 3}))]
    pub weights: BTreeMap<String, f64>,
}

/// The limits in force.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LimitsOut {
    pub limits: Vec<LimitOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// The limit of a kind, or of all kinds with a prefix together, and the jobs that wait for it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LimitOut {
    /// The kind; or a prefix of kinds, `app1:mail:` or `app1:`, which ends with a colon.
    #[schema(example = "app1:mail:send")]
    pub kind: String,
    #[serde(flatten)]
    pub limit: LimitIn,
    pub since: Time,
    /// The id of the token and its note, or the address or process, that set it.
    pub by: String,
    /// Jobs that have a lease.
    pub leased: u64,
    /// Due jobs that may start now.
    pub room: u64,
    /// Due jobs that wait for the limit.
    pub held: u64,
    /// When the rate allows the next start; missing if it holds no job back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Time>,
}

/// A limit that was removed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct UnlimitedOut {
    /// The kind, or the prefix.
    #[schema(example = "app1:mail:send")]
    pub kind: String,
    /// Whether it had a limit.
    pub removed: bool,
}

impl LimitIn {
    /// The weights that these texts say, each `acme=3`.
    ///
    /// # Errors
    /// If one of them is no group and weight.
    pub fn weights<'a>(
        texts: impl IntoIterator<Item = &'a str>,
    ) -> keyfall::Result<BTreeMap<String, f64>> {
        let mut texts = texts.into_iter();
        let limit = texts.try_fold(Limit::new(), |limit, text| limit.parse_weight(text))?;
        Ok(LimitIn::from(&limit).weights)
    }

    /// The limit.
    ///
    /// # Errors
    /// If a rate is no rate, or `per` names no group.
    pub fn limit(&self) -> keyfall::Result<Limit> {
        let mut limit = Limit::new();
        if let Some(rate) = &self.rate {
            limit = limit.parse_rate(rate)?;
        }
        if let Some(burst) = self.burst {
            limit = limit.burst(burst);
        }
        if let Some(concurrency) = self.concurrency {
            limit = limit.concurrency(concurrency);
        }
        if let Some(per) = &self.per {
            limit = limit.per(per.parse()?);
        }
        if let Some(rate) = &self.total_rate {
            limit = limit.parse_total_rate(rate)?;
        }
        if let Some(burst) = self.total_burst {
            limit = limit.total_burst(burst);
        }
        if let Some(concurrency) = self.total_concurrency {
            limit = limit.total_concurrency(concurrency);
        }
        let weights = self.weights.iter();
        Ok(weights.fold(limit, |limit, (group, weight)| limit.weight(group, *weight)))
    }
}

impl From<&Limit> for LimitIn {
    fn from(limit: &Limit) -> Self {
        LimitIn {
            rate: limit.rate_text(),
            burst: limit.get_burst(),
            concurrency: limit.get_concurrency(),
            per: limit.get_per().map(ToString::to_string),
            total_rate: limit.total_rate_text(),
            total_burst: limit.get_total_burst(),
            total_concurrency: limit.get_total_concurrency(),
            weights: limit
                .get_weights()
                .map(|(group, weight)| (group.to_owned(), weight))
                .collect(),
        }
    }
}

impl From<&KindLimit> for LimitOut {
    fn from(it: &KindLimit) -> Self {
        LimitOut {
            kind: it.scope.to_string(),
            limit: LimitIn::from(&it.limit),
            since: Time(it.since),
            by: it.by.clone(),
            leased: it.leased,
            room: it.room,
            held: it.held(),
            next: it.next_start.map(Time),
        }
    }
}

/// All limits, with the jobs that wait for them. With a token, the limits of kinds that it can see.
#[utoipa::path(get, path = "/v1/limits", operation_id = "list_limits", tag = "kinds",
    responses((status = 200, body = LimitsOut)))]
pub(super) async fn list(caller: Caller) -> Result<Json<LimitsOut>, Problem> {
    let mut limits = caller.sees_its_own()?.client.limits().await?;
    for unseen in &mut limits.unseen {
        let can_see = |kind: &keyfall::Kind| caller.can(Scope::Read, &format!("{kind}:"));
        unseen.shards.retain(|(kind, _)| can_see(kind));
    }
    let can_see = |it: &&KindLimit| caller.can(Scope::Read, &it.scope.prefix());
    let seen = limits.kinds.iter().filter(can_see);
    Ok(Json(LimitsOut {
        limits: seen.map(LimitOut::from).collect(),
        unseen: UnseenOut::all(&limits.unseen),
    }))
}

/// Limits how many jobs of a kind start in a time, and run at the same time, over all workers
/// together. The newest limit holds. With a prefix that ends with a colon, `app1:mail:`, all kinds
/// below it share the limit, except those with a narrower one.
#[utoipa::path(put, path = "/v1/kinds/{kind}/limit", operation_id = "limit_kind", tag = "kinds",
    params(("kind" = String, Path, example = "app1:mail:send")), request_body = LimitIn,
    responses((status = 200, body = LimitOut),
        (status = 404, description = "Another call has just removed the limit", body = Problem)))]
pub(super) async fn set(
    caller: Caller,
    Path(text): Path<String>,
    Body(body): Body<LimitIn>,
) -> Result<Json<LimitOut>, Problem> {
    let scope = scope_of(&text)?;
    let limit = body.limit().map_err(of_limit)?;
    let client = &caller.may(Scope::Operate, &scope.prefix())?.client;
    let words = limit.to_string();
    let mut set = client.limit(scope.as_str(), limit);
    if let Some(operator) = caller.operator() {
        set = set.by(operator);
    }
    set.await.map_err(of_limit)?;
    let deed = Deed::new("limit", scope.as_str()).note(words);
    caller.did(deed).await;
    match client.get_limit(scope.as_str()).await? {
        Some(limit) => Ok(Json(LimitOut::from(&limit))),
        // Somebody else has just removed it.
        None => Err(Problem::kind_unlimited(scope.as_str())),
    }
}

/// Removes the limit of a kind or of a prefix. Jobs that wait for it start at once, or wait for the
/// limit of a wider prefix from now on.
#[utoipa::path(delete, path = "/v1/kinds/{kind}/limit", operation_id = "unlimit_kind", tag = "kinds",
    params(("kind" = String, Path, example = "app1:mail:send")),
    responses((status = 200, body = UnlimitedOut)))]
pub(super) async fn remove(
    caller: Caller,
    Path(text): Path<String>,
) -> Result<Json<UnlimitedOut>, Problem> {
    let scope = scope_of(&text)?;
    let client = &caller.may(Scope::Operate, &scope.prefix())?.client;
    let mut remove = client.unlimit(scope.as_str());
    if let Some(operator) = caller.operator() {
        remove = remove.by(operator);
    }
    let removed = remove.await?;
    if removed {
        caller.did(Deed::new("unlimit", scope.as_str())).await;
    }
    Ok(Json(UnlimitedOut {
        kind: scope.to_string(),
        removed,
    }))
}

fn scope_of(text: &str) -> Result<LimitScope, Problem> {
    LimitScope::parse(text).map_err(|error| Problem::from(error).field("kind"))
}

/// The error of a limit, with the field that it names first.
fn of_limit(error: keyfall::Error) -> Problem {
    let message = error.to_string();
    let fields = [
        "rate",
        "burst",
        "concurrency",
        "per",
        "total_rate",
        "total_burst",
        "total_concurrency",
        "weights",
    ];
    let at = |field: &&str| message.find(&format!("`{field}`")).unwrap_or(usize::MAX);
    let named = fields
        .into_iter()
        .min_by_key(at)
        .filter(|it| at(it) < usize::MAX);
    let is_setting = error.kind() == ErrorKind::InvalidSetting;
    let problem = Problem::from(error);
    match named.filter(|_| is_setting) {
        Some(field) => problem.field(field),
        None => problem,
    }
}
