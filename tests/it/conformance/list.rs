//! A Redis list: a job is done when it is written, or when a consumer acknowledges it.

use std::time::Duration;

use keyfall::{Client, Lease, Outcome, RetryPolicy, Router, target};
use redis::aio::MultiplexedConnection;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::target::{
    Delivery, Doomed, End, Ends, Nature, RouteTerms, Target, Told, Vanished, text,
};
use crate::site::{Site, command, ms};
use crate::workers::Mortal;

pub(super) struct List<const ACKNOWLEDGED: bool> {
    /// The Redis that has the list.
    url: String,
    name: String,
    pattern: String,
    terms: RouteTerms,
    redis: MultiplexedConnection,
    client: Client,
}

impl<const ACKNOWLEDGED: bool> Target for List<ACKNOWLEDGED> {
    const NATURE: Nature = if ACKNOWLEDGED {
        Nature {
            name: "list-ack",
            ends: Ends::Lease,
            vanished: Vanished::Lapses,
        }
    } else {
        Nature {
            name: "list-over",
            ends: Ends::Written,
            vanished: Vanished::Done,
        }
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        List {
            url: site.url.clone(),
            name: format!("{}-list", site.app),
            pattern: site.pattern(),
            terms,
            redis: site.redis(),
            client: site.client.clone(),
        }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let list = target::list(&self.url, &self.name);
        let list = if ACKNOWLEDGED {
            list.acknowledged()
        } else {
            list
        };
        let router = Router::new().route(&self.pattern, self.terms.of(list));
        Mortal::start(redis, router, self.terms.lease).into()
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        let until = Instant::now() + patience;
        loop {
            let document: Option<String> =
                command(&mut self.redis.clone(), &["LPOP", &self.name]).await;
            if let Some(document) = document {
                return Some(self.delivery(&serde_json::from_str(&document).unwrap()));
            }
            if Instant::now() > until {
                return None;
            }
            sleep(ms(5)).await;
        }
    }
}

impl<const ACKNOWLEDGED: bool> List<ACKNOWLEDGED> {
    fn delivery(&self, document: &Value) -> Delivery {
        let done = format!("{}:done", self.name);
        let lease = ACKNOWLEDGED.then(|| text(document, "lease"));
        let (mut redis, client) = (self.redis.clone(), self.client.clone());
        let policy: RetryPolicy = self.terms.retry.parse().unwrap();
        Delivery {
            key: text(document, "key"),
            payload: document["payload"].to_string().into_bytes(),
            told: Some(Told::by_names(|name| text(document, name))),
            end: Box::new(move |end| {
                Box::pin(async move {
                    match (end, lease) {
                        (_, None) => {}
                        (End::Done, Some(lease)) => {
                            let _: u64 = command(&mut redis, &["RPUSH", &done, &lease]).await;
                        }
                        // HTTP passes it on in the same way.
                        (End::Failed(why), Some(lease)) => {
                            let lease: Lease = lease.parse().unwrap();
                            let settle = client.settle(&lease, Outcome::retry(why));
                            settle.retry(policy).await.unwrap();
                        }
                    }
                })
            }),
        }
    }
}
