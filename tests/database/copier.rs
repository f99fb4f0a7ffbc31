//! The copier and the rebuild: the copy follows Redis, and brings back what Redis has lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use keyfall::doctor::Severity;
use keyfall::{Client, CopyTerms, JobState, Kind, NewJob, Outcome, Router, Shards, Worker};
use keyfall_database::{Copier, Database, Rebuild, Settings};
use keyfall_testing::patience::{AT_LAST, eventually, within};
use keyfall_testing::proxies::FreezingProxy;
use tokio::task::JoinHandle;

use crate::site::{Site, servers};

const HOUR: Duration = Duration::from_secs(3600);

/// A task that ends with it, as by a kill.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Site {
    async fn copier(&self) -> Running {
        let client = Client::connect(&self.redis).await.unwrap();
        let copier = Copier::new(client, self.database());
        Running(tokio::spawn(copier.run_until(std::future::pending())))
    }

    /// Sends a command to Redis.
    async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        self.ask(cmd).await
    }

    async fn ask<T: redis::FromRedisValue>(&self, cmd: redis::Cmd) -> T {
        let client = redis::Client::open(&*self.redis).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        cmd.query_async(&mut connection).await.unwrap()
    }

    /// All keys as they are now, without keys that expire meanwhile: a snapshot by hand.
    async fn snapshot(&self) -> Vec<(String, i64, Vec<u8>)> {
        let names: Vec<String> = self.command(&["KEYS", "*"]).await;
        let mut snapshot = Vec::new();
        for name in names {
            let value: Option<Vec<u8>> = self.command(&["DUMP", &name]).await;
            let ttl: i64 = self.command(&["PTTL", &name]).await;
            if let Some(value) = value.filter(|_| !matches!(ttl, -2 | 0)) {
                snapshot.push((name, ttl.max(0), value));
            }
        }
        snapshot
    }

    /// Brings a snapshot back.
    async fn roll_back(&self, snapshot: Vec<(String, i64, Vec<u8>)>) {
        let _: String = self.command(&["FLUSHALL"]).await;
        for (name, ttl, value) in snapshot {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(&name).arg(ttl).arg(value);
            let _: String = self.ask(restore).await;
        }
    }

    async fn copies(&self, terms: CopyTerms) {
        self.client.prefix(&self.kind()).copy(terms).await.unwrap();
    }

    /// Waits until no change waits, and all jobs are in the copy.
    async fn all_copied(&self) {
        self.all_copied_in(AT_LAST).await;
    }

    async fn all_copied_in(&self, time: Duration) {
        let kind = Kind::parse(&self.kind()).unwrap();
        within(time, "all changes are copied", async || {
            // The copy first: what it counts as filled may still wait in Redis.
            let copied = self.database().copied_kinds().await.ok()?;
            let is_filled = copied
                .iter()
                .any(|it| it.kind == kind.as_str() && it.is_filled);
            let changes = self.client.changes(&kind, Shards::All, 0).await.ok()?;
            let waits = changes
                .shards
                .iter()
                .any(|it| it.waiting > 0 || !it.is_noting);
            (is_filled && !waits).then_some(())
        })
        .await
        .unwrap();
    }

    /// The ids of the jobs that are to run, by the copy.
    async fn in_the_copy(&self) -> BTreeSet<String> {
        let read = "SELECT key FROM keyfall_copy WHERE ended_at IS NULL";
        let rows = self.sql.query(read, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, String>(0)).collect()
    }

    /// Waits until the doctor has found something of this severity, and returns what.
    async fn doctor(&self, check: &str, severity: Severity) -> String {
        eventually("the doctor knows", async || {
            let diagnosis = self.client.diagnose().await.ok()?;
            let mut findings = diagnosis.findings.iter();
            let it = findings.find(|it| it.check.id == check)?;
            (it.severity == severity).then(|| it.found.to_string())
        })
        .await
    }

    /// The ids of the jobs that are to run, by the ledger.
    async fn pending(&self) -> BTreeSet<String> {
        let (kind, mut pending, mut after) = (self.kind(), BTreeSet::new(), None);
        loop {
            let list = self.client.list(&kind, JobState::Pending).limit(1000);
            let page = match after.take() {
                Some(cursor) => list.after(cursor).await.unwrap(),
                None => list.await.unwrap(),
            };
            pending.extend(page.jobs.iter().map(|job| job.key().to_string()));
            after = page.next;
            if after.is_none() {
                return pending;
            }
        }
    }

    fn rebuild(&self, client: &Client) -> Rebuild {
        Rebuild::new(client.clone(), self.database()).by("anna")
    }
}

fn keys(site: &Site, ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| site.key(id)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copy_follows_what_becomes_of_each_job() {
    let (_redis, site) = Site::alone("copier-follows").await;
    let at = async |id: &str| {
        site.client
            .schedule(site.key(id), &id)
            .after(HOUR)
            .await
            .unwrap()
    };
    // Some are there before the copy begins.
    for id in ["before", "cancelled-before"] {
        at(id).await;
    }
    site.copies(CopyTerms::new()).await;
    let _copier = site.copier().await;
    site.all_copied().await;
    assert_eq!(
        site.in_the_copy().await,
        keys(&site, &["before", "cancelled-before"])
    );
    for id in ["kept", "moved", "cancelled", "run", "dies", "retries"] {
        at(id).await;
    }
    site.client.cancel(site.key("cancelled")).await.unwrap();
    site.client
        .cancel(site.key("cancelled-before"))
        .await
        .unwrap();
    site.client
        .reschedule(site.key("moved"))
        .after(2 * HOUR)
        .await
        .unwrap();
    let router = Router::new().route(
        &format!("{}:{{id}}", site.kind()),
        async |job: keyfall::Job| match job.key().id() {
            "dies" => Outcome::bury("it cannot be done"),
            "retries" => Outcome::retry_after(HOUR, "not yet"),
            _ => Outcome::Done,
        },
    );
    let worker = Worker::new(site.client.clone(), router);
    let worker = Running(tokio::spawn(async {
        worker.run_until(std::future::pending()).await.unwrap()
    }));
    for id in ["run", "dies", "retries"] {
        site.client.fire_now(site.key(id)).await.unwrap();
    }
    eventually("the runs have ended", async || {
        let stats = site.client.stats(&site.kind()).await.ok()?;
        (stats.done + stats.buried + stats.failed == 3).then_some(())
    })
    .await;
    site.all_copied().await;
    let expected = keys(&site, &["before", "kept", "moved", "retries"]);
    assert_eq!(site.in_the_copy().await, expected);
    let read = "SELECT due_at > now() + interval '90 minutes' FROM keyfall_copy WHERE key = $1";
    let moved = site
        .sql
        .query_one(read, &[&site.key("moved")])
        .await
        .unwrap();
    assert!(moved.get::<_, bool>(0));
    drop(worker);
    // Without terms the copy of the kind goes.
    site.client.prefix(&site.kind()).stop_copy().await.unwrap();
    eventually("the copy is gone", async || {
        site.in_the_copy().await.is_empty().then_some(())
    })
    .await;
}

/// What was copied of the first shard before belongs to another layout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reshard_while_a_copy_begins_leaves_all_jobs_in_the_copy() {
    const JOBS: usize = 30_000;
    let (_redis, site) = Site::alone("copier-reshard").await;
    let jobs = (0..JOBS).map(|n| NewJob::new(site.key(&n.to_string()), "").after(HOUR));
    for placed in site.client.schedule_many(jobs).await {
        placed.unwrap();
    }
    site.copies(CopyTerms::new()).await;
    let _copier = site.copier().await;
    eventually("the copy has begun", async || {
        (!site.in_the_copy().await.is_empty()).then_some(())
    })
    .await;
    let kind = Kind::parse(&site.kind()).unwrap();
    let shards = 4;
    site.client.reshard(kind.as_str(), shards).await.unwrap();
    eventually("the copy is whole", async || {
        let copied = site.database().copied_kinds().await.ok()?;
        let is_whole = copied
            .iter()
            .any(|it| it.kind == kind.as_str() && it.is_filled);
        let changes = site.client.changes(&kind, Shards::Present, 0).await.ok()?;
        let is_noted = changes
            .shards
            .iter()
            .all(|it| it.waiting == 0 && it.is_noting);
        (is_whole && is_noted && changes.shards.len() == usize::from(shards)).then_some(())
    })
    .await;
    assert_eq!(site.in_the_copy().await.len(), JOBS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_emptied_gets_its_jobs_back() {
    let (_redis, site) = Site::alone("copier-emptied").await;
    site.copies(CopyTerms::new()).await;
    let _copier = site.copier().await;
    for at in 0..500 {
        let key = site.key(at);
        let job = site.client.schedule(&key, &at).header("tenant", "acme");
        job.attempts(7).after(HOUR).await.unwrap();
    }
    for at in 0..100 {
        site.client.cancel(site.key(at)).await.unwrap();
    }
    site.all_copied().await;
    let fence_before = micros();
    let _: String = site.command(&["FLUSHALL"]).await;
    let why = eventually("the copy stops", async || {
        site.database().copy_state().await.ok()??.stopped
    })
    .await;
    assert!(why.contains("emptied"), "{why}");
    let found = site.doctor("copy-data-set", Severity::Error).await;
    assert!(found.ends_with(&why), "{found}");
    // A producer that has noticed nothing.
    let client = Client::connect(&site.redis).await.unwrap();
    client
        .schedule(site.key(200), "new")
        .after(HOUR)
        .await
        .unwrap();
    let missing = site.rebuild(&client).missing().await.unwrap();
    assert_eq!(
        (missing[0].copied, missing[0].missing, missing[0].overdue),
        (400, 399, 0)
    );
    assert_eq!(missing[0].first.len(), 3);
    assert_eq!(
        client.stats(&site.kind()).await.unwrap().pending,
        1,
        "it only looks"
    );
    let rebuilt = site.rebuild(&client).run().await.unwrap();
    assert_eq!((rebuilt[0].restored, rebuilt[0].present), (399, 1));
    let job = client.get(site.key(321)).await.unwrap().unwrap();
    assert_eq!(job.json::<u32>().unwrap(), 321);
    assert_eq!(job.headers().get("tenant"), Some("acme"));
    assert_eq!(job.max_attempts(), Some(7));
    assert_eq!(client.get(site.key(7)).await.unwrap().map(drop), None);
    let paused = client.paused().await.unwrap();
    assert!(paused.by.values().any(|by| by == "anna"), "{paused:?}");
    // A second rebuild finds all there, and the copy goes on.
    let again = site.rebuild(&client).run().await.unwrap();
    assert_eq!((again[0].restored, again[0].present), (0, 400));
    client.cancel(site.key(400)).await.unwrap();
    // The terms of the copy have come back, too.
    site.all_copied().await;
    assert_eq!(site.in_the_copy().await.len(), 399);
    site.doctor("copy-data-set", Severity::Ok).await;
    let found = site.doctor("copier-alive", Severity::Ok).await;
    assert_eq!(found, "a copier is at work");
    // Fencing values are higher than all before.
    let kind = Kind::parse(&site.kind()).unwrap();
    let changes = client.changes(&kind, Shards::All, 0).await.unwrap();
    assert!(changes.shards[0].fence > fence_before, "{changes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_rolled_back_is_found_out_and_mended() {
    let (_redis, site) = Site::alone("copier-rolled").await;
    site.copies(CopyTerms::new()).await;
    let copier = site.copier().await;
    let key = |id: &str| site.key(id);
    for id in ["old", "ended-later"] {
        site.client.schedule(key(id), id).after(HOUR).await.unwrap();
    }
    site.all_copied().await;
    let snapshot = site.snapshot().await;
    for round in 0..3 {
        site.client
            .schedule(key(&format!("new{round}")), "x")
            .after(HOUR)
            .await
            .unwrap();
        site.all_copied().await;
    }
    site.client.cancel(key("ended-later")).await.unwrap();
    site.all_copied().await;
    drop(copier);
    site.roll_back(snapshot).await;
    let client = Client::connect(&site.redis).await.unwrap();
    // It goes on as if nothing had happened.
    client
        .schedule(key("after"), "x")
        .after(HOUR)
        .await
        .unwrap();
    let _copier = site.copier().await;
    let why = eventually("the copy stops", async || {
        site.database().copy_state().await.ok()??.stopped
    })
    .await;
    assert!(why.contains("older than the copy"), "{why}");
    let rebuilt = site.rebuild(&client).run().await.unwrap();
    assert_eq!((rebuilt[0].restored, rebuilt[0].present), (3, 1));
    site.all_copied().await;
    // What the page says a rollback can take back: a cancel.
    let expected = ["old", "ended-later", "new0", "new1", "new2", "after"];
    assert_eq!(site.in_the_copy().await, keys(&site, &expected));
}

/// The number of the last batch alone does not show it: the copier can have been killed before it
/// acknowledged the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_has_lost_one_batch_and_changed_since_is_found_out() {
    for is_cancelled in [false, true] {
        let (_redis, site) = Site::alone("copier-one-batch").await;
        site.copies(CopyTerms::new()).await;
        let copier = site.copier().await;
        let schedule = async |id: &str| {
            let call = site.client.schedule(site.key(id), "").after(HOUR);
            call.await.unwrap()
        };
        for id in ["old", "kept"] {
            schedule(id).await;
        }
        site.all_copied().await;
        let snapshot = site.snapshot().await;
        match is_cancelled {
            false => drop(schedule("new").await),
            true => drop(site.client.cancel(site.key("old")).await.unwrap()),
        }
        site.all_copied().await;
        drop(copier);
        site.roll_back(snapshot).await;
        schedule("after").await;
        let _copier = site.copier().await;
        let why = eventually("the copy stops", async || {
            site.database().copy_state().await.ok()??.stopped
        })
        .await;
        assert!(why.contains("batch"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copiers_that_are_killed_leave_a_whole_copy() {
    let (_redis, site) = Site::alone("copier-kills").await;
    site.copies(CopyTerms::new()).await;
    let producer = {
        let (client, app) = (site.client.clone(), site.kind());
        tokio::spawn(async move {
            for at in 0..3000_u32 {
                let key = format!("{app}:{}", at % 700);
                match at % 7 {
                    0 => client.cancel(&key).await.map(drop),
                    _ => client.schedule(&key, &at).after(HOUR).await.map(drop),
                }
                .unwrap();
            }
        })
    };
    let _lives = site.copier().await;
    while !producer.is_finished() {
        let killed = site.copier().await;
        tokio::time::sleep(Duration::from_millis(rand_ms())).await;
        drop(killed);
    }
    producer.await.unwrap();
    site.all_copied().await;
    let expected = site.pending().await;
    assert!(expected.len() > 500, "{}", expected.len());
    assert_eq!(site.in_the_copy().await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_waits_in_redis_until_it_is_committed() {
    let (_redis, site) = Site::alone("copier-commit").await;
    site.copies(CopyTerms::new()).await;
    let schedule = async |id: &str| {
        let job = site.client.schedule(site.key(id), "x");
        job.after(HOUR).await.unwrap();
    };
    let copier = site.copier().await;
    schedule("first").await;
    site.all_copied().await;
    drop(copier);
    schedule("second").await;
    let network = FreezingProxy::at(&servers().postgres.socket().to_string_lossy()).await;
    let database = Database::open(&Settings::new(site.url_through(&network))).unwrap();
    // The whole statement: a transaction that begins names `READ COMMITTED`.
    network.freeze_before("COMMIT\0");
    let copier = Copier::new(Client::connect(&site.redis).await.unwrap(), database);
    let killed = Running(tokio::spawn(copier.run_until(std::future::pending())));
    eventually("a copier is about to commit", async || {
        network.is_frozen().then_some(())
    })
    .await;
    let kind = Kind::parse(&site.kind()).unwrap();
    let changes = site.client.changes(&kind, Shards::All, 0).await.unwrap();
    assert_eq!(changes.shards[0].waiting, 1);
    drop(killed);
    network.cut();
    let _next = site.copier().await;
    site.all_copied().await;
    assert_eq!(site.in_the_copy().await, keys(&site, &["first", "second"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copier_that_is_killed_while_it_copies_all_anew_is_replaced() {
    /// More than a copier notes ahead, and fewer than are scheduled.
    const MOST: u64 = 5_000;
    const MANY: u32 = 15_000;
    let (_redis, site) = Site::alone("copier-anew").await;
    site.copies(CopyTerms::new().waiting(MOST)).await;
    let schedule = async |ids: std::ops::Range<u32>| {
        let jobs = ids.map(|id| NewJob::new(site.key(id), &id).after(HOUR));
        for placed in site.client.schedule_many(jobs).await {
            placed.unwrap();
        }
    };
    let cancel = async |ids: std::ops::Range<u32>| {
        for id in ids {
            site.client.cancel(site.key(id)).await.unwrap();
        }
    };
    schedule(0..1_000).await;
    let copier = site.copier().await;
    site.all_copied().await;
    drop(copier);
    // Nobody notes that these end.
    schedule(1_000..MANY).await;
    cancel(0..100).await;
    let kind = Kind::parse(&site.kind()).unwrap();
    let changes = site.client.changes(&kind, Shards::All, 0).await.unwrap();
    assert!(!changes.shards[0].is_noting, "{changes:?}");
    let killed = site.copier().await;
    let copied = eventually("a part is copied anew", async || {
        let copied = "SELECT count(*) FROM keyfall_copy WHERE ended_at IS NULL";
        let copied: i64 = site.sql.query_one(copied, &[]).await.ok()?.get(0);
        (copied > 1_000).then_some(copied)
    })
    .await;
    drop(killed);
    assert!(copied < i64::from(MANY) - 1_000, "{copied} are copied");
    // Some of these were copied anew, and some were not.
    cancel(100..200).await;
    cancel(MANY - 200..MANY).await;
    let _next = site.copier().await;
    site.all_copied().await;
    let expected = site.pending().await;
    assert_eq!(expected.len(), MANY as usize - 400);
    assert_eq!(site.in_the_copy().await, expected);
}

/// What a copier notes to copy all jobs leaves room for the changes of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_change_do_not_keep_a_copy_with_the_least_bound_from_its_end() {
    const LEAST: u64 = 1_000;
    const MANY: u32 = 5_000;
    let (_redis, site) = Site::alone("copier-least").await;
    site.copies(CopyTerms::new().waiting(LEAST)).await;
    let jobs = (0..MANY).map(|id| NewJob::new(site.key(id), &id).after(HOUR));
    for placed in site.client.schedule_many(jobs).await {
        placed.unwrap();
    }
    let (client, keys) = (site.client.clone(), (0..MANY).map(|id| site.key(id)));
    let keys: Vec<String> = keys.collect();
    let changing = Running(tokio::spawn(async move {
        let mut turn = tokio::time::interval(Duration::from_millis(5));
        for key in keys.iter().cycle() {
            turn.tick().await;
            client.reschedule(key).after(2 * HOUR).await.unwrap();
        }
    }));
    let _copier = site.copier().await;
    let kind = site.kind();
    eventually("the copy is whole", async || {
        let copied = site.database().copied_kinds().await.ok()?;
        let mut kinds = copied.iter();
        kinds
            .any(|it| it.kind == kind && it.is_filled)
            .then_some(())
    })
    .await;
    drop(changing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_can_wait_until_it_is_copied() {
    let (_redis, site) = Site::alone("copier-durable").await;
    let key = site.key("a");
    let until_copied = async |ms| {
        site.client
            .until_copied(&key, Duration::from_millis(ms))
            .await
            .unwrap()
    };
    site.client.schedule(&key, "x").after(HOUR).await.unwrap();
    assert!(!until_copied(50).await, "nobody copies the kind");
    site.copies(CopyTerms::new()).await;
    let _copier = site.copier().await;
    assert!(until_copied(30_000).await);
    assert_eq!(site.in_the_copy().await, keys(&site, &["a"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_the_outbox_survive_the_loss_of_redis() {
    let (_redis, site) = Site::alone("copier-outbox").await;
    site.copies(CopyTerms::new()).await;
    // The kind is known to be copied, and then nobody copies.
    let copier = site.copier().await;
    site.client
        .schedule(site.key("first"), "x")
        .after(HOUR)
        .await
        .unwrap();
    site.all_copied().await;
    drop(copier);
    let relay = site.relay().await;
    for id in ["a", "b"] {
        let insert = "SELECT keyfall_schedule($1, '1', delay => '1 hour')";
        site.sql.execute(insert, &[&site.key(id)]).await.unwrap();
    }
    eventually("the rows are passed on", async || {
        let stats = site.client.stats(&site.kind()).await.ok()?;
        (stats.pending == 3).then_some(())
    })
    .await;
    site.is_empty().await;
    relay.kill().await;
    let _: String = site.command(&["FLUSHALL"]).await;
    let client = Client::connect(&site.redis).await.unwrap();
    let missing = site.rebuild(&client).missing().await.unwrap();
    assert_eq!((missing[0].missing, missing[0].kept), (1, 2));
    let rebuilt = site.rebuild(&client).run().await.unwrap();
    assert_eq!((rebuilt[0].restored, rebuilt[0].kept), (1, 2));
    let _relay = site.relay().await;
    eventually("the rows are passed on again", async || {
        let stats = client.stats(&site.kind()).await.ok()?;
        (stats.pending == 3).then_some(())
    })
    .await;
}

fn micros() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_micros()).unwrap()
}

/// Some milliseconds, by the clock.
fn rand_ms() -> u64 {
    micros() % 150
}

/// The jobs of the measurement of a rebuild.
const MANY: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn a_million_lost_jobs_are_brought_back_in_this_time() {
    let (_redis, site) = Site::alone("copier-million").await;
    let payload = "x".repeat(200);
    for from in (0..MANY).step_by(10_000) {
        let jobs =
            (from..from + 10_000).map(|id| NewJob::new(site.key(id), &payload).after(24 * HOUR));
        for scheduled in site.client.schedule_many(jobs).await {
            scheduled.unwrap();
        }
    }
    let told = |what: &str, began: Instant| {
        println!(
            "{MANY} jobs {what} in {:.0} s",
            began.elapsed().as_secs_f64()
        );
    };
    let began = Instant::now();
    site.copies(CopyTerms::new()).await;
    let copier = site.copier().await;
    // 70 s on an idle machine.
    site.all_copied_in(Duration::from_secs(600)).await;
    told("copied from Redis", began);
    drop(copier);
    let _: String = site.command(&["FLUSHALL", "ASYNC"]).await;
    let began = Instant::now();
    let missing = site.rebuild(&site.client).missing().await.unwrap();
    assert_eq!(missing[0].missing, MANY as u64);
    told("compared", began);
    let began = Instant::now();
    let rebuilt = site.rebuild(&site.client).run().await.unwrap();
    assert_eq!(rebuilt[0].restored, MANY as u64);
    told("brought back", began);
    assert_eq!(
        site.client.stats(&site.kind()).await.unwrap().pending,
        MANY as u64
    );
}
