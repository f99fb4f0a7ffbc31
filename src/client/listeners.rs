//! Who is told that a job is about to become a dead letter: the hooks of the workers that share
//! a client.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use crate::key::JobKey;
use crate::record::Record;
use crate::time::UnixMs;

/// A job that is about to be buried, with all that is known of it there.
#[derive(Clone, Copy)]
pub(crate) struct DyingJob<'a> {
    pub(crate) key: &'a JobKey,
    /// The header that the dead letter will have.
    pub(crate) header: &'a str,
    pub(crate) due: UnixMs,
    /// How late the last run started, if it started here.
    pub(crate) lag: Option<Duration>,
    /// Nothing if the record cannot be read.
    pub(crate) record: Option<&'a Record>,
}

/// The hooks of one worker, as the client knows them.
pub(crate) trait TellDead: Send + Sync {
    /// Whether the worker has a hook for dead letters.
    fn wants_dead(&self) -> bool;

    /// How long one call of the hook may take.
    fn limit(&self) -> Duration;

    /// Calls the hook, and waits until it has returned, or cannot return any more.
    fn tell<'a>(&'a self, letter: DyingJob<'a>) -> BoxFuture<'a, ()>;
}

/// The hooks of the workers that share a client. A call that settles a lease through the client
/// tells all of them.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Weak<dyn TellDead>>>);

impl Listeners {
    /// The hooks are told until they are dropped.
    pub(crate) fn join(&self, hooks: &Arc<impl TellDead + 'static>) {
        let hooks = Arc::downgrade(hooks);
        let mut all = self.0.lock().expect("no panic while held");
        all.retain(|hooks| hooks.strong_count() > 0);
        all.push(hooks);
    }

    /// The hooks that want to be told of dead letters.
    pub(crate) fn of_dead(&self) -> Vec<Arc<dyn TellDead>> {
        let all = self.0.lock().expect("no panic while held");
        let all = all.iter().filter_map(Weak::upgrade);
        all.filter(|hooks| hooks.wants_dead()).collect()
    }

    /// Tells all of these.
    pub(crate) async fn tell(hooks: &[Arc<dyn TellDead>], letter: DyingJob<'_>) {
        join_all(hooks.iter().map(|hooks| hooks.tell(letter))).await;
    }
}
