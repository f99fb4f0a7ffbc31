//! A worker as a process of its own, which writes down every run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use keyfall::{Client, Handler, Job, Json, MissingKey, Outcome, RetryPolicy, Router, Worker};
use keyfall_testing::process::told_to_stop;
use serde::{Deserialize, Serialize};

use crate::database;
use crate::journal::{Journal, What};
use crate::limited;
use crate::order::{NO_MORE, Order, Plan};
use crate::plain::{CANCEL, RUN};
use crate::recurring;
use crate::series;

use crate::settled::{BEGAN, Settlements};

/// Short, so that the jobs of a dead worker soon run again.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) journals: PathBuf,
    /// Whether plain keys are its jobs, too.
    pub(crate) adopts: bool,
}

/// Works until its standard input ends.
pub(crate) fn main(terms: &Terms) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(work(terms));
    // A thread that a handler blocks would hold it up.
    std::process::exit(0);
}

async fn work(terms: &Terms) {
    let journal = Arc::new(Journal::open(&terms.journals, &terms.name));
    Settlements::write_to(&journal);
    let told_to_stop = told_to_stop().shared();
    let client = tokio::select! {
        client = connected(&terms.url) => client,
        () = told_to_stop.clone() => return,
    };
    let policy = RetryPolicy::fixed(Duration::from_millis(100)).expect("it is valid");
    // So many attempts that a fault does not use them up.
    let route = || handler(journal.clone()).retry(policy.clone().attempts(1000));
    let mut router = Router::new().route("chaos:load:*:{id}", route()).route(
        &format!("{}:*", recurring::KIND),
        recurring::handler(journal.clone()),
    );
    router = router.route(
        &format!("{}:*", series::KIND),
        series::handler(journal.clone()),
    );
    for kind in database::KINDS {
        router = router.route(&format!("{kind}:*"), database::handler(journal.clone()));
    }
    for kind in limited::ALL {
        router = router.route(&format!("{kind}:*"), limited::handler(journal.clone()));
    }
    if terms.adopts {
        router = router
            .route(&format!("{RUN}:*"), route().adopt(MissingKey::Run))
            .route(&format!("{CANCEL}:*"), route().adopt(MissingKey::Cancel));
    }
    Worker::new(client, router)
        .lease(LEASE)
        .concurrency(512)
        .grace(Duration::from_secs(1))
        .dead_letters(1_000_000, Duration::from_secs(24 * 3600))
        .run_until(told_to_stop)
        .await
        .expect("it runs whatever happens");
}

/// A worker that is started while Redis is away waits for it.
async fn connected(url: &str) -> Client {
    loop {
        match Client::connect(url).await {
            Ok(client) => return client,
            Err(error) if error.is_retryable() => eprintln!("waiting: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Writes down the end of a run, however it ends.
struct Ending<'a> {
    journal: &'a Journal,
    job: &'a Job,
    last: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.journal.note(What::Ended {
            key: self.job.key().to_string(),
            fence: self.job.fence(),
            last: self.last,
        });
    }
}

fn handler(journal: Arc<Journal>) -> impl Handler<(Job, Json<Order>), ()> {
    async move |job: Job, Json(order): Json<Order>| {
        journal.note(What::Began {
            key: job.key().to_string(),
            version: order.version,
            attempt: job.attempt(),
            fence: job.fence(),
            late: job.lag().as_micros().try_into().unwrap_or(u64::MAX),
        });
        tracing::debug!(target: BEGAN, fence = job.fence());
        let mut ending = Ending {
            journal: &journal,
            job: &job,
            last: false,
        };
        let outcome = carry_out(order.plan, job.attempt() == 1).await;
        ending.last = matches!(outcome, Outcome::Done | Outcome::Bury { .. });
        outcome
    }
}

async fn carry_out(plan: Plan, first: bool) -> Outcome {
    match plan {
        Plan::Slow(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        Plan::Block(ms) => std::thread::sleep(Duration::from_millis(ms)),
        Plan::Retry if first => return Outcome::retry("not this time"),
        Plan::Again if first => return Outcome::again(),
        Plan::Bury => return Outcome::bury(NO_MORE),
        Plan::Hang => std::future::pending().await,
        Plan::Panic => panic!("as it was told to"),
        Plan::Kill => std::process::abort(),
        // A snooze is not counted, so chance ends it.
        Plan::Snooze if rand::random() => return Outcome::snooze(Duration::from_millis(150)),
        Plan::Done | Plan::Retry | Plan::Again | Plan::Snooze => {}
    }
    Outcome::Done
}
