//! The findings of the doctor, and its repairs.

use axum::Json;
use keyfall::doctor::{CHECKS, Diagnosis, Finding, Severity};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::Body;
use super::problem::Problem;
use super::said::SaidOut;

/// The action of a repair, in the log of actions.
const FIX: &str = "fix";

/// The findings of the doctor.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DoctorOut {
    /// The address of Redis, without credentials.
    pub server: String,
    /// The severity of the worst finding.
    pub worst: SeverityOut,
    /// One for each check.
    pub findings: Vec<FindingOut>,
}

/// The severity of a finding. `ok`: as it should be. `info`: worth knowing, or could not be looked
/// at. `warning`: jobs run late, or may be lost when something else fails. `error`: jobs are lost,
/// refused or not run, now or at the next restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SeverityOut {
    Ok,
    Info,
    Warning,
    Error,
}

/// The finding of one check.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FindingOut {
    /// The id of the check; `docs/doctor.md` lists all checks.
    #[schema(example = "notify-flags")]
    pub id: String,
    pub severity: SeverityOut,
    /// Whether the check could be made. If not, `found` gives the reason.
    pub seen: bool,
    pub found: String,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_said: Option<SaidOut>,
    pub expected: String,
    /// Why it matters.
    pub why: String,
    /// The remedy; absent if none is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy_said: Option<SaidOut>,
    /// Whether `POST /v1/doctor/fix` would try to repair it.
    #[serde(default)]
    pub fixable: bool,
    /// The repair that was tried, if one was asked for: the change, or the refusal of Redis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<String>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_said: Option<SaidOut>,
    /// Whether the repair was made.
    #[serde(default)]
    pub repaired: bool,
}

/// The wanted repairs.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FixIn {
    /// The checks to repair and to answer with, by their ids. Defaults to all checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["notify-flags"]))]
    pub only: Option<Vec<String>>,
}

/// Looks for settings of Redis, rights, clocks and jobs without a worker that can cause trouble.
/// Changes nothing.
#[utoipa::path(get, path = "/v1/doctor", operation_id = "doctor", tag = "instances", responses((status = 200, body = DoctorOut)))]
pub(super) async fn doctor(caller: Caller) -> Result<Json<DoctorOut>, Problem> {
    let client = &caller.may(Scope::Read, "")?.client;
    let looked = caller.while_it_may(Scope::Read, &[], client.diagnose());
    Ok(Json(looked.await??.into()))
}

/// Repairs settings of Redis whose change does no harm to other programs, `notify-flags` and
/// `pubsub-buffer`, and looks again. A repair lasts until Redis restarts; `fixed` says how to make
/// it last. Other findings stay.
#[utoipa::path(post, path = "/v1/doctor/fix", operation_id = "fix", tag = "instances", request_body = Option<FixIn>,
    responses((status = 200, description = "The findings after the repair", body = DoctorOut)))]
pub(super) async fn fix(
    caller: Caller,
    Body(FixIn { only }): Body<FixIn>,
) -> Result<Json<DoctorOut>, Problem> {
    let client = &caller.may(Scope::Operate, "")?.client;
    let mut diagnose = client.diagnose().fix();
    if let Some(only) = only {
        check(&only)?;
        diagnose = diagnose.only(only);
    }
    // A repair that was begun ends: it is short, and belongs into the log of actions.
    let out = DoctorOut::from(diagnose.await?);
    if let Some((count, note)) = out.repairs() {
        caller.did(Deed::new(FIX, "").count(count).note(note)).await;
    }
    Ok(Json(out))
}

/// Refuses checks that do not exist.
fn check(only: &[String]) -> Result<(), Problem> {
    let is_known = |id: &str| CHECKS.iter().any(|it| it.id == id);
    match only.iter().find(|id| !is_known(id)) {
        None => Ok(()),
        Some(id) => {
            let known: Vec<&str> = CHECKS.iter().map(|it| it.id).collect();
            let rule = format!(
                "there is no check {id:?}: name some of {}",
                known.join(", ")
            );
            Err(Problem::invalid("only", rule))
        }
    }
}

impl DoctorOut {
    /// The number of repairs that were made, and what they changed, for the log of actions; `None`
    /// without any.
    pub fn repairs(&self) -> Option<(u64, String)> {
        let made = self.findings.iter().filter(|it| it.repaired);
        let made: Vec<String> = made
            .map(|it| format!("{}: {}", it.id, it.fixed.as_deref().unwrap_or_default()))
            .collect();
        (!made.is_empty()).then(|| (made.len() as u64, made.join("; ")))
    }
}

impl From<Diagnosis> for DoctorOut {
    fn from(diagnosis: Diagnosis) -> Self {
        DoctorOut {
            worst: diagnosis.worst().into(),
            server: diagnosis.server,
            findings: diagnosis
                .findings
                .into_iter()
                .map(FindingOut::from)
                .collect(),
        }
    }
}

impl From<Finding> for FindingOut {
    fn from(finding: Finding) -> Self {
        let check = finding.check;
        FindingOut {
            fixable: finding.is_fixable(),
            repaired: finding.is_fixed,
            id: check.id.to_owned(),
            severity: finding.severity.into(),
            seen: finding.is_seen,
            found_said: SaidOut::of(&finding.found),
            found: finding.found.to_string(),
            expected: check.expected.to_owned(),
            why: check.why.to_owned(),
            remedy_said: finding.remedy.as_ref().and_then(SaidOut::of),
            remedy: finding.remedy.map(|it| it.to_string()),
            fixed_said: finding.fixed.as_ref().and_then(SaidOut::of),
            fixed: finding.fixed.map(|it| it.to_string()),
        }
    }
}

impl From<Severity> for SeverityOut {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Ok => SeverityOut::Ok,
            Severity::Info => SeverityOut::Info,
            Severity::Warning => SeverityOut::Warning,
            Severity::Error => SeverityOut::Error,
        }
    }
}
