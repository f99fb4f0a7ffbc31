//! Oddities of a job that was scheduled all the same.
//!
//! The routes of live instances are read beside the schedule and kept for a moment. A failure to
//! read them changes nothing for the job.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keyfall::target::Pull;
use keyfall::{Client, Instances, JobKey, Router};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::ToSchema;

/// How long a route that was seen counts as present.
const LASTING: Duration = Duration::from_secs(5);

/// How long a missing route counts as missing: a worker may have started since.
const BRIEF: Duration = Duration::from_secs(1);

/// The longest time that an answer waits for the routes of the instances.
const PATIENCE: Duration = Duration::from_millis(500);

/// A possible mistake in a job, although it is scheduled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarningOut {
    /// The warning's code, for programs. Stays the same for ever.
    #[schema(example = "unrouted")]
    pub code: String,
    /// The oddity, its consequence, and the remedy.
    pub detail: String,
}

/// The routes of all live instances, as they were a moment ago. Clones have the same.
#[derive(Clone, Default)]
pub(super) struct LiveRoutes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    seen: Mutex<Option<Seen>>,
    /// Held by the call that reads the routes.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Seen {
    at: Instant,
    /// None, if it cannot be known which jobs have a route.
    live: Option<Arc<Live>>,
}

/// The routes of live instances.
struct Live {
    instances: usize,
    /// One router for each pattern: patterns of several instances may match the same jobs.
    patterns: Vec<Router>,
    has_fallback: bool,
}

impl LiveRoutes {
    /// The oddity of this job. The routes are read if they are not known, or if none of the routes
    /// of a moment ago matches the job; else the call does not wait.
    pub(super) async fn warning(&self, client: &Client, key: &JobKey) -> Option<WarningOut> {
        if let Some(seen) = self.seen()
            && seen.live.is_some_and(|live| live.takes(key))
        {
            if seen.at.elapsed() > LASTING {
                let (own, client) = (self.clone(), client.clone());
                tokio::spawn(async move { own.look(&client, LASTING).await });
            }
            return None;
        }
        self.look(client, BRIEF).await;
        let live = self.seen()?.live?;
        (!live.takes(key)).then(|| live.warning(key))
    }

    /// Reads the routes, unless they were read in this time.
    async fn look(&self, client: &Client, time: Duration) {
        let _turn = self.0.turn.lock().await;
        let is_fresh = |seen: Seen| {
            let time = if seen.live.is_some() { time } else { LASTING };
            seen.at.elapsed() < time
        };
        if self.seen().is_some_and(is_fresh) {
            return;
        }
        let read = timeout(PATIENCE, client.instances()).await;
        let live = read.ok().and_then(Result::ok);
        *self.lock() = Some(Seen {
            at: Instant::now(),
            live: live.and_then(|live| Live::of(&live)).map(Arc::new),
        });
    }

    fn seen(&self) -> Option<Seen> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Seen>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// None, if there is a pattern that only a newer version knows, or a server was away.
    fn of(live: &Instances) -> Option<Self> {
        if !live.unseen.is_empty() {
            return None;
        }
        let all = live.iter().flat_map(|one| &one.routes);
        let mut patterns: Vec<&String> = all.collect();
        patterns.sort();
        patterns.dedup();
        let pull = Pull::new();
        let router = |pattern: &String| Router::new().try_route(pattern, pull.clone()).ok();
        Some(Live {
            instances: live.len(),
            patterns: patterns.into_iter().map(router).collect::<Option<_>>()?,
            has_fallback: live.iter().any(|one| one.has_fallback),
        })
    }

    fn takes(&self, key: &JobKey) -> bool {
        let mut patterns = self.patterns.iter();
        self.has_fallback || patterns.any(|pattern| pattern.route_of(key).is_some())
    }

    fn warning(&self, key: &JobKey) -> WarningOut {
        let detail = match self.instances {
            0 => format!(
                "no worker is running: {key} waits until one starts that has a route for it"
            ),
            _ => format!(
                "no live worker has a route for {key}: it waits until one has; compare its name with \
                 the routes that `keyfall instances` and `GET /v1/routes` list"
            ),
        };
        WarningOut {
            code: "unrouted".to_owned(),
            detail,
        }
    }
}
