//! Several workers that adopt the same keys, while some of them join, leave or die.

use std::collections::BTreeSet;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Handler, MissingKey, Router};

use crate::runs::{Recorder, Runs, eventually, recorder};
use crate::site::{Running, Site};

/// The approximate time between two heartbeats of an instance.
const BEAT: Duration = Duration::from_millis(800);

/// A site with its own server, and workers that adopt its kind and record their runs.
struct Crowd {
    _server: Embedded,
    site: Site,
    log: Recorder,
    runs: Runs,
}

impl Crowd {
    async fn at(app: &str) -> Self {
        let server = Embedded::start().await.unwrap();
        let site = Site::at(&server.url(), app).await;
        let (log, runs) = recorder();
        Crowd {
            _server: server,
            site,
            log,
            runs,
        }
    }

    async fn join(&self) -> Running {
        let route = self.log.done().adopt(MissingKey::Run);
        let worker = self
            .site
            .serve(Router::new().route(&self.site.pattern(), route));
        worker.ready().await;
        worker
    }

    /// Waits until this number of instances know each other.
    async fn so_many(&self, count: usize) {
        eventually("so many live", async || {
            (self.site.client.instances().await.unwrap().len() == count).then_some(())
        })
        .await;
        // Each instance reads the list with its next heartbeat.
        tokio::time::sleep(2 * BEAT).await;
    }

    /// Plays this number of frozen instances: to the others, they live, hear all events and have
    /// room, but do no work. They are gone soon after the task is aborted.
    async fn haunt(&self, count: usize) -> tokio::task::JoinHandle<()> {
        let live = self.site.client.instances().await.unwrap();
        let id = live[0].id.clone();
        let mut redis = self.site.redis();
        let ghosts = tokio::spawn(async move {
            loop {
                let get = ["HGET", "keyfall:instances", &id];
                let row: String = crate::site::command(&mut redis, &get).await;
                for number in 0..count {
                    let name = format!("ghost-{number}");
                    let set = ["HSET", "keyfall:instances", &name, &row];
                    let _: u64 = crate::site::command(&mut redis, &set).await;
                }
                tokio::time::sleep(BEAT / 4).await;
            }
        });
        self.so_many(1 + count).await;
        ghosts
    }

    /// The same command on the keys of these jobs, all in one call.
    async fn does(&self, ids: std::ops::Range<usize>, command: &str) {
        let mut all = redis::pipe();
        for id in ids {
            let mut words = command.split(' ');
            all.cmd(words.next().unwrap()).arg(self.site.key(id));
            all.arg(words.collect::<Vec<_>>());
        }
        let _: redis::Value = all.query_async(&mut self.site.redis()).await.unwrap();
    }

    async fn are_pending(&self, count: u64) {
        eventually("all are jobs", async || {
            (self.site.stats().await.pending == count).then_some(())
        })
        .await;
    }

    /// Lets all pending jobs run, each once.
    async fn run_all(mut self, count: usize) {
        self.does(0..count, "PEXPIRE 500").await;
        let jobs = self.runs.take(count).await;
        let ids: BTreeSet<String> = jobs.iter().map(|job| job.key().to_string()).collect();
        assert_eq!(ids.len(), count);
        assert!(jobs.iter().all(|job| job.attempt() == 1));
        let stats = self.site.all_ended().await;
        let seen = (stats.accepted, stats.replaced, stats.done);
        assert_eq!(seen, (count as u64, 0, count as u64), "{stats:?}");
        self.runs.assert_no_more();
        self.site.assert_balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_three_workers_hear_of_is_one_job() {
    let crowd = Crowd::at("adopt-three").await;
    let workers = [crowd.join().await, crowd.join().await, crowd.join().await];
    crowd.so_many(3).await;
    crowd.does(0..300, "SET v EX 900").await;
    crowd.does(0..300, "EXPIRE 1800").await;
    crowd.are_pending(300).await;
    crowd.run_all(300).await;
    for worker in workers {
        worker.stop().await;
    }
}

/// Half of the keys belong to a frozen worker, which the other worker takes for alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_worker_takes_over_the_keys_of_a_frozen_first() {
    let crowd = Crowd::at("adopt-second").await;
    let worker = crowd.join().await;
    let ghosts = crowd.haunt(1).await;
    crowd.does(0..100, "SET v EX 900").await;
    crowd.are_pending(100).await;
    crowd.does(0..100, "EXPIRE 1800").await;
    crowd.run_all(100).await;
    ghosts.abort();
    worker.stop().await;
}

/// For some of the keys, the two frozen workers are the first two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_workers_search_when_first_and_second_are_frozen() {
    let crowd = Crowd::at("adopt-rest").await;
    let worker = crowd.join().await;
    let ghosts = crowd.haunt(2).await;
    let mut count = 0;
    // A delayed test sends no heartbeats for the ghosts, and the worker finds them gone.
    eventually("those of others are left to them", async || {
        crowd.does(count..count + 100, "SET v EX 900").await;
        count += 100;
        let pending = eventually("the others are jobs", async || {
            // Only ghosts look at one key of three.
            let pending = crowd.site.stats().await.pending as usize;
            (pending > count - 60).then_some(pending)
        })
        .await;
        (pending < count).then_some(())
    })
    .await;
    ghosts.abort();
    crowd.are_pending(count as u64).await;
    crowd.run_all(count).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_and_leaving_workers_miss_nothing() {
    let crowd = Crowd::at("adopt-shift").await;
    let first = crowd.join().await;
    crowd.does(0..100, "SET v EX 900").await;
    let (second, ()) = tokio::join!(crowd.join(), crowd.does(100..200, "SET v EX 900"));
    crowd.does(200..300, "SET v EX 900").await;
    let stopping = first.told_to_stop();
    crowd.does(300..400, "SET v EX 900").await;
    stopping.await.unwrap().unwrap();
    crowd.does(400..500, "SET v EX 900").await;
    crowd.are_pending(500).await;
    crowd.run_all(500).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_continues_the_search_of_a_killed_one() {
    const KEYS: usize = 10_000;
    let crowd = Crowd::at("adopt-search").await;
    // Another instance holds the search, so both workers wait for their turn.
    let searching = "keyfall:searching";
    let () = crowd
        .site
        .command(&["SET", searching, "another", "PX", "60000"])
        .await;
    for begin in (0..KEYS).step_by(5000) {
        crowd.does(begin..begin + 5000, "SET v EX 3600").await;
    }
    let mut workers = vec![crowd.join().await, crowd.join().await];
    crowd.so_many(2).await;
    let live = crowd.site.client.instances().await.unwrap();
    let ids: Vec<String> = live.into_iter().map(|one| one.id).collect();
    let _: u64 = crowd.site.command(&["DEL", searching]).await;
    let glob = format!("{}:*", crowd.site.kind());
    let progress = async || {
        let text: Option<String> = crowd.site.command(&["HGET", "keyfall:search", &glob]).await;
        let text = text?;
        let (began, cursor) = text.split_once(' ').unwrap();
        Some((began.to_owned(), cursor.to_owned()))
    };
    let mut over = String::new();
    let (who, began) = eventually("one of them searches", async || {
        let who: Option<String> = crowd.site.command(&["GET", searching]).await;
        let (began, cursor) = progress().await?;
        if cursor == "0" && began != over {
            // The search was over before the test looked. A worker that has to subscribe again
            // searches again.
            over = began;
            let cut = ["CLIENT", "KILL", "TYPE", "pubsub"];
            let _: u64 = crowd.site.command(&cut).await;
            return None;
        }
        let place = ids.iter().position(|id| Some(id) == who.as_ref())?;
        (cursor != "0").then_some((place, began))
    })
    .await;
    workers.remove(who).drop_it().await;
    crowd.are_pending(KEYS as u64).await;
    eventually("the search has ended", async || {
        (progress().await?.1 == "0").then_some(())
    })
    .await;
    assert_eq!(progress().await.unwrap().0, began, "it did not begin anew");
    workers.remove(0).stop().await;
    crowd.site.assert_balanced().await;
}
