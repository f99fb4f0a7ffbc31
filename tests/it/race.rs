//! Everything at once: many workers, and many producers that schedule, move, change and cancel
//! the same jobs at random.
//!
//! The calls follow from a seed, which a failure prints; `KEYFALL_SEED=… cargo test --test it
//! race` makes the same calls again, though not in the same order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use keyfall::embedded::Embedded;
use keyfall::{
    Client, Handler, IfAbsent, IfPresent, Job, JobState, Json, Outcome, RetryPolicy, Router,
    Updated, Worker,
};
use keyfall_testing::journals::{RunJournal, Wanted};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::runs::eventually;
use crate::site::{Running, Site, ms};

const WORKERS: usize = 4;
const PRODUCERS: u64 = 8;
const CALLS: usize = 900;
/// Few enough keys for the producers to meet on the same jobs.
const BUSY_KEYS: u64 = 300;

fn seed() -> u64 {
    let given = std::env::var("KEYFALL_SEED").ok();
    given.map_or_else(rand::random, |seed| {
        seed.parse().expect("KEYFALL_SEED is a number")
    })
}

/// One producer, which makes random calls and records each of them.
struct RandomProducer {
    client: Client,
    journal: Arc<RunJournal>,
    kind: String,
    random: StdRng,
    number: u64,
    calls: u64,
}

impl RandomProducer {
    async fn run(mut self) {
        for _ in 0..CALLS {
            self.call().await;
        }
    }

    fn delay(&mut self) -> Duration {
        // Half of the jobs are due at once: these calls meet most often.
        let at_once = self.random.random_bool(0.5);
        ms(if at_once {
            0
        } else {
            self.random.random_range(1..800)
        })
    }

    async fn call(&mut self) {
        self.calls += 1;
        let version = self.number * 1_000_000 + self.calls;
        let delay = self.delay();
        // A third of the jobs are scheduled once and then left alone: each has to run.
        if self.random.random_bool(0.33) {
            let key = format!("{}:alone-{version}", self.kind);
            return self.schedule(&key, version, delay).await;
        }
        let key = format!("{}:{}", self.kind, self.random.random_range(0..BUSY_KEYS));
        let client = self.client.clone();
        match self.random.random_range(0..12) {
            0..4 => self.schedule(&key, version, delay).await,
            4 => {
                let sent = self.journal.now();
                let call = client.schedule(&key, &version).after(delay).if_absent();
                if let IfAbsent::Scheduled(_) = call.await.unwrap() {
                    self.journal.scheduled(&key, sent, version, Wanted::Job);
                }
            }
            5 => {
                let sent = self.journal.now();
                let call = client.schedule(&key, &version).after(delay).if_present();
                if let IfPresent::Scheduled(_) = call.await.unwrap() {
                    self.journal.scheduled(&key, sent, version, Wanted::Job);
                }
            }
            6 => drop(client.reschedule(&key).after(delay).await.unwrap()),
            7 => drop(client.fire_now(&key).await.unwrap()),
            // Another payload makes another version of the existing job.
            8 => {
                let sent = self.journal.now();
                let wanted = match client.update_payload(&key, &version).await.unwrap() {
                    Updated::Absent => return,
                    Updated::Running => Wanted::PayloadOfNext,
                    _ => Wanted::Payload,
                };
                self.journal.scheduled(&key, sent, version, wanted);
            }
            _ => {
                let sent = self.journal.now();
                let answer = client.cancel(&key).await.unwrap();
                self.journal.cancelled(&key, sent, answer);
            }
        }
    }

    async fn schedule(&self, key: &str, version: u64, delay: Duration) {
        let sent = self.journal.now();
        let call = self.client.schedule(key, &version).after(delay);
        call.await.unwrap();
        self.journal.scheduled(key, sent, version, Wanted::Job);
    }
}

/// The outcome of a run follows from its version and its number among the runs of its key.
fn handler(journal: Arc<RunJournal>) -> impl Handler<(Job, Json<u64>), ()> {
    async move |job: Job, Json(version): Json<u64>| {
        let run = journal.begins(&job, version);
        let mut random = StdRng::seed_from_u64(version ^ ((run as u64) << 40));
        tokio::time::sleep(ms(random.random_range(0..12))).await;
        let outcome = match random.random_range(0..20) {
            0..3 => Outcome::retry("not this time"),
            3 => Outcome::again(),
            4 => Outcome::snooze(ms(random.random_range(1..50))),
            5 => Outcome::bury("no more"),
            _ => Outcome::Done,
        };
        journal.ends(&job, run);
        outcome
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_simultaneous_calls_lose_no_job_and_honour_cancels() {
    race("race", async |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_simultaneous_calls_survive_reshards() {
    race("race-shards", async |site| {
        for shards in [4, 2, 7, 1, 3] {
            let resharded = site.client.reshard(&site.kind(), shards).await.unwrap();
            assert_eq!(resharded.to, shards);
        }
    })
    .await;
}

/// Runs `amid` while producers and workers run.
async fn race(app: &str, amid: impl AsyncFnOnce(&Site)) {
    let seed = seed();
    eprintln!("KEYFALL_SEED={seed}");
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), app).await;
    let journal: Arc<RunJournal> = Arc::default();
    let policy = RetryPolicy::fixed(ms(20)).unwrap().attempts(4);
    let start = async || {
        let router = Router::new().route(
            &site.pattern(),
            handler(journal.clone()).retry(policy.clone()),
        );
        let client = Client::connect(&site.url).await.unwrap();
        Running::start(Worker::new(client, router).concurrency(64))
    };
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(start().await);
    }
    let mut producers = Vec::new();
    for number in 0..PRODUCERS {
        let producer = RandomProducer {
            client: Client::connect(&site.url).await.unwrap(),
            journal: journal.clone(),
            kind: site.kind(),
            random: StdRng::seed_from_u64(seed.wrapping_add(number)),
            number,
            calls: 0,
        };
        producers.push(tokio::spawn(producer.run()));
    }
    // A new worker replaces one worker after the other, as in a deployment.
    let deploy = async {
        for _ in 0..WORKERS {
            workers.remove(0).stop().await;
            workers.push(start().await);
        }
    };
    let first = async {
        eventually("the kind is used", async || {
            let stats = site.stats().await;
            (stats.accepted > 0).then_some(())
        })
        .await;
        amid(&site).await;
    };
    join(deploy, first).await;
    for producer in join_all(producers).await {
        producer.unwrap_or_else(|error| panic!("KEYFALL_SEED={seed}: {error}"));
    }
    let stats = site.all_ended().await;
    let sum = journal
        .check(&letters(&site).await)
        .unwrap_or_else(|wrong| panic!("KEYFALL_SEED={seed}: {}", wrong.join("\n")));
    assert!(
        sum.runs > 2000 && sum.cancels > 50,
        "KEYFALL_SEED={seed}: {sum:?}"
    );
    assert_eq!(stats.accepted, sum.accepted, "KEYFALL_SEED={seed}");
    assert_eq!(stats.lapsed, 0, "KEYFALL_SEED={seed}");
    assert!(stats.is_balanced(), "KEYFALL_SEED={seed}: {stats:?}");
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

/// The versions of all dead letters, by key.
async fn letters(site: &Site) -> HashMap<String, Vec<u64>> {
    let mut letters: HashMap<String, Vec<u64>> = HashMap::new();
    let mut cursor = None;
    loop {
        let list = site.client.list(&site.kind(), JobState::Dead);
        let page = match cursor.take() {
            Some(cursor) => list.after(cursor).await.unwrap(),
            None => list.await.unwrap(),
        };
        for letter in &page.jobs {
            let versions = letters.entry(letter.key().to_string()).or_default();
            versions.push(letter.json().unwrap());
        }
        cursor = page.next;
        if cursor.is_none() {
            return letters;
        }
    }
}
