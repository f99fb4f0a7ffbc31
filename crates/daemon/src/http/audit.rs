//! Audits: whether every job is accounted for.

use axum::Json;
use keyfall::{AuditReport, Damage, Error, Kind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::Body;
use super::bulk::logged;
use super::problem::Problem;
use super::wire::UnseenOut;

/// The kinds of an audit, and whether it repairs them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditIn {
    /// The start of the names of the kinds. Defaults to all kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:trans:notice:")]
    pub prefix: Option<String>,
    /// Repairs the findings; no job is lost by it.
    #[serde(default)]
    pub repair: bool,
}

/// The findings, kind by kind.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditOut {
    pub kinds: Vec<AuditedOut>,
    /// Damage of the keys that all kinds share, and kinds that are missing in the list of kinds.
    /// Damage of shared keys is listed only without a prefix.
    #[serde(default)]
    pub damaged: Vec<DamageOut>,
    /// Whether all keys of the database were searched for kinds that are not listed.
    #[serde(default)]
    pub searched: bool,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// The findings in one kind.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditedOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    /// Whether the kind has no flaw any more.
    pub clean: bool,
    /// Why it could not be audited. Then the other fields mean nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many names were looked at.
    pub scanned: u64,
    /// Whether all names were looked at. If not, there are more flaws than are listed.
    pub complete: bool,
    /// Whether as many parts are stored as there are jobs that need one.
    pub consistent: bool,
    /// The number of jobs that came in, minus the jobs that are accounted for.
    pub difference: i64,
    /// The same for dead letters.
    pub letters_difference: i64,
    /// Damage of whole keys, and of fields of them.
    #[serde(default)]
    pub damaged: Vec<DamageOut>,
    pub flaws: Vec<FlawOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A damaged key, or a damaged field of a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DamageOut {
    #[schema(example = "keyfall:{app1:trans:notice/0}:stats")]
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The damage.
    pub what: String,
    pub repaired: bool,
    /// The repair that was made; or else the command that makes it.
    pub remedy: String,
}

/// A flaw of a job or of a dead letter.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FlawOut {
    /// Kind and id of the job; of a dead letter, its number as well.
    pub name: String,
    /// The name of the flaw, such as `due_without_record`.
    pub flaw: String,
    pub repaired: bool,
    /// The outcome of the repair, or the outcome that a repair would have.
    #[serde(default)]
    pub remedy: String,
}

/// Checks that every job is accounted for, and repairs damage. It goes through all stored data, and
/// answers at the end.
#[utoipa::path(post, path = "/v1/audit", operation_id = "audit", tag = "kinds", request_body = Option<AuditIn>,
    responses((status = 200, body = AuditOut)))]
pub(super) async fn audit(
    caller: Caller,
    Body(AuditIn { prefix, repair }): Body<AuditIn>,
) -> Result<Json<AuditOut>, Problem> {
    let prefix = prefix.unwrap_or_default();
    let scope = if repair { Scope::Operate } else { Scope::Read };
    let client = &caller.may(scope, &prefix)?.client;
    let selection = match prefix.is_empty() {
        true => client.everything(),
        false => client.prefix(&prefix),
    };
    let audit = selection.audit();
    let prefixes = [prefix.clone()];
    let report = match repair {
        true => {
            let deed = Some(Deed::new("repair", &prefix));
            logged(
                &caller,
                &prefixes,
                deed,
                audit.repair(),
                Problem::from,
                |_| None,
            )
            .await?
        }
        false => caller.while_it_may(scope, &prefixes, audit).await??,
    };
    let kinds = report.kinds.into_iter();
    Ok(Json(AuditOut {
        kinds: kinds
            .map(|(kind, audited)| AuditedOut::new(&kind, audited))
            .collect(),
        damaged: DamageOut::all(report.damaged),
        searched: report.is_searched,
        unseen: UnseenOut::all(&report.unseen),
    }))
}

impl AuditedOut {
    fn new(kind: &Kind, audited: Result<AuditReport, Error>) -> Self {
        let report = match audited {
            Ok(report) => report,
            Err(error) => {
                return AuditedOut {
                    kind: kind.to_string(),
                    error: Some(error.to_string()),
                    ..AuditedOut::default()
                };
            }
        };
        let flaws = report.flawed.into_iter().map(|flawed| FlawOut {
            name: flawed.name,
            flaw: words(&format!("{:?}", flawed.flaw)),
            repaired: flawed.repaired,
            remedy: flawed.flaw.remedy().to_owned(),
        });
        let flaws: Vec<FlawOut> = flaws.collect();
        AuditedOut {
            kind: kind.to_string(),
            clean: report.is_known
                && report.stats.is_balanced()
                && report.is_consistent
                && report.is_complete
                && report.unseen.is_empty()
                && report.damaged.iter().all(|damage| damage.repaired)
                && flaws.iter().all(|flaw| flaw.repaired),
            error: None,
            scanned: report.scanned,
            complete: report.is_complete,
            consistent: report.is_consistent,
            difference: report.stats.difference(),
            letters_difference: report.stats.letters_difference(),
            damaged: DamageOut::all(report.damaged),
            flaws,
            unseen: UnseenOut::all(&report.unseen),
        }
    }
}

impl DamageOut {
    fn all(damaged: Vec<Damage>) -> Vec<Self> {
        let shown = |damage: Damage| DamageOut {
            key: damage.key,
            field: damage.field,
            what: damage.what,
            repaired: damage.repaired,
            remedy: damage.remedy,
        };
        damaged.into_iter().map(shown).collect()
    }
}

/// `DueWithoutRecord` as `due_without_record`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    words
}
