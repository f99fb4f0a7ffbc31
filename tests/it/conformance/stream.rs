//! A Redis stream: a job is done when it is written, or when its group has acknowledged it.

use std::collections::HashMap;
use std::time::Duration;

use keyfall::{Client, Lease, Outcome, RetryPolicy, Router, target};
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use super::target::{Delivery, Doomed, End, Ends, Nature, RouteTerms, Target, Told, Vanished};
use crate::site::{Site, command, ms};
use crate::workers::Mortal;

/// One consumer reads the stream. Without acknowledgements, the worker does not know the group.
const GROUP: &str = "closers";

type Fields = HashMap<String, String>;
type Streams = Vec<(String, Vec<(String, Fields)>)>;

pub(super) struct Stream<const ACKNOWLEDGED: bool> {
    /// The Redis that has the stream.
    url: String,
    name: String,
    pattern: String,
    terms: RouteTerms,
    redis: MultiplexedConnection,
    client: Client,
}

impl<const ACKNOWLEDGED: bool> Target for Stream<ACKNOWLEDGED> {
    const NATURE: Nature = if ACKNOWLEDGED {
        Nature {
            name: "stream-ack",
            ends: Ends::Lease,
            vanished: Vanished::Fails("one has not acknowledged it within 12s"),
        }
    } else {
        Nature {
            name: "stream-over",
            ends: Ends::Written,
            vanished: Vanished::Done,
        }
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        let name = format!("{}-stream", site.app);
        if !ACKNOWLEDGED {
            let make = ["XGROUP", "CREATE", &name, GROUP, "0", "MKSTREAM"];
            let () = site.command(&make).await;
        }
        Stream {
            url: site.url.clone(),
            name,
            pattern: site.pattern(),
            terms,
            redis: site.redis(),
            client: site.client.clone(),
        }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let stream = target::stream(&self.url, &self.name);
        let stream = if ACKNOWLEDGED {
            stream.acknowledged(GROUP)
        } else {
            stream
        };
        let router = Router::new().route(&self.pattern, self.terms.of(stream));
        Mortal::start(redis, router, self.terms.lease).into()
    }

    async fn silence(&self) {
        let mut redis = self.redis.clone();
        let pending = ["XPENDING", &self.name, GROUP, "-", "+", "10"];
        let pending: Vec<(String, String, u64, u64)> = command(&mut redis, &pending).await;
        for (id, consumer, ..) in pending {
            let claim = ["XCLAIM", &self.name, GROUP, &consumer, "0", &id];
            let idle = ["IDLE", "3600000", "JUSTID"];
            let _: Vec<String> = command(&mut redis, &[&claim[..], &idle].concat()).await;
        }
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        let until = Instant::now() + patience;
        loop {
            let mut read = redis::cmd("XREADGROUP");
            read.arg(&["GROUP", GROUP, "one", "COUNT", "1"]);
            read.arg(&["STREAMS", &self.name, ">"]);
            // The call fails until the worker has made the group.
            let read: RedisResult<Option<Streams>> =
                read.query_async(&mut self.redis.clone()).await;
            if let Ok(Some(mut streams)) = read {
                let (id, fields) = streams.remove(0).1.remove(0);
                return Some(self.delivery(id, &fields));
            }
            if Instant::now() > until {
                return None;
            }
            sleep(ms(5)).await;
        }
    }
}

impl<const ACKNOWLEDGED: bool> Stream<ACKNOWLEDGED> {
    fn delivery(&self, id: String, fields: &Fields) -> Delivery {
        let name = self.name.clone();
        let lease = fields.get("lease").cloned();
        let (mut redis, client) = (self.redis.clone(), self.client.clone());
        let policy: RetryPolicy = self.terms.retry.parse().unwrap();
        Delivery {
            key: fields["key"].clone(),
            payload: fields["payload"].clone().into_bytes(),
            told: Some(Told::by_names(|name| fields[name].clone())),
            end: Box::new(move |end| {
                Box::pin(async move {
                    match (end, lease) {
                        (End::Done, _) => {
                            let _: u64 = command(&mut redis, &["XACK", &name, GROUP, &id]).await;
                        }
                        // HTTP passes it on in the same way.
                        (End::Failed(why), Some(lease)) => {
                            let lease: Lease = lease.parse().unwrap();
                            let settle = client.settle(&lease, Outcome::retry(why));
                            settle.retry(policy).await.unwrap();
                        }
                        (End::Failed(_), None) => unreachable!("nobody would hear of it"),
                    }
                })
            }),
        }
    }
}
