//! All that goes on, at a glance: one screen of it.

use axum::Json;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use keyfall::{Client, JobState, JobView, Kind};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Pairs;
use super::instances::InstanceOut;
use super::kinds::KindOut;
use super::problem::Problem;
use super::wire::{Span, Time, UnseenOut};

/// How many kinds a page has at the most, and how many can be named beside it.
const PAGE: usize = 256;

/// How many kinds are looked at at the same time.
const AT_ONCE: usize = 32;

/// Which kinds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OverviewIn {
    /// What the kinds begin with. All, if it is not given.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// These kinds as well, whichever page they are on; can be given several times, 256 times at the
    /// most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// How many kinds the page has at the most. Defaults to 256.
    #[param(minimum = 1, maximum = 256)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where the page begins: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of kinds, and the instances.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OverviewOut {
    /// When the answer was made, by the clock of the daemon.
    pub at: Time,
    /// How many kinds begin with the prefix.
    pub total: u64,
    /// Those of the page, in order, and those that were named.
    pub kinds: Vec<OverviewKindOut>,
    /// Where the next page begins; missing on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The instances that live, in the order in which they started. Missing if the token is not for
    /// all jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<Vec<InstanceOut>>,
    /// What was not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A kind: its counts and counters at one instant. Rates are the difference of the counters of two
/// looks, divided by that of `at`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OverviewKindOut {
    #[serde(flatten)]
    pub kind: KindOut,
    /// When it was looked at, by the clock of the daemon.
    pub at: Time,
    /// For how long the oldest of its jobs has been due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue_for: Option<Span>,
    /// When its next job falls due, if none is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_due: Option<Time>,
}

/// What goes on: kinds with their counts and counters, and the instances, page by page. It costs the
/// same however many kinds there are, but for the list of their names.
#[utoipa::path(get, path = "/v1/overview", operation_id = "get_overview", tag = "kinds", params(OverviewIn),
    responses((status = 200, body = OverviewOut)))]
pub(super) async fn overview(caller: Caller, pairs: Pairs) -> Result<Json<OverviewOut>, Problem> {
    let wanted = Wanted::of(OverviewIn::of(pairs)?)?;
    let prefix = std::slice::from_ref(&wanted.prefix);
    let client = &caller.may_with_each(Scope::Read, prefix)?.client;
    // It makes no call: it only tells whether a key can begin so.
    if !wanted.prefix.is_empty() {
        let checked = client.tail().prefix(&wanted.prefix);
        checked.map_err(Problem::of_prefix)?;
    }
    let sees_all = caller.can(Scope::Read, "");
    let seen = caller.while_it_may(Scope::Read, prefix, look(client, &wanted, sees_all));
    seen.await?.map(Json)
}

/// Which kinds, checked.
struct Wanted {
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
                // An empty one is what a script begins with.
                "cursor" => wanted.cursor = Some(value).filter(|text| !text.is_empty()),
                "limit" => {
                    let limit = value
                        .parse()
                        .ok()
                        .filter(|limit| (1..=PAGE).contains(limit));
                    wanted.limit = Some(limit.ok_or_else(|| {
                        let rule = format!(
                            "{value:?} is no number from 1 to {PAGE}: write how many kinds the \
                             page has"
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

impl Wanted {
    fn of(wanted: OverviewIn) -> Result<Self, Problem> {
        if wanted.kind.len() > PAGE {
            let rule = format!(
                "{} kinds are named, and {PAGE} can be: name fewer, or take the pages",
                wanted.kind.len()
            );
            return Err(Problem::invalid("kind", rule));
        }
        let parse = |text: &String, field| {
            Kind::parse(text).map_err(|error| Problem::from(error).field(field))
        };
        let kinds = wanted.kind.iter().map(|text| parse(text, "kind"));
        let behind = wanted.cursor.as_ref().map(|text| parse(text, "cursor"));
        Ok(Wanted {
            kinds: kinds.collect::<Result<_, _>>()?,
            behind: behind.transpose()?,
            limit: wanted.limit.unwrap_or(PAGE),
            prefix: wanted.prefix.unwrap_or_default(),
        })
    }
}

async fn look(client: &Client, wanted: &Wanted, sees_all: bool) -> Result<OverviewOut, Problem> {
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

/// How its jobs stand, and when the next one falls due if none is.
async fn look_at(client: &Client, kind: Kind) -> Result<OverviewKindOut, Problem> {
    let stats = client.stats(kind.as_str()).await?;
    let at = Time(SystemTime::now());
    let mut next_due = None;
    if stats.pending > 0 && stats.overdue == 0 {
        let list = client.list(&format!("{kind}:"), JobState::Pending).limit(1);
        // The first is the next to fall due. One whose record is damaged is left to audits.
        next_due = list.await?.jobs.first().map(JobView::due).map(Time);
    }
    Ok(OverviewKindOut {
        overdue_for: (stats.overdue > 0).then_some(Span(stats.overdue_for)),
        kind: KindOut::new(&kind, &stats),
        at,
        next_due,
    })
}
