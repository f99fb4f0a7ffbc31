//! The findings of the doctor.

use axum::Json;
use keyfall::doctor::{Diagnosis, Finding, Severity};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Caller, Scope};
use super::problem::Problem;

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
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FindingOut {
    /// The id of the check; `docs/doctor.md` lists all checks.
    #[schema(example = "notify-flags")]
    pub id: String,
    pub severity: SeverityOut,
    /// Whether the check could be made. If not, `found` gives the reason.
    pub seen: bool,
    pub found: String,
    pub expected: String,
    /// Why it matters.
    pub why: String,
    /// The remedy; absent if none is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The repair that was made, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<String>,
}

/// Looks for settings of Redis, rights, clocks and jobs without a worker that can cause trouble.
/// Changes nothing.
#[utoipa::path(get, path = "/v1/doctor", operation_id = "doctor", tag = "instances", responses((status = 200, body = DoctorOut)))]
pub(super) async fn doctor(caller: Caller) -> Result<Json<DoctorOut>, Problem> {
    let client = &caller.may(Scope::Read, "")?.client;
    let looked = caller.while_it_may(Scope::Read, &[], client.diagnose());
    Ok(Json(looked.await??.into()))
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
            id: check.id.to_owned(),
            severity: finding.severity.into(),
            seen: finding.is_seen,
            found: finding.found,
            expected: check.expected.to_owned(),
            why: check.why.to_owned(),
            remedy: finding.remedy,
            fixed: finding.fixed,
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
