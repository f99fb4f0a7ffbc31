//! Many callers at once, through functions and clients, while their kind is resharded.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use keyfall::{Cancelled, Client, Placed, Router};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};

use super::site;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, connect, patient};

/// A caller with jobs of its own, which it changes through functions and through a client, so each
/// answer is known in advance.
struct FunctionCaller {
    kind: String,
    client: Client,
    redis: MultiplexedConnection,
    number: u64,
    random: StdRng,
    /// The number of calls that were refused because of a reshard. Each of them was repeated.
    refusals: u64,
    there: BTreeSet<String>,
    fired: BTreeSet<String>,
}

impl FunctionCaller {
    async fn new(site: &Site, number: u64) -> Self {
        FunctionCaller {
            kind: site.kind(),
            client: patient(&site.url).await,
            redis: connect(&site.url).await,
            number,
            random: StdRng::seed_from_u64(number),
            refusals: 0,
            there: BTreeSet::new(),
            fired: BTreeSet::new(),
        }
    }

    async fn fcall<T: FromRedisValue>(&mut self, name: &str, id: &str, args: &[&str]) -> T {
        let mut call = redis::cmd("FCALL");
        call.arg(format!("keyfall_{name}")).arg(1);
        call.arg(format!("{}:{id}", self.kind)).arg(args);
        loop {
            match call.query_async(&mut self.redis).await {
                Err(error) if error.code() == Some("RESHARDING") => self.refusals += 1,
                answer => return answer.unwrap(),
            }
        }
    }

    async fn goes_on_until(mut self, over: Arc<AtomicBool>) -> Self {
        while !over.load(Ordering::Relaxed) {
            self.call().await;
        }
        self
    }

    async fn call(&mut self) {
        let id = format!("{}-{}", self.number, self.random.random_range(0..40));
        let key = format!("{}:{id}", self.kind);
        let by_function = self.random.random_bool(0.7);
        match self.random.random_range(0..5) {
            0 | 1 => {
                let was_there = !self.there.insert(id.clone());
                if by_function {
                    let args = ["x", "EX", "3600"];
                    let (word, _): (String, u64) = self.fcall("schedule", &id, &args).await;
                    assert_eq!(
                        word,
                        ["created", "replaced"][usize::from(was_there)],
                        "{id}"
                    );
                } else {
                    let call = self.client.schedule(key, "").after(HOUR);
                    let expected = [Placed::Created, Placed::Replaced][usize::from(was_there)];
                    assert_eq!(call.await.unwrap().placed, expected, "{id}");
                }
            }
            2 => {
                let was_there = self.there.remove(&id);
                if by_function {
                    let word: String = self.fcall("cancel", &id, &[]).await;
                    assert_eq!(
                        word,
                        ["absent", "cancelled"][usize::from(was_there)],
                        "{id}"
                    );
                } else {
                    let expected = [Cancelled::Absent, Cancelled::Cancelled];
                    let cancelled = self.client.cancel(key).await.unwrap();
                    assert_eq!(cancelled, expected[usize::from(was_there)], "{id}");
                }
            }
            3 => {
                let answer: Value = self.fcall("get", &id, &[]).await;
                assert_eq!(answer != Value::Nil, self.there.contains(&id), "{id}");
            }
            _ => {
                let id = format!("fires-{}-{}", self.number, self.fired.len());
                let ahead = self.random.random_range(0..300).to_string();
                let args = ["x", "PX", &ahead];
                let (word, _): (String, u64) = self.fcall("schedule", &id, &args).await;
                assert_eq!(word, "created", "{id}");
                self.fired.insert(id);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reshard_under_load_neither_loses_nor_duplicates_jobs() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    worker.ready().await;
    // Enough jobs to make the move take a while.
    let mut there: BTreeSet<String> = site.has_many(2000).await.into_iter().collect();
    let over = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for number in 0..6 {
        let mut caller = FunctionCaller::new(&site, number).await;
        caller.call().await;
        callers.push(tokio::spawn(caller.goes_on_until(over.clone())));
    }
    for shards in [4, 2, 1] {
        site.client.reshard(&site.kind(), shards).await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    let (mut fired, mut refusals) = (BTreeSet::new(), 0);
    for caller in join_all(callers).await {
        let caller = caller.unwrap();
        there.extend(caller.there);
        fired.extend(caller.fired);
        refusals += caller.refusals;
    }
    assert!(refusals > 0, "no job was yet to be moved");
    let many = fired.len() as u64;
    let stats = eventually("all that is due has run", async || {
        let stats = site.stats().await;
        (stats.done >= many && stats.leased == 0).then_some(stats)
    })
    .await;
    assert_eq!(
        (stats.done, stats.pending),
        (many, there.len() as u64),
        "{stats:?}"
    );
    worker.stop().await;
    // A slow run may have been taken over: then the job began twice, and was done once.
    if stats.lapsed == 0 {
        let began = runs.take(fired.len()).await;
        let began: BTreeSet<String> = began.iter().map(|job| job.key().id().to_owned()).collect();
        assert_eq!(began, fired);
        runs.assert_no_more();
    }
    site.arrives(1, &there).await;
}
