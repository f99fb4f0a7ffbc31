//! Durable calls: the replicas and disks that must have a write before its answer, and the replicas
//! and disks that have it.

use keyfall::{Durable, Reached};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The replicas and disks that must have a cancel before its answer.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DurableIn {
    /// The number of replicas that must have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<u32>,
    /// Whether it must also be on the disk of the primary, and on the disks of as many replicas.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[param(default = false)]
    pub fsynced: bool,
}

/// The replicas and disks that had the write of a durable call. A goal that was not reached in time
/// is not an error: the call is done.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct ReachedOut {
    /// Whether all goals were reached.
    pub met: bool,
    /// The number of replicas that have it, at least in memory.
    pub replicas: u32,
    /// Whether it is on the disk of the primary, if the server tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_disk: Option<bool>,
    /// The number of replicas that have it on disk, if the server tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_on_disk: Option<u32>,
}

impl DurableIn {
    pub fn is_any(self) -> bool {
        self.durable.is_some() || self.fsynced
    }

    pub(super) fn asked(self) -> Option<Durable> {
        if !self.is_any() {
            return None;
        }
        let asked = Durable::replicas(self.durable.unwrap_or(0));
        Some(match self.fsynced {
            true => asked.fsynced(),
            false => asked,
        })
    }
}

impl From<Reached> for ReachedOut {
    fn from(reached: Reached) -> Self {
        ReachedOut {
            met: reached.is_met,
            replicas: reached.replicas,
            on_disk: reached.on_disk,
            replicas_on_disk: reached.replicas_on_disk,
        }
    }
}
