//! Consumers that pull in the process of the worker.

use std::time::Duration;

use keyfall::target;
use keyfall::{Client, Outcome, RetryPolicy, Router};
use tokio::sync::Mutex;

use super::target::{Delivery, Doomed, End, Ends, Nature, RouteTerms, Target, Told, Vanished};
use crate::site::Site;
use crate::workers::Mortal;

pub(super) struct Pull {
    pattern: String,
    terms: RouteTerms,
    pull: target::Pull,
    /// The client that ends leases.
    client: Mutex<Client>,
}

impl Target for Pull {
    const NATURE: Nature = Nature {
        name: "pull",
        ends: Ends::Lease,
        vanished: Vanished::Lapses,
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        Pull {
            pattern: site.pattern(),
            terms,
            pull: target::Pull::new(),
            client: Mutex::new(site.client.clone()),
        }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let router = Router::new().route(&self.pattern, self.terms.of(self.pull.clone()));
        let (worker, client) = Mortal::start_telling(redis, router, self.terms.lease);
        if self.terms.concurrency.is_some() {
            // The worker counts the leases in use, so it has to hear of each end. Otherwise the
            // client is in another process, where a lease can go as a text.
            *self.client.lock().await = client.await.unwrap();
        }
        worker.into()
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        let mut pulled = self.pull.pull(&[""; 0], 1, patience).await.unwrap();
        // Jobs of a dead worker are not accepted.
        let (job, lease) = pulled.pop()?.accept()?;
        let client = self.client.lock().await.clone();
        let policy: RetryPolicy = self.terms.retry.parse().unwrap();
        Some(Delivery {
            key: job.key().to_string(),
            payload: job.payload().to_vec(),
            told: Some(Told::by_job(&job)),
            end: Box::new(move |end| {
                Box::pin(async move {
                    let outcome = match end {
                        End::Done => Outcome::Done,
                        End::Failed(why) => Outcome::retry(why),
                    };
                    let settle = client.settle(&lease, outcome).retry(policy);
                    settle.await.unwrap();
                })
            }),
        })
    }
}
