//! What an instance says of itself, so that the others know which jobs it takes.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::key::JobKey;
use crate::routing::{Coverage, Pattern, RouteTable};

/// The word for a missing key that makes its job run.
pub(crate) const RUNS: &str = "run";

/// The word for a missing key that cancels its job.
pub(crate) const CANCELS: &str = "cancel";

/// The description that an instance publishes: one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// The version of this crate.
    pub(crate) version: String,
    /// When it started, Unix ms by its own clock.
    pub(crate) started: u64,
    /// The patterns of its routes, each with its priority.
    pub(crate) routes: Vec<(String, i32)>,
    /// Whether it also takes jobs that no instance has a route for. Such a route is the last
    /// one in what it says of its room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) fallback: bool,
    /// The patterns of those routes that adopt plain keys, each with what a missing key means:
    /// [`RUNS`] or [`CANCELS`]. Other words may come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) adopts: Vec<(String, String)>,
    /// Hosts of callbacks that it leaves alone because they are down; some, if there are many. The
    /// only part that changes while it lives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) breakers: Vec<String>,
}

/// How many hosts an instance names.
const NAMED_HOSTS: usize = 32;

/// Which jobs an instance takes, by its description.
pub(crate) struct Takes {
    table: RouteTable,
    /// The place of its fallback among its routes.
    pub(crate) fallback: Option<usize>,
}

impl Description {
    /// The same of an instance that leaves these hosts alone.
    pub(crate) fn leaving_alone(&self, hosts: impl IntoIterator<Item = String>) -> Self {
        Description {
            breakers: hosts.into_iter().take(NAMED_HOSTS).collect(),
            ..self.clone()
        }
    }

    /// One line of JSON.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }

    /// # Errors
    /// If a pattern is one that this version does not know.
    pub(crate) fn takes(&self) -> Result<Takes> {
        let pattern = |(text, priority): &(String, i32)| Ok((Pattern::parse(text)?, *priority));
        let routes = self
            .routes
            .iter()
            .map(pattern)
            .collect::<Result<Vec<_>>>()?;
        Ok(Takes {
            fallback: self.fallback.then_some(routes.len()),
            table: RouteTable::new(routes)?,
        })
    }
}

impl Takes {
    /// Which of its routes takes this job, its fallback aside.
    pub(crate) fn route_of(&self, key: &JobKey) -> Option<usize> {
        self.table.find(key)
    }

    /// Which jobs of a kind it takes, its fallback aside.
    pub(crate) fn coverage(&self, kind: &str) -> Coverage {
        self.table.coverage(kind)
    }
}
