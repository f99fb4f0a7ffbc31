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
use super::kind_page::KindPage;
use super::kinds::KindOut;
use super::problem::Problem;
use super::wire::{Span, Time, UnseenOut};

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
    let known = "`prefix`, `kind`, `limit` and `cursor`";
    let wanted = KindPage::of(pairs, known, |_, _| Ok(false))?;
    let prefix = std::slice::from_ref(&wanted.prefix);
    let client = &caller.may_with_each(Scope::Read, prefix)?.client;
    wanted.check(client)?;
    let sees_all = caller.can(Scope::Read, "");
    let seen = caller.while_it_may(Scope::Read, prefix, look(client, &wanted, sees_all));
    seen.await?.map(Json)
}

async fn look(client: &Client, wanted: &KindPage, sees_all: bool) -> Result<OverviewOut, Problem> {
    let known = client.kinds().await?;
    let mut unseen = UnseenOut::all(&known.unseen);
    let picked = wanted.pick(known.kinds);
    let instances = match sees_all {
        true => {
            let live = client.instances().await?.instances;
            Some(live.into_iter().map(InstanceOut::from).collect())
        }
        false => None,
    };
    let looks = picked.kinds.into_iter().map(|kind| look_at(client, kind));
    let looks: Vec<_> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
    for one in &looks {
        UnseenOut::merge(&mut unseen, one.kind.unseen.clone());
    }
    Ok(OverviewOut {
        at: Time(SystemTime::now()),
        total: picked.total,
        kinds: looks,
        next: picked.next,
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
