//! The overview: the counts of kinds, and the instances, for one screen.

use axum::Json;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use keyfall::{Client, Kind};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Pairs;
use super::instances::InstanceOut;
use super::kinds::KindOut;
use super::problem::Problem;
use super::wire::{Span, Time, UnseenOut};

/// The most kinds of a page, and the most kinds that can be named beside it.
const PAGE: usize = 256;

/// The number of kinds that are read at the same time.
const AT_ONCE: usize = 32;

/// The wanted kinds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OverviewIn {
    /// The prefix of the kinds. Defaults to all kinds.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// These kinds as well, whichever page they are on; can be given several times, 256 times at the
    /// most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// The most kinds of the page. Defaults to 256.
    #[param(minimum = 1, maximum = 256)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The start of the page: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of kinds, and the instances.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OverviewOut {
    /// The time of the answer, by the clock of the daemon.
    pub at: Time,
    /// The number of kinds with the prefix.
    pub total: u64,
    /// The kinds of the page, in order, and the named kinds.
    pub kinds: Vec<OverviewKindOut>,
    /// The start of the next page; missing on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The live instances, in the order in which they started. Missing if the token is not for all
    /// jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<Vec<InstanceOut>>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A kind: its counts and counters at one instant. A rate is the difference between the counters of
/// two answers, divided by the difference between their `at`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OverviewKindOut {
    #[serde(flatten)]
    pub kind: KindOut,
    /// The time of these counts, by the clock of the daemon.
    pub at: Time,
    /// The time since the oldest overdue job of the kind fell due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue_for: Option<Span>,
    /// The time at which the next job of the kind falls due, if none is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_due: Option<Time>,
    /// The pending jobs that fall due soon.
    #[serde(default)]
    pub due_within: DueWithinOut,
}

/// The number of pending jobs that fall due within a time from now, without the overdue ones. Each
/// number includes the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DueWithinOut {
    pub minute: u64,
    pub hour: u64,
    pub day: u64,
}

/// The kinds with their counts and counters, page by page, and the instances. The cost does not
/// depend on the number of kinds, except for the list of their names.
#[utoipa::path(get, path = "/v1/overview", operation_id = "get_overview", tag = "kinds", params(OverviewIn),
    responses((status = 200, body = OverviewOut)))]
pub(super) async fn overview(caller: Caller, pairs: Pairs) -> Result<Json<OverviewOut>, Problem> {
    let wanted = OverviewRequest::of(OverviewIn::of(pairs)?)?;
    let prefix = std::slice::from_ref(&wanted.prefix);
    let client = &caller.may_with_each(Scope::Read, prefix)?.client;
    // This makes no call: it only checks that a key can begin with the prefix.
    if !wanted.prefix.is_empty() {
        let checked = client.tail().prefix(&wanted.prefix);
        checked.map_err(Problem::of_prefix)?;
    }
    let sees_all = caller.can(Scope::Read, "");
    let seen = caller.while_it_may(Scope::Read, prefix, look(client, &wanted, sees_all));
    seen.await?.map(Json)
}

/// The wanted kinds, checked.
struct OverviewRequest {
    prefix: String,
    kinds: Vec<Kind>,
    limit: usize,
    behind: Option<Kind>,
}

impl OverviewIn {
    fn of(Pairs(pairs): Pairs) -> Result<Self, Problem> {
        let mut wanted = OverviewIn::default();
        for (name, value) in pairs {
            match &*name {
                "prefix" => wanted.prefix = Some(value),
                "kind" => wanted.kind.push(value),
                // A script begins with an empty cursor.
                "cursor" => wanted.cursor = Some(value).filter(|text| !text.is_empty()),
                "limit" => {
                    let limit = value
                        .parse()
                        .ok()
                        .filter(|limit| (1..=PAGE).contains(limit));
                    wanted.limit = Some(limit.ok_or_else(|| {
                        let rule = format!(
                            "{value:?} is not a number from 1 to {PAGE}: write the number of \
                             kinds of a page"
                        );
                        Problem::invalid("limit", rule)
                    })?);
                }
                _ => {
                    let known = "`prefix`, `kind`, `limit` and `cursor`";
                    return Err(Problem::unknown_parameter(&name, known));
                }
            }
        }
        Ok(wanted)
    }
}

impl OverviewRequest {
    fn of(wanted: OverviewIn) -> Result<Self, Problem> {
        if wanted.kind.len() > PAGE {
            let rule = format!(
                "{} kinds are named, and {PAGE} are allowed: name fewer, or read page by page",
                wanted.kind.len()
            );
            return Err(Problem::invalid("kind", rule));
        }
        let parse = |text: &String, field| {
            Kind::parse(text).map_err(|error| Problem::from(error).field(field))
        };
        let kinds = wanted.kind.iter().map(|text| parse(text, "kind"));
        let behind = wanted.cursor.as_ref().map(|text| parse(text, "cursor"));
        Ok(OverviewRequest {
            kinds: kinds.collect::<Result<_, _>>()?,
            behind: behind.transpose()?,
            limit: wanted.limit.unwrap_or(PAGE),
            prefix: wanted.prefix.unwrap_or_default(),
        })
    }
}

async fn look(
    client: &Client,
    wanted: &OverviewRequest,
    sees_all: bool,
) -> Result<OverviewOut, Problem> {
    let known = client.kinds().await?;
    let mut unseen = UnseenOut::all(&known.unseen);
    let mut kinds = known.kinds;
    kinds.retain(|kind| format!("{kind}:").starts_with(&wanted.prefix));
    let instances = match sees_all {
        true => {
            let live = client.instances().await?.instances;
            Some(live.into_iter().map(InstanceOut::from).collect())
        }
        false => None,
    };
    let behind = wanted.behind.as_ref();
    let begin = behind.map_or(0, |last| kinds.partition_point(|kind| kind <= last));
    let end = kinds.len().min(begin + wanted.limit);
    let mut page: Vec<Kind> = kinds[begin..end].to_vec();
    let next = page.last().filter(|_| end < kinds.len());
    let next = next.map(Kind::to_string);
    for kind in &wanted.kinds {
        if kinds.binary_search(kind).is_ok() && !page.contains(kind) {
            page.push(kind.clone());
        }
    }
    let looks = page.into_iter().map(|kind| look_at(client, kind));
    let looks: Vec<_> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
    for one in &looks {
        UnseenOut::merge(&mut unseen, one.kind.unseen.clone());
    }
    Ok(OverviewOut {
        at: Time(SystemTime::now()),
        total: kinds.len() as u64,
        kinds: looks,
        next,
        instances,
        unseen,
    })
}

/// The counts of a kind.
async fn look_at(client: &Client, kind: Kind) -> Result<OverviewKindOut, Problem> {
    let stats = client.stats(kind.as_str()).await?;
    Ok(OverviewKindOut {
        overdue_for: (stats.overdue > 0).then_some(Span(stats.overdue_for)),
        next_due: stats.next_due.filter(|_| stats.overdue == 0).map(Time),
        due_within: DueWithinOut {
            minute: stats.due_within.minute,
            hour: stats.due_within.hour,
            day: stats.due_within.day,
        },
        kind: KindOut::new(&kind, &stats),
        at: Time(SystemTime::now()),
    })
}
