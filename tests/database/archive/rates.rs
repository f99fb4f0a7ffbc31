//! Measures the archive, and asserts no time: `make extremes` prints the figures.

use std::time::Instant;

use keyfall_database::internals::{Row, store};

use super::plans::{fill, searches};
use super::{NOON, open, row};
use crate::site::Site;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn rows_are_stored_at_this_rate() {
    const ROWS: i64 = 100_000;
    for (batch, payload) in [(1_000, 0), (5_000, 0), (1_000, 200), (5_000, 200)] {
        let site = Site::new("archive-rates").await;
        let database = open(&site.url);
        let rows: Vec<Row> = (0..ROWS)
            .map(|n| {
                // As ids are that do not grow.
                let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed());
                Row {
                    payload: (payload > 0).then(|| vec![b'x'; payload].into()),
                    ..row(&format!("app:m:kind{}:{:016x}", n % 8, id), NOON + n * 50)
                }
            })
            .collect();
        let began = Instant::now();
        for batch in rows.chunks(batch) {
            store(&database, batch).await.unwrap();
        }
        let rate = ROWS as f64 / began.elapsed().as_secs_f64();
        println!("batches of {batch}, payloads of {payload} bytes: {rate:.0} rows/s");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn jobs_are_found_within_this_time() {
    let site = Site::new("archive-found").await;
    fill(&site, 2_000_000, 1_400).await;
    let database = open(&site.url);
    // The first search of a connection reads the catalogue of all partitions.
    for (name, query) in searches() {
        let mut times = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            database.archived(&query).await.unwrap();
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        let first = times[0];
        times.sort_by(f64::total_cmp);
        println!("{name}: first {first:.1} ms, median {:.1} ms", times[2]);
    }
}
