//! Recorders and gates in handlers: a test learns the jobs of each call, and lets handlers
//! continue.

use std::sync::Arc;

use keyfall::{Handler, Job, Outcome};
use keyfall_testing::patience::AT_LAST;
pub(crate) use keyfall_testing::patience::{PATIENCE, eventually};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// Records the jobs that handlers were called with. Clones write to the same list.
#[derive(Clone)]
pub(crate) struct Recorder(mpsc::UnboundedSender<Job>);

/// The recorded runs, in order.
pub(crate) struct Runs(mpsc::UnboundedReceiver<Job>);

pub(crate) fn recorder() -> (Recorder, Runs) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Recorder(sender), Runs(receiver))
}

impl Recorder {
    pub(crate) fn note(&self, job: &Job) {
        // The test may have ended.
        let _ = self.0.send(job.clone());
    }

    /// A handler that notes the job and ends with this outcome.
    pub(crate) fn then(
        &self,
        outcome: impl Fn(&Job) -> Outcome + Clone + Send + Sync + 'static,
    ) -> impl Handler<(Job,), ()> {
        let recorder = self.clone();
        async move |job: Job| {
            recorder.note(&job);
            outcome(&job)
        }
    }

    /// A handler that notes the job and ends with `Done`.
    pub(crate) fn done(&self) -> impl Handler<(Job,), ()> {
        self.then(|_| Outcome::Done)
    }

    /// A handler that notes the job and goes on when the gate is open.
    pub(crate) fn behind(&self, gate: &Gate) -> impl Handler<(Job,), ()> {
        let (recorder, gate) = (self.clone(), gate.clone());
        async move |job: Job| {
            recorder.note(&job);
            gate.passed().await;
        }
    }

    /// A handler that notes the job, waits until it is told to stop, and ends with this outcome.
    pub(crate) fn until_stopped(
        &self,
        outcome: impl Fn() -> Outcome + Clone + Send + Sync + 'static,
    ) -> impl Handler<(Job,), ()> {
        let recorder = self.clone();
        async move |job: Job| {
            recorder.note(&job);
            job.cancellation().raised().await;
            outcome()
        }
    }

    /// A handler that notes the job and never returns.
    pub(crate) fn stuck(&self) -> impl Handler<(Job,), ()> {
        let recorder = self.clone();
        async move |job: Job| {
            recorder.note(&job);
            std::future::pending::<()>().await;
        }
    }
}

impl Runs {
    /// The next run.
    #[track_caller]
    pub(crate) fn next(&mut self) -> impl Future<Output = Job> {
        let caller = std::panic::Location::caller();
        async move {
            match timeout(AT_LAST, self.0.recv()).await {
                Ok(Some(job)) => job,
                Ok(None) => panic!("{caller}: all handlers are gone"),
                Err(_) => panic!("{caller}: no further run"),
            }
        }
    }

    /// The next runs, this number of them.
    #[track_caller]
    pub(crate) fn take(&mut self, count: usize) -> impl Future<Output = Vec<Job>> {
        let caller = std::panic::Location::caller();
        async move {
            let mut jobs = Vec::with_capacity(count);
            while jobs.len() < count {
                match timeout(AT_LAST, self.0.recv()).await {
                    Ok(Some(job)) => jobs.push(job),
                    _ => panic!("{caller}: {} runs of {count}", jobs.len()),
                }
            }
            jobs
        }
    }

    /// The runs that were not taken yet. Meaningful only when nothing runs any more.
    pub(crate) fn rest(&mut self) -> Vec<Job> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }

    /// Asserts that there is no further run, after all jobs have ended.
    #[track_caller]
    pub(crate) fn assert_no_more(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "runs that should not be: {rest:?}");
    }
}

/// Handlers wait at the gate until a test opens it.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Gate(Arc::new(Semaphore::new(0)))
    }

    pub(crate) fn open(&self) {
        self.0.close();
    }

    pub(crate) async fn passed(&self) {
        // `acquire` fails when the gate is open.
        let _ = self.0.acquire().await;
    }
}

/// The ids of the jobs, sorted.
pub(crate) fn ids(jobs: &[Job]) -> Vec<String> {
    let mut ids: Vec<String> = jobs.iter().map(|job| job.key().id().to_owned()).collect();
    ids.sort_unstable();
    ids
}
