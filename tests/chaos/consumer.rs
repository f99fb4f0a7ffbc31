//! A consumer as a process of its own: it pulls from the daemons, and writes down every run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::daemons::{Daemons, Ports};
use crate::journal::{Journal, What, at_unix_ms, now};
use crate::order::{Order, Plan};
use crate::process;

/// How many jobs are pulled at once.
const AT_ONCE: usize = 50;

/// How many ends may be under way. Whoever cannot end what they have, pulls no more.
const UNENDED: usize = 100;

/// Between two pulls, so that each brings several jobs, and two tries.
const PAUSE: Duration = Duration::from_millis(40);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) name: String,
    pub(crate) daemons: Ports,
    pub(crate) journals: PathBuf,
}

/// A job as it was handed out.
#[derive(Debug, Clone, Deserialize)]
struct Pulled {
    key: String,
    lease: String,
    payload: Order,
    attempt: u32,
    due: Timestamp,
    fence: u64,
}

struct Consumer {
    daemons: Daemons,
    journal: Journal,
}

/// Consumes until its standard input ends.
pub(crate) fn main(terms: &Terms) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(consume(terms));
}

async fn consume(terms: &Terms) {
    let consumer = Arc::new(Consumer {
        daemons: Daemons::new(&terms.daemons),
        journal: Journal::open(&terms.journals, &terms.name),
    });
    let runs = TaskTracker::new();
    tokio::select! {
        () = consumer.pull(&runs) => {}
        () = process::told_to_stop() => {}
    }
    // What was pulled is ended well.
    runs.close();
    runs.wait().await;
}

impl Consumer {
    /// Pulls, for ever. What comes is run beside.
    async fn pull(self: Arc<Self>, runs: &TaskTracker) {
        let wanted = json!({"prefixes": ["chaos:load"], "max": AT_ONCE, "wait": "10s"});
        loop {
            sleep(PAUSE).await;
            if runs.len() > UNENDED {
                continue;
            }
            let answer = self.daemons.call(Method::POST, "/v1/pull", &wanted).await;
            let jobs = match answer {
                Ok((status, mut answer)) if status.is_success() => answer["jobs"].take(),
                // An answer that is not whole has brought nothing.
                _ => continue,
            };
            let jobs: Vec<Pulled> = serde_json::from_value(jobs).expect("jobs as documented");
            jobs.iter().for_each(|job| self.begin(job));
            let (done, others): (Vec<_>, Vec<_>) = jobs
                .into_iter()
                .partition(|job| job.payload.plan == Plan::Done);
            if !done.is_empty() {
                runs.spawn(self.clone().end(done, "finish", json!({})));
            }
            for job in others {
                runs.spawn(self.clone().run(job));
            }
        }
    }

    fn begin(&self, job: &Pulled) {
        let due = u64::try_from(job.due.as_millisecond()).expect("it is after 1970");
        self.journal.note(What::Began {
            key: job.key.clone(),
            version: job.payload.version,
            attempt: job.attempt,
            fence: job.fence,
            late: now().saturating_sub(at_unix_ms(due)),
        });
    }

    async fn run(self: Arc<Self>, job: Pulled) {
        let first = job.attempt == 1;
        let (call, further) = match job.payload.plan {
            Plan::Slow(ms) if ms > 300 => {
                let more = json!({"leases": [job.lease], "by": "3s"});
                // If it is not extended, the lease is long enough all the same.
                let _ = self
                    .daemons
                    .call(Method::POST, "/v1/leases/extend", &more)
                    .await;
                sleep(Duration::from_millis(ms)).await;
                ("finish", json!({}))
            }
            Plan::Retry if first => ("fail", json!({"error": "not this time"})),
            Plan::Again | Plan::Snooze if first => {
                ("fail", json!({"error": "not yet", "after": "150ms"}))
            }
            Plan::Bury => ("fail", json!({"error": "no more", "bury": true})),
            Plan::Slow(ms) => {
                sleep(Duration::from_millis(ms)).await;
                ("finish", json!({}))
            }
            _ => ("finish", json!({})),
        };
        self.end(vec![job], call, further).await;
    }

    /// Ends leases, and asks again until it is answered: these calls may be repeated.
    async fn end(self: Arc<Self>, jobs: Vec<Pulled>, call: &'static str, mut body: Value) {
        for job in &jobs {
            self.journal.note(What::Ended {
                key: job.key.clone(),
                fence: job.fence,
            });
        }
        body["leases"] = jobs.iter().map(|job| job.lease.as_str()).collect();
        let path = format!("/v1/leases/{call}");
        let mut repeated = false;
        let results = loop {
            match self.daemons.call(Method::POST, &path, &body).await {
                Ok((status, mut answer)) if status.is_success() => break answer["results"].take(),
                _ => repeated = true,
            }
            sleep(PAUSE).await;
        };
        for (job, result) in jobs.iter().zip(results.as_array().expect("one for each")) {
            let taken = match result["result"].as_str() {
                // It may be the call before this one that ended it.
                Some("gone" | "taken") if repeated => continue,
                Some("gone" | "taken") => false,
                Some("done" | "pending" | "replaced" | "cancelled" | "buried") => true,
                _ => continue,
            };
            self.journal.note(What::Settled {
                key: job.key.clone(),
                attempt: job.attempt,
                taken,
            });
        }
    }
}
