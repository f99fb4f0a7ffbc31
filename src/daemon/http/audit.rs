//! Whether every job is accounted for.

use axum::Json;
use keyfall::{AuditReport, Kind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Caller, Scope};
use super::body::Body;
use super::problem::Problem;
use super::wire::UnseenOut;

/// Which kinds, and whether they are repaired.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditIn {
    /// What the kinds begin with. All, if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:trans:notice:")]
    pub(crate) prefix: Option<String>,
    /// Repairs what is found; no job is lost by it.
    #[serde(default)]
    pub(crate) repair: bool,
}

/// What was found, kind by kind.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditOut {
    pub(crate) kinds: Vec<AuditedOut>,
    /// What was not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unseen: Vec<UnseenOut>,
}

/// What was found in one kind.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditedOut {
    #[schema(example = "app1:trans:notice")]
    pub(crate) kind: String,
    /// Whether nothing is wrong any more.
    pub(crate) clean: bool,
    /// How many names were looked at.
    pub(crate) scanned: u64,
    /// Whether all were. If not, there are more flaws than are listed.
    pub(crate) complete: bool,
    /// Whether as many parts are stored as there are jobs that need one.
    pub(crate) consistent: bool,
    /// How many more jobs came than are accounted for.
    pub(crate) difference: i64,
    /// The same of dead letters.
    pub(crate) letters_difference: i64,
    pub(crate) flaws: Vec<FlawOut>,
    /// What was not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unseen: Vec<UnseenOut>,
}

/// Something that is wrong.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct FlawOut {
    /// Kind and id of the job; of a dead letter, its number as well.
    pub(crate) name: String,
    /// What is wrong, such as `due_without_record`.
    pub(crate) flaw: String,
    pub(crate) repaired: bool,
}

/// Looks whether every job is accounted for, and repairs what is damaged. It goes through all that
/// is stored, and answers when it has.
#[utoipa::path(post, path = "/v1/audit", operation_id = "audit", tag = "kinds", request_body = Option<AuditIn>,
    responses((status = 200, body = AuditOut)))]
pub(super) async fn audit(
    caller: Caller,
    Body(AuditIn { prefix, repair }): Body<AuditIn>,
) -> Result<Json<AuditOut>, Problem> {
    let prefix = prefix.unwrap_or_default();
    let scope = if repair { Scope::Operate } else { Scope::Read };
    let client = &caller.may(scope, &prefix)?.client;
    let mut kinds = Vec::new();
    let known = client.kinds().await?;
    let mut unseen = UnseenOut::all(&known.unseen);
    for kind in known {
        // With the colon, because a prefix that means one kind ends with it.
        if !format!("{kind}:").starts_with(&prefix) {
            continue;
        }
        let audit = client.audit(kind.as_str());
        let audit = if repair { audit.repair() } else { audit };
        let audited = AuditedOut::new(&kind, audit.await?);
        UnseenOut::merge(&mut unseen, audited.unseen.clone());
        kinds.push(audited);
    }
    Ok(Json(AuditOut { kinds, unseen }))
}

impl AuditedOut {
    fn new(kind: &Kind, report: AuditReport) -> Self {
        let flaws = report.flawed.into_iter().map(|flawed| FlawOut {
            name: flawed.name,
            flaw: words(&format!("{:?}", flawed.flaw)),
            repaired: flawed.repaired,
        });
        let flaws: Vec<FlawOut> = flaws.collect();
        AuditedOut {
            kind: kind.to_string(),
            clean: report.stats.is_balanced()
                && report.is_consistent
                && report.is_complete
                && report.unseen.is_empty()
                && flaws.iter().all(|flaw| flaw.repaired),
            scanned: report.scanned,
            complete: report.is_complete,
            consistent: report.is_consistent,
            difference: report.stats.difference(),
            letters_difference: report.stats.letters_difference(),
            flaws,
            unseen: UnseenOut::all(&report.unseen),
        }
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
