//! Oddities of a job that was scheduled all the same.
//!
//! The routes of live instances are read beside the schedule and kept for a moment. A failure to
//! read them changes nothing for the job.

use std::sync::Arc;
use std::time::Duration;

use keyfall::target::Pull;
use keyfall::{Client, Instances, JobKey, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

/// The age from which on a call looks at the routes again although one of them matches its job. It
/// does not wait for that look.
const LASTING: Duration = Duration::from_secs(5);

/// The time for which a missing route counts as missing: a worker may have started since.
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

/// The routes of all live instances, as they were a moment ago. Clones share them.
#[derive(Clone, Default)]
pub(super) struct LiveRoutes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    seen: watch::Sender<Option<Seen>>,
    /// Held by the task that reads the routes: one reads at a time, and all calls wait for it.
    turn: Arc<Mutex<()>>,
}

#[derive(Clone)]
struct Seen {
    at: Instant,
    /// `None` if the jobs with a route are not known.
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
    /// The oddity of this job. The call reads the routes, and waits for them until [`PATIENCE`] ends,
    /// if they are not known or if none of the routes of a moment ago matches the job.
    pub(super) async fn warning(&self, client: &Client, key: &JobKey) -> Option<WarningOut> {
        let read = || {
            let client = client.clone();
            async move { Live::of(&client.instances().await.ok()?) }
        };
        let live = self.live(key, read).await?;
        (!live.takes(key)).then(|| live.warning(key))
    }

    /// The routes of live instances, if they are known: routes of an earlier read if one of them
    /// matches the job, else the routes of the last second.
    async fn live<R>(&self, key: &JobKey, read: impl FnOnce() -> R) -> Option<Arc<Live>>
    where
        R: Future<Output = Option<Live>> + Send + 'static,
    {
        let mut looks = self.0.seen.subscribe();
        let seen = looks.borrow_and_update().clone();
        if let Some(Seen {
            at,
            live: Some(live),
        }) = &seen
            && live.takes(key)
        {
            if at.elapsed() > LASTING {
                self.look(read);
            }
            return Some(live.clone());
        }
        if !seen.is_some_and(|seen| seen.is_fresh()) {
            self.look(read);
            timeout(PATIENCE, looks.changed()).await.ok()?.ok()?;
        }
        looks.borrow().as_ref()?.live.clone()
    }

    /// Begins to read the routes, unless that is under way.
    fn look<R>(&self, read: impl FnOnce() -> R)
    where
        R: Future<Output = Option<Live>> + Send + 'static,
    {
        let Ok(turn) = self.0.turn.clone().try_lock_owned() else {
            return;
        };
        let (inner, read) = (self.0.clone(), read());
        tokio::spawn(async move {
            let live = timeout(PATIENCE, read).await.ok().flatten();
            inner.seen.send_replace(Some(Seen {
                at: Instant::now(),
                live: live.map(Arc::new),
            }));
            drop(turn);
        });
    }
}

impl Seen {
    /// Whether the routes, or the failure to read them, still count.
    fn is_fresh(&self) -> bool {
        let time = if self.live.is_some() { BRIEF } else { LASTING };
        self.at.elapsed() < time
    }
}

impl Live {
    /// `None` if there is a pattern that only a newer version knows, or a server was away.
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
                "no worker is running: {key} waits until a worker with a route for it starts"
            ),
            _ => format!(
                "no live worker has a route for {key}: it waits until a worker with such a route \
                 starts; compare its name with the routes that `keyfall instances` and \
                 `GET /v1/routes` list"
            ),
        };
        WarningOut {
            code: "unrouted".to_owned(),
            detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::runtime::Handle;
    use tokio::time::sleep;

    use super::*;

    fn key() -> JobKey {
        JobKey::parse("a:b:c:1").unwrap()
    }

    fn live(has_fallback: bool) -> Live {
        Live {
            instances: 1,
            patterns: Vec::new(),
            has_fallback,
        }
    }

    /// Waits, then reads the routes, and counts the reads.
    fn reads<'a>(
        count: &'a Arc<AtomicUsize>,
        has_fallback: bool,
    ) -> impl Fn() -> futures_util::future::BoxFuture<'static, Option<Live>> + 'a {
        move || {
            count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                sleep(PATIENCE / 2).await;
                Some(live(has_fallback))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_share_one_look() {
        let (routes, count) = (LiveRoutes::default(), Arc::default());
        let (key, read) = (key(), reads(&count, true));
        let seen = join_all((0..100).map(|_| routes.live(&key, &read))).await;
        assert!(seen.into_iter().all(|live| live.is_some()));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // The route of the job counts for a while longer, while the next read is under way.
        sleep(LASTING * 2).await;
        let asked = Instant::now();
        for _ in 0..100 {
            assert!(routes.live(&key, &read).await.is_some());
        }
        assert_eq!(asked.elapsed(), Duration::ZERO);
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
        sleep(PATIENCE).await;
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_longer_than_the_bound() {
        let (routes, key) = (LiveRoutes::default(), key());
        let never = || std::future::pending::<Option<Live>>();
        let wait = async |after: Duration| {
            sleep(after).await;
            let asked = Instant::now();
            assert!(routes.live(&key, never).await.is_none());
            asked.elapsed()
        };
        let late = (0..10).map(|tenth| wait(PATIENCE * tenth / 10));
        for waited in join_all(late).await {
            assert!(waited <= PATIENCE, "{waited:?}");
        }
        // A failed read counts for a while.
        assert_eq!(wait(LASTING / 2).await, Duration::ZERO);
        assert_eq!(wait(LASTING).await, PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_a_second_leads_to_no_warning() {
        let (routes, count) = (LiveRoutes::default(), Arc::default());
        let key = key();
        let takes = async |read| routes.live(&key, read).await.unwrap().takes(&key);
        let (without, with) = (reads(&count, false), reads(&count, true));
        assert!(!takes(&without).await);
        assert!(!takes(&with).await);
        sleep(BRIEF).await;
        assert!(takes(&with).await);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
