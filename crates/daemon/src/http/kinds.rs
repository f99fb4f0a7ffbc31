//! The kinds with their counts; pausing and resuming them.

use axum::Json;
use axum::extract::Path;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use keyfall::{Dropped, Kind, Kinds, Stats};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::Body;
use super::bulk::{BulkIn, Which, logged};
use super::problem::Problem;
use super::wire::{Time, UnseenOut};

/// The most kinds that are counted at the same time.
const AT_ONCE: usize = 32;

/// The kinds that were ever used, in order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KindsOut {
    pub kinds: Vec<KindOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// The numbers of jobs of a kind.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CountsOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    /// Waiting to fall due, or to be retried.
    pub pending: u64,
    /// The pending jobs that are due.
    pub overdue: u64,
    /// The overdue jobs that wait for the limit of the kind.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
    /// Running, or claimed by a worker that has since disappeared.
    pub leased: u64,
    /// Scheduled while the job of the same name was running.
    pub successors: u64,
    /// Dead letters.
    pub dead: u64,
    /// Whether jobs of the kind are kept from starting.
    pub paused: bool,
}

/// The counts of one kind, and the ends of all jobs that it ever had.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KindOut {
    #[serde(flatten)]
    pub counts: CountsOut,
    pub counters: CountersOut,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// Counters since the kind was first used.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CountersOut {
    /// Jobs that were scheduled: one for each call that created, replaced or followed a job.
    pub accepted: u64,
    /// Dead letters that were made pending again.
    pub requeued: u64,
    /// Jobs that ended well.
    pub done: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that a newer schedule replaced.
    pub replaced: u64,
    /// Jobs that ended as dead letters.
    pub buried: u64,
    /// Jobs that ended without a run, because they were too late.
    #[serde(default)]
    pub skipped: u64,
    /// Dead letters that were deleted.
    pub deleted: u64,
    /// Dead letters that the limits of number and age removed.
    pub trimmed: u64,
    /// Attempts that failed and were followed by another.
    pub failed: u64,
    /// Runs that asked to be repeated without having failed.
    pub again: u64,
    /// Runs that asked for a delay, which does not count the attempt.
    pub snoozed: u64,
    /// Jobs that were given back before they ran.
    pub returned: u64,
    /// Leases that lapsed and were taken over.
    pub lapsed: u64,
}

/// The pauses.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PausedOut {
    /// The paused prefixes: a kind that begins with one of them is paused even if it is used for
    /// the first time. The empty prefix stands for all kinds.
    pub prefixes: Vec<SinceOut>,
    /// The kinds that are paused now.
    pub kinds: Vec<SinceOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A pause, and its start.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SinceOut {
    #[schema(example = "app1:trans:notice")]
    pub name: String,
    pub since: Time,
    /// The id of the token and its note, or the address or process, that paused it; missing if that
    /// is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A kind that was removed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DroppedOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
}

/// The kinds that a call was about.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SwitchedOut {
    pub kinds: Vec<String>,
    pub dry_run: bool,
}

/// The kinds that were ever used, with their counts. With a token, the kinds that it can see.
#[utoipa::path(get, path = "/v1/kinds", operation_id = "list_kinds", tag = "kinds", responses((status = 200, body = KindsOut)))]
pub(super) async fn list(caller: Caller) -> Result<Json<KindsOut>, Problem> {
    let client = &caller.sees_its_own()?.client;
    let Kinds {
        mut kinds, unseen, ..
    } = client.kinds().await?;
    kinds.retain(|kind| can_see(&caller, kind));
    let counted = stream::iter(kinds).map(async |kind| {
        let stats = client.stats(kind.as_str()).await?;
        Ok::<_, Problem>(KindOut::new(&kind, &stats))
    });
    let kinds: Vec<KindOut> = counted.buffered(AT_ONCE).try_collect().await?;
    let mut unseen = UnseenOut::all(&unseen);
    for one in &kinds {
        UnseenOut::merge(&mut unseen, one.unseen.clone());
    }
    Ok(Json(KindsOut { kinds, unseen }))
}

/// One kind, with its counters.
#[utoipa::path(get, path = "/v1/kinds/{kind}", operation_id = "get_kind", tag = "kinds",
    params(("kind" = String, Path, example = "app1:trans:notice")),
    responses((status = 200, body = KindOut),
        (status = 404, description = "No job of this kind was ever scheduled", body = Problem)))]
pub(super) async fn show(
    caller: Caller,
    Path(text): Path<String>,
) -> Result<Json<KindOut>, Problem> {
    let invalid = |error: keyfall::Error| Problem::from(error).field("kind");
    let kind = Kind::parse(&text).map_err(invalid)?;
    let client = &caller.may(Scope::Read, &format!("{kind}:"))?.client;
    if !client.kinds().await?.contains(&kind) {
        return Err(Problem::kind_absent(kind.as_str()));
    }
    let stats = client.stats(kind.as_str()).await?;
    Ok(Json(KindOut::new(&kind, &stats)))
}

/// Removes an empty kind, with its counters and its history. A later schedule of one of its jobs
/// creates it again.
#[utoipa::path(delete, path = "/v1/kinds/{kind}", operation_id = "drop_kind", tag = "kinds",
    params(("kind" = String, Path, example = "app1:trans:notice")),
    responses((status = 200, body = DroppedOut),
        (status = 404, description = "There is no such kind", body = Problem),
        (status = 409, description = "The kind is not empty", body = Problem)))]
pub(super) async fn drop_kind(
    caller: Caller,
    Path(text): Path<String>,
) -> Result<Json<DroppedOut>, Problem> {
    let invalid = |error: keyfall::Error| Problem::from(error).field("kind");
    let kind = Kind::parse(&text).map_err(invalid)?;
    let client = &caller.may(Scope::Operate, &format!("{kind}:"))?.client;
    match client.drop_kind(kind.as_str()).await? {
        Dropped::Dropped => {
            caller.did(Deed::new("drop", kind.as_str())).await;
            Ok(Json(DroppedOut {
                kind: kind.to_string(),
            }))
        }
        Dropped::InUse(why) => Err(Problem::kind_in_use(kind.as_str(), &why)),
        _ => Err(Problem::kind_absent(kind.as_str())),
    }
}

/// All pauses with their starts. With a token, the pauses that it can see.
#[utoipa::path(get, path = "/v1/paused", operation_id = "list_paused", tag = "kinds", responses((status = 200, body = PausedOut)))]
pub(super) async fn paused(caller: Caller) -> Result<Json<PausedOut>, Problem> {
    let mut paused = caller.sees_its_own()?.client.paused().await?;
    for unseen in &mut paused.unseen {
        unseen.shards.retain(|(kind, _)| can_see(&caller, kind));
    }
    let since = |name: &str, since, by: Option<&String>| SinceOut {
        name: name.to_owned(),
        since: Time(since),
        by: by.cloned(),
    };
    // The longest rule says most about a kind.
    let by_rule = |kind: &Kind| {
        let covers = |rule: &&String| format!("{kind}:").starts_with(rule.as_str());
        let rules = paused.rules.iter().map(|(rule, _)| rule);
        let rule = rules.filter(covers).max_by_key(|rule| rule.len())?;
        paused.by.get(rule)
    };
    let rules = paused.rules.iter();
    let kinds = paused.kinds.iter();
    Ok(Json(PausedOut {
        prefixes: rules
            .filter(|(rule, _)| caller.can(Scope::Read, rule))
            .map(|(rule, at)| since(rule, *at, paused.by.get(rule)))
            .collect(),
        kinds: kinds
            .filter(|(kind, _)| can_see(&caller, kind))
            .map(|(kind, at)| since(kind.as_str(), *at, by_rule(kind)))
            .collect(),
        unseen: UnseenOut::all(&paused.unseen),
    }))
}

/// Lets no job of these kinds start until they are resumed. Runs in progress go on.
#[utoipa::path(post, path = "/v1/pause", tag = "kinds", request_body = BulkIn,
    responses((status = 200, body = SwitchedOut)))]
pub(super) async fn pause(
    caller: Caller,
    Body(call): Body<BulkIn>,
) -> Result<Json<SwitchedOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let mut pause = which.select(&caller, Scope::Operate)?.pause();
    if let Some(operator) = caller.operator() {
        pause = pause.by(operator);
    }
    let pause = if call.dry_run { pause.dry_run() } else { pause };
    let kinds = switched(&caller, "pause", &which, pause, call.dry_run).await?;
    Ok(Json(SwitchedOut::new(&kinds, call.dry_run)))
}

/// Lets jobs of these kinds start again. Jobs that fell due meanwhile start at once.
#[utoipa::path(post, path = "/v1/resume", tag = "kinds", request_body = BulkIn,
    responses((status = 200, body = SwitchedOut)))]
pub(super) async fn resume(
    caller: Caller,
    Body(call): Body<BulkIn>,
) -> Result<Json<SwitchedOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let resume = which.select(&caller, Scope::Operate)?.resume();
    let resume = if call.dry_run {
        resume.dry_run()
    } else {
        resume
    };
    let kinds = switched(&caller, "resume", &which, resume, call.dry_run).await?;
    Ok(Json(SwitchedOut::new(&kinds, call.dry_run)))
}

/// Carries out a pause or a resume, and logs it.
async fn switched(
    caller: &Caller,
    what: &str,
    which: &Which,
    call: impl IntoFuture<Output = keyfall::Result<Vec<Kind>>>,
    dry_run: bool,
) -> Result<Vec<Kind>, Problem> {
    let deed = Some(Deed::new(what, which.prefix())).filter(|_| !dry_run);
    let changed = |kinds: &Vec<Kind>| Some(kinds.len() as u64);
    let prefixes = which.prefixes();
    logged(caller, prefixes, deed, call, Problem::of_prefix, changed).await
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn can_see(caller: &Caller, kind: &Kind) -> bool {
    caller.can(Scope::Read, &format!("{kind}:"))
}

impl KindOut {
    pub(super) fn new(kind: &Kind, stats: &Stats) -> Self {
        KindOut {
            counts: CountsOut::new(kind, stats),
            counters: CountersOut::from(stats),
            unseen: UnseenOut::all(&stats.unseen),
        }
    }
}

impl CountsOut {
    fn new(kind: &Kind, stats: &Stats) -> Self {
        CountsOut {
            kind: kind.to_string(),
            pending: stats.pending,
            overdue: stats.overdue,
            held: stats.held,
            leased: stats.leased,
            successors: stats.successors,
            dead: stats.dead,
            paused: stats.paused,
        }
    }
}

impl From<&Stats> for CountersOut {
    fn from(stats: &Stats) -> Self {
        CountersOut {
            accepted: stats.accepted,
            requeued: stats.requeued,
            done: stats.done,
            cancelled: stats.cancelled,
            replaced: stats.replaced,
            buried: stats.buried,
            skipped: stats.skipped,
            deleted: stats.deleted,
            trimmed: stats.trimmed,
            failed: stats.failed,
            again: stats.again,
            snoozed: stats.snoozed,
            returned: stats.returned,
            lapsed: stats.lapsed,
        }
    }
}

impl SwitchedOut {
    fn new(kinds: &[Kind], dry_run: bool) -> Self {
        SwitchedOut {
            kinds: kinds.iter().map(Kind::to_string).collect(),
            dry_run,
        }
    }
}
