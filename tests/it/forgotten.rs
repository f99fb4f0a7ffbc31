//! Streams whose Redis forgets entries, or trims unread ones: a job never counts as done unless a
//! consumer had it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::target::{Stream, stream};
use keyfall::{Handler, RetryPolicy, Router, Stats};
use redis::{RedisResult, Value};
use tokio::task::JoinHandle;

use crate::runs::{Gate, eventually};
use crate::site::{HOUR, Running, Site, command, connect, ms};

const GROUP: &str = "closers";
pub(crate) const NAME: &str = "{orders}";

/// The lease of an entry, which passes before it is written again.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

type Streams = Vec<(String, Vec<(String, HashMap<String, String>)>)>;

/// Jobs on one Redis, and the stream on another one.
pub(crate) struct Apart {
    pub(crate) site: Site,
    /// The URL of the stream for workers.
    pub(crate) url: String,
    /// The servers; one of them has the stream.
    pub(crate) servers: Vec<String>,
}

/// The reaction of consumers to an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    Ack,
    AckAndDelete,
    DeleteAndAck,
}

/// A consumer, and the keys of all jobs that it got.
pub(crate) struct Consumer {
    stop: Gate,
    given: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Consumer {
    async fn stop(self) -> BTreeSet<String> {
        self.stop.open();
        self.task.await.unwrap();
        Arc::into_inner(self.given).unwrap().into_inner().unwrap()
    }
}

/// Reads and acknowledges entries. The caller ignores errors of servers that are away or do not
/// have the stream or the group.
async fn consume(url: &str, habit: Habit, given: &Mutex<BTreeSet<String>>) -> RedisResult<()> {
    let redis = redis::Client::open(url)?;
    let mut redis = redis.get_multiplexed_async_connection().await?;
    let read = ["GROUP", GROUP, "one", "COUNT", "10", "STREAMS", NAME, ">"];
    let read = redis::cmd("XREADGROUP").arg(&read).to_owned();
    let read: Option<Streams> = read.query_async(&mut redis).await?;
    for (id, fields) in read.into_iter().flatten().flat_map(|(_, entries)| entries) {
        given.lock().unwrap().insert(fields["key"].clone());
        let ack = ["XACK", NAME, GROUP, &id];
        let delete = ["XDEL", NAME, &id];
        let does: &[&[&str]] = match habit {
            Habit::Ack => &[&ack],
            Habit::AckAndDelete => &[&ack, &delete],
            Habit::DeleteAndAck => &[&delete, &ack],
        };
        for words in does {
            redis::Cmd::new()
                .arg(words)
                .query_async::<u64>(&mut redis)
                .await?;
        }
    }
    Ok(())
}

/// A server that keeps only the data that `SAVE` has written.
async fn forgetful() -> Embedded {
    let options = Embedded::options().args(["--appendonly", "no", "--save", ""]);
    options.start().await.unwrap()
}

impl Apart {
    async fn new(app: &str, redis: &Embedded) -> Self {
        Apart {
            site: Site::new(app).await,
            url: redis.url(),
            servers: vec![redis.url()],
        }
    }

    fn stream(&self) -> Stream {
        stream(&self.url, NAME).acknowledged(GROUP)
    }

    fn serve(&self, stream: Stream, lease: Duration) -> Running {
        let patient = RetryPolicy::fixed(ms(10)).unwrap().attempts(10_000);
        let route = stream.lease(lease).retry(patient);
        self.site
            .serve(Router::new().route(&self.site.pattern(), route))
    }

    pub(crate) fn serve_for(&self, lease: Duration) -> Running {
        self.serve(self.stream(), lease)
    }

    pub(crate) fn consumer(&self, habit: Habit) -> Consumer {
        let (stop, given) = (Gate::closed(), Arc::<Mutex<BTreeSet<String>>>::default());
        let (servers, stopped, all) = (self.servers.clone(), stop.clone(), given.clone());
        let task = tokio::spawn(async move {
            let stopped = stopped.passed();
            tokio::pin!(stopped);
            while tokio::time::timeout(ms(10), &mut stopped).await.is_err() {
                for server in &servers {
                    let _: RedisResult<()> = consume(server, habit, &all).await;
                }
            }
        });
        Consumer { stop, given, task }
    }

    /// Sends a command to the first server.
    async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        command(&mut connect(&self.servers[0]).await, words).await
    }

    /// Schedules some jobs and returns their keys.
    pub(crate) async fn schedule(&self, name: &str, count: usize) -> BTreeSet<String> {
        let keys: BTreeSet<String> = (0..count)
            .map(|number| self.site.key(format!("{name}{number}")))
            .collect();
        for key in &keys {
            self.site.client.schedule(key, &1).await.unwrap();
        }
        keys
    }

    /// Waits until this number of jobs are written and not ended.
    pub(crate) async fn are_out(&self, count: u64) {
        eventually("they are written", async || {
            for server in &self.servers {
                let redis = redis::Client::open(&**server).ok()?;
                let Ok(mut redis) = redis.get_multiplexed_async_connection().await else {
                    continue;
                };
                let length = redis::Cmd::new().arg(&["XLEN", NAME]).to_owned();
                if let Ok(length) = length.query_async::<u64>(&mut redis).await
                    && length >= count
                {
                    return Some(());
                }
            }
            None
        })
        .await;
    }

    pub(crate) async fn are_done(&self, count: usize) {
        eventually("they are done", async || {
            (self.site.stats().await.done >= count as u64).then_some(())
        })
        .await;
    }

    /// A consumer gets one job; before it reads the next 20, the server is disturbed; then three
    /// more jobs follow. Each done job was given to a consumer.
    pub(crate) async fn survives(
        &self,
        habit: Habit,
        lease: Duration,
        prepare: impl AsyncFnOnce(),
        strike: impl AsyncFnOnce(),
    ) -> Stats {
        let worker = self.serve_for(lease);
        let mut all = self.schedule("first", 1).await;
        let consumer = self.consumer(habit);
        self.are_done(1).await;
        let mut given = consumer.stop().await;
        prepare().await;
        all.extend(self.schedule("unread", 20).await);
        self.are_out(20).await;
        strike().await;
        all.extend(self.schedule("later", 3).await);
        let consumer = self.consumer(habit);
        self.are_done(all.len()).await;
        given.extend(consumer.stop().await);
        assert_eq!(given, all, "all are done");
        let stats = self.site.all_ended().await;
        assert_eq!((stats.done, stats.dead), (24, 0));
        worker.stop().await;
        self.site.assert_balanced().await;
        stats
    }
}

/// The server is killed and comes back with the data of the last `SAVE`, if there was one.
async fn goes_back(app: &str, saves: bool, habit: Habit) {
    let mut redis = forgetful().await;
    let apart = Apart::new(app, &redis).await;
    let save = async || {
        if saves {
            let () = apart.ask(&["SAVE"]).await;
        }
    };
    let restart = async || {
        redis.kill_server().await.unwrap();
        redis.restart().await.unwrap();
    };
    apart.survives(habit, LEASE, save, restart).await;
}

#[tokio::test]
async fn entries_missing_from_a_snapshot_are_written_again() {
    goes_back("forgot-snapshot", true, Habit::Ack).await;
}

#[tokio::test]
async fn missing_entries_are_written_again_for_consumers_that_delete() {
    goes_back("forgot-deleted", true, Habit::AckAndDelete).await;
}

#[tokio::test]
async fn an_emptied_server_gets_its_entries_again() {
    goes_back("forgot-all", false, Habit::Ack).await;
}

/// The reader of an entry may still have its job, so the worker waits for its lease, but not for
/// later entries that no consumer has read.
#[tokio::test]
async fn forgotten_entries_do_not_count_towards_the_limit() {
    let mut redis = forgetful().await;
    let apart = Apart::new("forgot-room", &redis).await;
    let route = apart.stream().lease(HOUR).concurrency(5);
    let router = Router::new().route(&apart.site.pattern(), route);
    let worker = apart.site.serve(router);
    apart.schedule("unread", 5).await;
    apart.are_out(5).await;
    redis.kill_server().await.unwrap();
    redis.restart().await.unwrap();
    let later = apart.schedule("later", 5).await;
    let consumer = apart.consumer(Habit::Ack);
    apart.are_done(5).await;
    assert_eq!(consumer.stop().await, later);
    worker.stop().await;
}

/// Commands in a closed connection were not carried out, and no worker waits for the leases of
/// their jobs.
#[tokio::test]
async fn jobs_after_a_restart_are_written_at_once() {
    let mut redis = forgetful().await;
    let apart = Apart::new("forgot-idle", &redis).await;
    let worker = apart.serve_for(HOUR);
    for round in 1..=8 {
        let consumer = apart.consumer(Habit::Ack);
        let keys = apart.schedule(&format!("round{round}-"), 1).await;
        apart.are_done(round).await;
        assert_eq!(consumer.stop().await, keys);
        redis.kill_server().await.unwrap();
        redis.restart().await.unwrap();
    }
    worker.stop().await;
    apart.site.assert_balanced().await;
}

#[tokio::test]
async fn entries_trimmed_unread_come_again_though_consumers_delete() {
    let redis = forgetful().await;
    let apart = Apart::new("trimmed-unread", &redis).await;
    let worker = apart.serve(apart.stream().keep(10), LEASE);
    let all = apart.schedule("job", 250).await;
    eventually("all were written, and the first ones trimmed", async || {
        let length: usize = apart.ask(&["XLEN", NAME]).await;
        (apart.site.stats().await.leased == 250 && length < 200).then_some(())
    })
    .await;
    let consumer = apart.consumer(Habit::AckAndDelete);
    apart.are_done(250).await;
    assert_eq!(consumer.stop().await, all, "all were done");
    assert_eq!(apart.site.all_ended().await.dead, 0);
    worker.stop().await;
    apart.site.assert_balanced().await;
}

#[tokio::test]
async fn entries_trimmed_or_deleted_by_hand_unread_come_again() {
    let redis = forgetful().await;
    let apart = Apart::new("trimmed-by-hand", &redis).await;
    let worker = apart.serve(apart.stream(), LEASE);
    let mut all = apart.schedule("trimmed", 10).await;
    apart.are_out(10).await;
    let written = format!("{NAME}:{GROUP}:written");
    let _: u64 = apart.ask(&["XTRIM", NAME, "MAXLEN", "0"]).await;
    // The worker notices the loss within half a second, and forgets that the jobs were written.
    eventually("it is seen", async || {
        let notes: Vec<String> = apart.ask(&["HKEYS", &written]).await;
        notes.iter().all(|note| !note.contains('-')).then_some(())
    })
    .await;
    all.extend(apart.schedule("later", 3).await);
    let consumer = apart.consumer(Habit::AckAndDelete);
    apart.are_done(13).await;
    assert_eq!(consumer.stop().await, all, "all were done");
    worker.stop().await;
    apart.site.assert_balanced().await;
}

#[tokio::test]
async fn entries_that_another_route_trims_unread_come_again() {
    let redis = forgetful().await;
    let apart = Apart::new("trimmed-by-route", &redis).await;
    let worker = apart.serve_for(LEASE);
    let mut all = apart.schedule("job", 50).await;
    apart.are_out(50).await;
    worker.drop_it().await;
    // Another process that does not know the group trims the stream while no worker looks.
    let kind = format!("{}:it:log", apart.site.app);
    let route = stream(&apart.url, NAME).keep(10);
    let other = (apart.site).serve(Router::new().route(&format!("{kind}:*"), route));
    for number in 0..300 {
        let key = format!("{kind}:{number}");
        apart.site.client.schedule(&key, &1).await.unwrap();
        all.insert(key);
    }
    eventually("they are written", async || {
        let stats = apart.site.client.stats(&kind).await.unwrap();
        (stats.done == 300).then_some(())
    })
    .await;
    let length: u64 = apart.ask(&["XLEN", NAME]).await;
    assert!(length < 200, "{length} are kept");
    let consumer = apart.consumer(Habit::AckAndDelete);
    eventually("all are read", async || {
        let length: u64 = apart.ask(&["XLEN", NAME]).await;
        (length == 0).then_some(())
    })
    .await;
    let worker = apart.serve_for(LEASE);
    apart.are_done(50).await;
    let given = consumer.stop().await;
    let jobs = |keys: BTreeSet<String>| -> Vec<String> {
        let mut keys: Vec<String> = keys.into_iter().collect();
        keys.retain(|key| !key.starts_with(&kind));
        keys
    };
    assert_eq!(jobs(given), jobs(all), "all were done");
    worker.stop().await;
    other.stop().await;
    apart.site.assert_balanced().await;
}

#[tokio::test]
async fn entries_before_a_group_that_a_consumer_creates_come_again() {
    let redis = forgetful().await;
    let apart = Apart::new("left-out", &redis).await;
    let worker = apart.serve_for(LEASE);
    let all = apart.schedule("job", 5).await;
    apart.are_out(5).await;
    // The entries stay, and the new group begins behind them.
    let mut anew = redis::pipe();
    anew.atomic();
    anew.cmd("XGROUP").arg(&["DESTROY", NAME, GROUP]);
    anew.cmd("XGROUP").arg(&["CREATE", NAME, GROUP, "$"]);
    let mut server = connect(&apart.url).await;
    let () = anew.query_async(&mut server).await.unwrap();
    let consumer = apart.consumer(Habit::Ack);
    apart.are_done(5).await;
    assert_eq!(consumer.stop().await, all, "all were done");
    worker.stop().await;
    apart.site.assert_balanced().await;
}

#[tokio::test]
async fn consumers_can_acknowledge_and_delete_in_either_order() {
    for (app, habit) in [
        ("ack-delete", Habit::AckAndDelete),
        ("delete-ack", Habit::DeleteAndAck),
    ] {
        let redis = forgetful().await;
        let apart = Apart::new(app, &redis).await;
        let worker = apart.serve(apart.stream(), HOUR);
        let consumer = apart.consumer(habit);
        let all = apart.schedule("job", 200).await;
        let stats = apart.site.all_ended().await;
        assert_eq!((stats.done, stats.failed, stats.lapsed), (200, 0, 0));
        assert_eq!(consumer.stop().await, all);
        worker.stop().await;
        apart.site.assert_balanced().await;
    }
}

#[tokio::test]
async fn an_unacknowledged_deleted_entry_is_a_failed_attempt() {
    let redis = forgetful().await;
    let apart = Apart::new("only-deleted", &redis).await;
    let worker = apart.serve(apart.stream(), LEASE);
    apart.schedule("job", 20).await;
    apart.are_out(20).await;
    let read = ["XREADGROUP", "GROUP", GROUP, "one", "STREAMS", NAME, ">"];
    let read: Streams = eventually("they are read", async || {
        let mut redis = connect(&apart.url).await;
        let read = redis::Cmd::new().arg(&read).to_owned();
        read.query_async(&mut redis).await.ok()?
    })
    .await;
    let entries = &read[0].1;
    assert_eq!(entries.len(), 20);
    for (id, _) in entries {
        let _: u64 = apart.ask(&["XDEL", NAME, id]).await;
    }
    // The jobs come again, and now the consumer acknowledges.
    let consumer = apart.consumer(Habit::Ack);
    let stats = apart.site.all_ended().await;
    assert_eq!((stats.done, stats.failed), (20, 20));
    assert_eq!(consumer.stop().await.len(), 20);
    let pending: Vec<Value> = apart.ask(&["XPENDING", NAME, GROUP, "-", "+", "10"]).await;
    assert!(pending.is_empty(), "{pending:?}");
    worker.stop().await;
    apart.site.assert_balanced().await;
}
