//! Hooks: async functions that the owner of a worker sets, for dead letters and for jobs that start
//! late. They must neither delay a handler nor keep a job from ending.
//!
//! Each job that a worker is about to bury passes through [`Hooks::dead`] first, and the worker
//! waits for it, but only up to a limit. A late start passes through [`Hooks::late`], which waits
//! for nothing. Each call runs as a task of its own, so a hook that panics or blocks harms no
//! other.

mod dead;
mod late;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

pub use dead::DeadJob;
pub use late::LateJob;
pub(crate) use late::Start;

use crate::client::{DyingJob, TellDead};
use crate::error::{Error, ErrorKind};
use crate::outcome::Failure;
use crate::router::{RouteEntry, Routes};
use crate::settings::LATE_HOOKS;

/// A hook, boxed: called with a [`DeadJob`] or a [`LateJob`], it returns the future to await.
type Call<T> = Arc<dyn Fn(T) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// The return type of a hook: `()`, or a `Result` whose error is logged. The error may be any
/// `std::error::Error`, `anyhow::Error`, `String` or `&str`.
///
/// ```
/// use keyfall::IntoTold;
///
/// assert!(().into_told().is_ok());
/// assert!(Err::<(), _>("no answer from the pager").into_told().is_err());
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook cannot return `{Self}`",
    note = "return `()`, or `Result<(), E>`; the error may be any \
            `std::error::Error + Send + Sync`, `anyhow::Error` or `String`"
)]
pub trait IntoTold {
    /// Whether the hook succeeded.
    ///
    /// # Errors
    /// The error of the hook. It is logged, and changes nothing for the job.
    fn into_told(self) -> Result<(), Failure>;
}

impl IntoTold for () {
    fn into_told(self) -> Result<(), Failure> {
        Ok(())
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> IntoTold for Result<(), E> {
    fn into_told(self) -> Result<(), Failure> {
        self.map_err(Failure::new)
    }
}

/// The hooks that the owner of a worker has set; none by default.
#[derive(Clone, Default)]
pub(crate) struct HookFunctions {
    dead: Option<Call<DeadJob>>,
    late: Option<Call<LateJob>>,
}

/// The hooks of a running worker, with the runtime and the limits of their calls.
pub(crate) struct Hooks {
    wanted: HookFunctions,
    /// How long one call may take, before it is aborted.
    limit: Duration,
    /// The runtime that calls run on.
    handle: Handle,
    /// This worker, as `host:process id`.
    instance: Arc<str>,
    /// Places for late starts, [`LATE_HOOKS`] in number: each call holds one while it runs.
    places: Arc<Semaphore>,
    /// Late starts that found no place since the last call.
    untold: AtomicU64,
    /// Cancelled when the worker has ended; ends the calls for late starts.
    over: CancellationToken,
}

impl HookFunctions {
    /// Sets the hook for dead letters. A later call replaces it.
    pub(crate) fn set_dead<F, Fut>(&mut self, hook: F)
    where
        F: Fn(DeadJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTold> + Send + 'static,
    {
        self.dead = Some(call(hook));
    }

    /// Sets the hook for late starts. A later call replaces it.
    pub(crate) fn set_late<F, Fut>(&mut self, hook: F)
    where
        F: Fn(LateJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTold> + Send + 'static,
    {
        self.late = Some(call(hook));
    }
}

/// Boxes a hook, of any return type.
fn call<T, F, Fut>(hook: F) -> Call<T>
where
    T: Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoTold> + Send + 'static,
{
    Arc::new(move |told| {
        let told = hook(told);
        Box::pin(async move { told.await.into_told() })
    })
}

impl Hooks {
    /// Hooks that run on the runtime of the caller; `limit` is the longest time for one call.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn new(wanted: HookFunctions, limit: Duration) -> Arc<Self> {
        let host = gethostname::gethostname();
        let instance = format!("{}:{}", host.to_string_lossy(), std::process::id());
        Arc::new(Hooks {
            wanted,
            limit,
            handle: Handle::current(),
            instance: instance.into(),
            places: Arc::new(Semaphore::new(LATE_HOOKS)),
            untold: AtomicU64::new(0),
            over: CancellationToken::new(),
        })
    }

    /// Whether a hook for dead letters is set.
    pub(crate) fn want_dead(&self) -> bool {
        self.wanted.dead.is_some()
    }

    /// Verifies that no setting of these routes needs a hook that is missing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a route has `late_after`, and no hook for late starts is
    /// set.
    pub(crate) fn check(&self, routes: &Routes) -> Result<(), Error> {
        let mut routes = routes.routes.iter();
        let of_late = |route: &&RouteEntry| route.late_after.is_some();
        match routes.find(of_late).filter(|_| self.wanted.late.is_none()) {
            None => Ok(()),
            Some(route) => Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "route `{}`: its `late_after` has no effect, because the worker has no hook \
                     for late starts: add one with `on_late`, or leave `late_after` out",
                    route.pattern
                ),
            )),
        }
    }

    /// The longest time for one call.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Calls the hook for dead letters, if there is one, and waits until it has returned, failed,
    /// or taken longer than the [limit](Self::limit). A failure is logged. A future that is dropped
    /// aborts the call.
    pub(crate) async fn dead(&self, letter: DyingJob<'_>) {
        if let Some(call) = &self.wanted.dead {
            let job = DeadJob::new(letter, self.instance.clone());
            let key = job.key().clone();
            if let Err(why) = self.call(call.clone(), job).await {
                tracing::error!(
                    %key, why,
                    "the hook for dead letters failed; the job becomes a dead letter nevertheless"
                );
            }
        }
    }

    /// Starts a call of the hook for late starts, if there is one, and returns at once.
    ///
    /// While [`LATE_HOOKS`] calls run, further starts are only counted; the next call learns the
    /// number. The first of them is logged.
    pub(crate) fn late(self: &Arc<Self>, start: Start<'_>) {
        let Some(call) = self.wanted.late.clone() else {
            return;
        };
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            if self.untold.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    running = LATE_HOOKS,
                    "too many hooks for late starts are running; until one ends, further late \
                     starts are only counted"
                );
            }
            return;
        };
        let untold = self.untold.swap(0, Ordering::Relaxed);
        let job = LateJob::new(start, untold, self.instance.clone());
        let hooks = self.clone();
        let told = async move {
            let key = job.key().clone();
            tokio::select! {
                told = hooks.call(call, job) => {
                    if let Err(why) = told {
                        tracing::error!(%key, why, "the hook for late starts failed");
                    }
                }
                () = hooks.over.cancelled() => {
                    tracing::warn!(
                        %key,
                        "the hook for late starts was cancelled, because the worker stops"
                    );
                }
            }
            drop(place);
        };
        self.handle.spawn(told.in_current_span());
    }

    /// Returns when no call for a late start runs.
    pub(crate) async fn all_told(&self) {
        let all = u32::try_from(LATE_HOOKS).expect("few");
        // It is never closed.
        let _ = self.places.acquire_many(all).await;
    }

    /// Aborts the calls for late starts that still run, because the worker has ended.
    pub(crate) fn cut_off(&self) {
        self.over.cancel();
    }

    /// Runs one call as a task of its own: a hook that panics, hangs or blocks its thread does so
    /// alone. The error says in words why the call failed.
    async fn call<T: Send + 'static>(&self, call: Call<T>, told: T) -> Result<(), String> {
        let task = async move { call(told).await }.in_current_span();
        let task = AbortOnDropHandle::new(self.handle.spawn(task));
        match timeout(self.limit, task).await {
            Ok(Ok(told)) => told.map_err(|error| format!("it failed: {error}")),
            Ok(Err(ended)) if ended.is_panic() => Err("it panicked".into()),
            Ok(Err(_)) => Err("its runtime has ended".into()),
            Err(_) => Err(format!("it took longer than {:?}", self.limit)),
        }
    }
}

impl TellDead for Hooks {
    fn wants_dead(&self) -> bool {
        self.want_dead()
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    fn tell<'a>(&'a self, letter: DyingJob<'a>) -> BoxFuture<'a, ()> {
        Box::pin(self.dead(letter))
    }
}

impl fmt::Debug for HookFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookFunctions")
            .field("dead", &self.dead.is_some())
            .field("late", &self.late.is_some())
            .finish()
    }
}
