//! How close a kind comes to its limit, with one worker and with many.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Job, Limit, NewJob, Router};

use crate::runs::recorder;
use crate::site::Site;

const JOBS: usize = 2000;

/// The share of the rate that is used while jobs wait, by the clock of Redis.
fn used(jobs: &[Job], burst: u64, rate: f64) -> f64 {
    let mut starts: Vec<u64> = jobs.iter().map(|job| job.fence()).collect();
    starts.sort_unstable();
    let span = starts[starts.len() - 1] - starts[0];
    let least = (starts.len() as u64 - burst) as f64 / rate;
    least / Duration::from_micros(span).as_secs_f64()
}

/// Prints figures. Nothing but the order of magnitude is asserted: a machine under load is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures"]
async fn a_limit_is_used_up_by_one_worker_and_by_sixteen() {
    for (rate, burst) in [(10, 1), (50, 1), (50, 2), (200, 4), (1000, 20), (1000, 50)] {
        for workers in [1, 16] {
            let server = Embedded::start().await.unwrap();
            let site = Site::at(&server.url(), "limit-used").await;
            let (log, mut runs) = recorder();
            let router = || Router::new().route(&site.pattern(), log.done());
            let running: Vec<_> = (0..workers).map(|_| site.serve(router())).collect();
            for worker in &running {
                worker.ready().await;
            }
            let limit = Limit::new().rate(rate, Duration::from_secs(1)).burst(burst);
            site.client.limit(&site.kind(), limit).await.unwrap();
            let count = JOBS.min(rate as usize * 5);
            let jobs = site.keys(count).map(|key| NewJob::new(key, ""));
            for scheduled in site.client.schedule_many(jobs).await {
                scheduled.unwrap();
            }
            let jobs = runs.take(count).await;
            let used = used(&jobs, u64::from(burst), f64::from(rate));
            let limit = format!("{rate}/s, {burst} at once");
            println!("{limit}: {workers} workers use {:.1} %", 100.0 * used);
            assert!(used <= 1.0, "{limit}: {used}");
            site.all_ended().await;
            for worker in running {
                worker.stop().await;
            }
            site.assert_balanced().await;
        }
    }
}
