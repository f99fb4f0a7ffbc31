//! Measures outbox and archive, and asserts no time: `make extremes` prints the figures.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keyfall::{ArchiveTerms, Client, Job, Kind, NewJob, Outcome, Router, Shards, Worker};
use keyfall_database::{Archiver, Relay};
use keyfall_testing::patience::eventually;
use tokio::time::sleep;
use tokio_postgres::types::ToSql;

use crate::site::{Site, connect};

/// The rows of the measurement of the rate, and how many of them while jobs fall due.
const ROWS: (u64, u64) = (100_000, 20_000);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn rows_are_passed_on_at_this_rate() {
    for (kinds, is_copied, jobs_fall_due) in [
        (1, false, false),
        (8, false, false),
        (1, true, false),
        (1, false, true),
        (8, false, true),
    ] {
        let (_redis, site) = Site::alone("rates-rows").await;
        let rows = if jobs_fall_due { ROWS.1 } else { ROWS.0 };
        if is_copied {
            // Its rows are kept when they were passed on.
            let copied = format!(
                "INSERT INTO keyfall_copy_kinds VALUES ('{}:it:kind0')",
                site.app
            );
            site.sql.batch_execute(&copied).await.unwrap();
        }
        let insert = format!(
            "INSERT INTO keyfall_outbox (key, payload, delay)
                SELECT '{}:it:kind' || n % {kinds} || ':' || n, repeat('x', 200)::bytea, '1 hour'
                FROM generate_series(1, {rows}) n",
            site.app
        );
        site.sql.execute(&insert, &[]).await.unwrap();
        let (client, key) = (site.client.clone(), site.key("due"));
        let falling_due = async move {
            let mut turns = tokio::time::interval(Duration::from_millis(100));
            loop {
                turns.tick().await;
                let job = client.schedule(&key, &()).after(Duration::from_millis(20));
                job.await.unwrap();
            }
        };
        let falling_due = jobs_fall_due.then(|| tokio::spawn(falling_due));
        let began = Instant::now();
        let relay = site.relay().await;
        site.is_empty().await;
        let rate = rows as f64 / began.elapsed().as_secs_f64();
        println!(
            "{rows} rows of {kinds} kinds, copied {is_copied}, jobs fall due {jobs_fall_due}: \
             {rate:.0} rows/s"
        );
        if let Some(falling_due) = falling_due {
            falling_due.abort();
        }
        drop(relay);
    }
}

/// The jobs of the measurement of the archive, on this many kinds.
const ENDS: u64 = 200_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn ends_are_archived_at_this_rate() {
    for kinds in [1, 8] {
        let (_redis, site) = Site::alone("rates-ends").await;
        let prefix = format!("{}:", site.app);
        let terms = ArchiveTerms::new();
        site.client.prefix(&prefix).archive(terms).await.unwrap();
        let jobs = (0..ENDS).map(|n| {
            let key = format!("{}:it:kind{}:{n}", site.app, n % kinds);
            NewJob::new(key, &n).after(Duration::from_secs(3600))
        });
        for placed in site.client.schedule_many(jobs).await {
            placed.unwrap();
        }
        let cancelled = site.client.prefix(&prefix).cancel().await.unwrap();
        assert_eq!(cancelled.done, ENDS);
        // Nothing falls due, and is known not to.
        sleep(Duration::from_secs(2)).await;
        let client = Client::connect(&site.redis).await.unwrap();
        let archiver = Archiver::new(client, site.database());
        let began = Instant::now();
        let archiver = tokio::spawn(archiver.run_until(std::future::pending()));
        for kind in 0..kinds {
            let kind = Kind::parse(&format!("{}:it:kind{kind}", site.app)).unwrap();
            eventually("nothing waits", async || {
                let ended = site.client.ended(&kind, Shards::Present, 1).await.unwrap();
                (ended.waiting == 0).then_some(())
            })
            .await;
        }
        let rate = ENDS as f64 / began.elapsed().as_secs_f64();
        println!("{ENDS} ends of {kinds} kinds: {rate:.0} ends/s");
        archiver.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn a_commit_is_passed_on_after_this_time() {
    let site = Site::new("rates-commit").await;
    let _relay = site.relay().await;
    let (caller, looking) = (
        connect(&site.url).await,
        Client::connect(&site.redis).await.unwrap(),
    );
    let schedule = "SELECT keyfall_schedule($1, delay => '1 hour')";
    let mut times = Vec::new();
    for id in 0..300 {
        let key = site.key(id);
        caller.execute(schedule, &[&key]).await.unwrap();
        let committed = Instant::now();
        while looking.get(&key).await.unwrap().is_none() {
            sleep(Duration::from_micros(200)).await;
        }
        times.push(committed.elapsed());
    }
    times.sort();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "from the commit to Redis: p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms",
        at(0.5),
        at(0.9),
        at(0.99)
    );
}

/// The rounds of the measurement of lateness, each beside every load, and the jobs of each.
const ROUNDS: usize = 4;
const JOBS: u64 = 1_500;

/// Whether a job falls due when a load has lasted for more than five seconds. Pauses are shorter then.
const fn is_later(number: u64) -> bool {
    number >= JOBS / 2
}

/// What goes on beside the jobs whose lateness is measured.
#[derive(Debug, Clone, Copy)]
enum Beside {
    Nothing,
    /// PostgreSQL computes something on one connection, and Redis has nothing to do with it.
    Computing,
    /// The rows of `Passing` are written, into a table that no relay reads.
    Writing(u64),
    /// Rows of so many kinds that the relay passes on, and records that the archiver stores.
    Passing(u64),
}

/// Jobs of another kind, due one after the other. All loads are measured in turn: the machine changes as
/// well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn claims_beside_a_busy_relay_and_archiver_are_so_late() {
    let (_redis, site) = Site::alone("rates-late").await;
    let loaded = format!("{}:load:", site.app);
    let terms = ArchiveTerms::new();
    site.client.prefix(&loaded).archive(terms).await.unwrap();
    // As a daemon does, with one client for both.
    let (redis, database) = (site.redis.clone(), site.database());
    let passing = async move {
        let client = Client::connect(&redis).await.unwrap();
        let relay = Relay::new(client.clone(), database.clone());
        let archiver = Archiver::new(client, database);
        tokio::join!(relay.run_until(pending()), archiver.run_until(pending()));
    };
    let passing = tokio::spawn(passing);
    let lags: Arc<Mutex<Vec<(bool, Duration)>>> = Arc::default();
    let noted = lags.clone();
    let router = Router::new().route(&format!("{}:{{id}}", site.kind()), async move |job: Job| {
        let (_, number) = job.key().id().rsplit_once('-').unwrap();
        let is_later = is_later(number.parse().unwrap());
        noted.lock().unwrap().push((is_later, job.lag()));
        Outcome::Done
    });
    let worker = Worker::new(site.client.clone(), router);
    let worker = tokio::spawn(worker.run_until(std::future::pending()));
    let loads = [
        Beside::Nothing,
        Beside::Computing,
        Beside::Writing(1),
        Beside::Passing(1),
        Beside::Writing(8),
        Beside::Passing(8),
    ];
    let unread = "CREATE TABLE unread_outbox (LIKE keyfall_outbox INCLUDING ALL)";
    site.sql.batch_execute(unread).await.unwrap();
    let mut measured = loads.map(|_| [Vec::new(), Vec::new()]);
    let mut rows = 0_u64;
    for round in 0..ROUNDS {
        for (number_of_load, (beside, all)) in loads.into_iter().zip(&mut measured).enumerate() {
            let jobs = (0..JOBS).map(|number| {
                let key = site.key(format_args!("{round}-{number_of_load}-{number}"));
                let later = if is_later(number) { 1_000 } else { 0 };
                NewJob::new(key, &()).after(Duration::from_millis(500 + 6 * number + later))
            });
            for placed in site.client.schedule_many(jobs).await {
                placed.unwrap();
            }
            eventually("all have run", async || {
                match beside {
                    Beside::Nothing => {}
                    Beside::Computing => {
                        let compute = "SELECT count(sqrt(n)) FROM generate_series(1, 200000) n";
                        site.sql.query_one(compute, &[]).await.unwrap();
                    }
                    Beside::Writing(kinds) | Beside::Passing(kinds) => {
                        let is_passed_on = matches!(beside, Beside::Passing(_));
                        let table = if is_passed_on {
                            "keyfall_outbox"
                        } else {
                            "unread_outbox"
                        };
                        // Each job is cancelled by a later row, and leaves a record.
                        let insert = format!(
                            "INSERT INTO {table} (op, key, delay)
                            SELECT op, $1 || n % $3::bigint || ':' || $2::bigint + n,
                                CASE op WHEN 'schedule' THEN interval '1 hour' END
                            FROM generate_series(1, 500) n, unnest(ARRAY['schedule', 'cancel']) op"
                        );
                        let (at, kinds) = (rows.cast_signed(), kinds.cast_signed());
                        let values: [&(dyn ToSql + Sync); 3] = [&loaded, &at, &kinds];
                        site.sql.execute(&insert, &values).await.unwrap();
                        rows += if is_passed_on { 500 } else { 0 };
                    }
                }
                (lags.lock().unwrap().len() as u64 == JOBS).then_some(())
            })
            .await;
            for (is_later, lag) in lags.lock().unwrap().drain(..) {
                all[usize::from(is_later)].push(lag);
            }
            site.is_empty().await;
            for kind in 0..8 {
                let kind = Kind::parse(&format!("{loaded}{kind}")).unwrap();
                eventually("nothing waits", async || {
                    let ended = site.client.ended(&kind, Shards::Present, 1).await.unwrap();
                    (ended.waiting == 0).then_some(())
                })
                .await;
            }
        }
    }
    for (half, when) in ["at first", "later"].into_iter().enumerate() {
        let mut alone = None;
        for (beside, halves) in loads.iter().zip(&mut measured) {
            let all = &mut halves[half];
            all.sort();
            let at = |share: usize| all[all.len() * share / 100].as_secs_f64() * 1e3;
            let (p50, p99) = (at(50), at(99).max(0.001));
            let times = p99 / *alone.get_or_insert(p99);
            println!("{beside:?}, {when}: late by {p50:.1} ms, p99 {p99:.1} ms, {times:.2} times");
        }
    }
    println!("{rows} jobs of the outbox are in the archive");
    passing.abort();
    worker.abort();
}
