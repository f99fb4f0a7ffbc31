//! The description that an instance publishes, so that the others know which jobs it takes.
//!
//! Each instance stores its [`Description`] with its heartbeat; the others turn it into [`Takes`],
//! which answers whether a job or a kind is theirs. `pacers` ranks them for a ledger.

mod pacers;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::key::JobKey;
use crate::routing::{Coverage, Pattern, RouteTable};
pub(crate) use pacers::{Pacers, pacing_rank, seed_of};

/// The word for a missing key that makes its job run.
pub(crate) const RUNS: &str = "run";

/// The word for a missing key that cancels its job.
pub(crate) const CANCELS: &str = "cancel";

/// The description of an instance: one line of JSON. A field that a version does not know is
/// ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The name of its machine.
    pub(crate) host: String,
    /// The id of its process.
    pub(crate) pid: u32,
    /// The version of this crate.
    pub(crate) version: String,
    /// The time at which it started, Unix ms by its own clock.
    pub(crate) started: u64,
    /// The version of its time zone database when it started; empty if it does not know.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) zones: String,
    /// The patterns of its routes, each with its priority.
    pub(crate) routes: Vec<(String, i32)>,
    /// Whether it has a fallback, and so takes jobs that no instance has a route for. In the list
    /// of free room, the fallback stands behind the routes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) fallback: bool,
    /// The patterns of the routes that adopt plain keys, each with the meaning of a missing key:
    /// [`RUNS`] or [`CANCELS`]. Newer versions may use other words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) adopts: Vec<(String, String)>,
    /// How many jobs it runs at the same time, for each route and then the fallback; 0 where a
    /// limit of another kind decides, such as a rate or the clients that pull. Empty in the
    /// description of a version that does not know [turns](crate::worker).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<usize>,
    /// Hosts that its callbacks do not call because they are down; at most [`NAMED_HOSTS`]. The
    /// only field that changes while the instance lives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) breakers: Vec<String>,
}

/// The largest number of hosts in a description.
const NAMED_HOSTS: usize = 32;

/// The jobs that an instance takes, by its description.
pub(crate) struct Takes {
    table: RouteTable,
    /// The index of its fallback among its routes, if it has one.
    pub(crate) fallback: Option<usize>,
    /// As [`Description::slots`].
    slots: Vec<usize>,
    /// For each of its routes, in order: whether it adopts plain keys.
    adopts: Vec<bool>,
}

impl Description {
    /// The same description, with these hosts listed as down.
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

    /// Compiles the routes of the description.
    ///
    /// # Errors
    /// If this version does not know the form of a pattern, or two patterns clash.
    pub(crate) fn takes(&self) -> Result<Takes> {
        let pattern = |(text, priority): &(String, i32)| Ok((Pattern::parse(text)?, *priority));
        let routes = self
            .routes
            .iter()
            .map(pattern)
            .collect::<Result<Vec<_>>>()?;
        Ok(Takes {
            fallback: self.fallback.then_some(routes.len()),
            slots: self.slots.clone(),
            adopts: (self.routes.iter())
                .map(|(pattern, _)| self.adopts.iter().any(|(adopted, _)| adopted == pattern))
                .collect(),
            table: RouteTable::new(routes)?,
        })
    }
}

impl Takes {
    /// The index of the route that takes this job, its fallback aside.
    pub(crate) fn route_of(&self, key: &JobKey) -> Option<usize> {
        self.table.find(key)
    }

    /// How many jobs the route with this index runs at the same time; 0 if that is unknown.
    pub(crate) fn slots(&self, route: usize) -> usize {
        self.slots.get(route).copied().unwrap_or(0)
    }

    /// Whether its route with this index adopts plain keys.
    pub(crate) fn adopts(&self, route: usize) -> bool {
        self.adopts.get(route).copied().unwrap_or(false)
    }

    /// The spread of a kind's jobs over its routes, its fallback aside.
    pub(crate) fn coverage(&self, kind: &str) -> Coverage {
        self.table.coverage(kind)
    }
}
