//! Measures the outbox, and asserts no time: `make extremes` prints the figures.

use std::time::{Duration, Instant};

use keyfall::Client;
use tokio::time::sleep;

use crate::site::{Site, connect};

/// The rows of the measurement of the rate, on this many kinds.
const ROWS: u64 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn rows_are_passed_on_at_this_rate() {
    for kinds in [1, 8] {
        let site = Site::new(&format!("rates-{kinds}")).await;
        let insert = format!(
            "INSERT INTO keyfall_outbox (key, payload, delay)
                SELECT '{}:it:kind' || n % {kinds} || ':' || n, repeat('x', 200)::bytea, '1 hour'
                FROM generate_series(1, {ROWS}) n",
            site.app
        );
        site.sql.execute(&insert, &[]).await.unwrap();
        let began = Instant::now();
        let relay = site.relay().await;
        site.is_empty().await;
        let rate = ROWS as f64 / began.elapsed().as_secs_f64();
        println!("{ROWS} rows of {kinds} kinds: {rate:.0} rows/s");
        drop(relay);
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
