//! Measures the copy, and asserts no time: `make extremes` prints the figures.

use std::time::Instant;

use super::{Change, KIND, copy, pending};
use crate::site::Site;

const JOBS: u64 = 1_000_000;

/// As ids are that do not grow.
fn id(n: u64) -> String {
    format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn job(n: u64, version: u64) -> Change {
    let mut change = pending(id(n), version);
    change.job.as_mut().unwrap().record = vec![b'x'; 300].into();
    change
}

fn ended(n: u64, version: u64) -> Change {
    super::ended(id(n), version)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for `make extremes`"]
async fn a_million_jobs_are_stored_changed_ended_and_read_at_these_rates() {
    let site = Site::new("copy-rates").await;
    let database = site.database();
    let told = |what: &str, jobs: u64, began: Instant| {
        let rate = jobs as f64 / began.elapsed().as_secs_f64();
        println!("{jobs} {what}: {rate:.0} a second");
    };
    let all = async |what: &str, jobs: u64, version: u64, of: fn(u64, u64) -> Change| {
        let began = Instant::now();
        for from in (0..jobs).step_by(2_000) {
            let changes: Vec<Change> = (from..from + 2_000).map(|n| of(n, version)).collect();
            copy(&database, &changes).await;
        }
        told(what, jobs, began);
    };
    all("jobs stored", JOBS, 1, job).await;
    all("jobs changed", 200_000, 2, job).await;
    all("jobs ended", 200_000, 3, ended).await;
    let began = Instant::now();
    assert_eq!(database.copied_kinds().await.unwrap()[0].pending, 800_000);
    println!("counted in {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    for limit in [1_000, 5_000] {
        let (mut after, mut read, began) = (None, 0, Instant::now());
        loop {
            let page = database.copied_pending(KIND, after.as_deref(), limit);
            let page = page.await.unwrap();
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.key.clone());
            read += page.len() as u64;
        }
        assert_eq!(read, 800_000);
        told(&format!("jobs read in pages of {limit}"), read, began);
    }
    let began = Instant::now();
    let swept = database.sweep_tombstones(std::time::Duration::ZERO).await;
    told("tombstones removed", swept.unwrap(), began);
    let began = Instant::now();
    assert!(database.forget_copy(KIND).await.unwrap());
    told("jobs forgotten", 800_000, began);
}
