//! Leases that lapse in great number: the log of them, and how often workers look for them.

use keyfall::embedded::Embedded;
use keyfall::{NewJob, Router, Worker};

use crate::log::Log;
use crate::monitor::Monitor;
use crate::runs::{eventually, recorder};
use crate::site::{Running, Site};
use crate::workers::{Mortal, SECOND};

/// More jobs than a sweep finds at a time.
const MANY: usize = 300;

/// This number of jobs whose worker has died, and whose leases have lapsed since.
async fn abandoned(site: &Site, count: usize) {
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    let (worker, _) = Mortal::running(&site.url, move |client| {
        let worker = Worker::new(client, stuck).lease(60 * SECOND);
        worker.concurrency(count)
    });
    let jobs = site.keys(count).map(|key| NewJob::new(key, ""));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    runs.take(count).await;
    worker.die();
    for number in 0..count {
        site.lapse(format_args!("{number:05}")).await;
    }
}

/// A worker of the kind that has no route for those jobs.
async fn stranger(site: &Site) -> Running {
    let (log, _runs) = recorder();
    let router = Router::new().route(&site.key("other"), log.done());
    let worker = Running::start(site.worker(router).lease(3 * SECOND));
    worker.ready().await;
    worker
}

/// Workers with a route take all of them over.
async fn ends(site: &Site) {
    let (log, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), log.done());
    let worker = Running::start(site.worker(router).lease(3 * SECOND));
    for job in runs.take(MANY).await {
        assert_eq!(job.attempt(), 2, "{}", job.key());
    }
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn of_many_lapsed_leases_some_are_logged_and_the_others_counted() {
    let site = Site::new("lapsed-told").await;
    abandoned(&site, MANY).await;
    let told = Log::read();
    let worker = stranger(&site).await;
    let told_of = || told.with("its lease has lapsed").len();
    let left_out = || -> usize {
        let lines = told.with("more leases have lapsed");
        let of = |line: &String| line.split("left_out=").nth(1)?.trim().parse::<usize>().ok();
        lines.iter().filter_map(of).sum()
    };
    eventually("all are told or counted", async || {
        (told_of() + left_out() >= MANY).then_some(())
    })
    .await;
    for _ in 0..6 {
        site.sweep().await;
        site.passes(SECOND / 2).await;
    }
    assert!((20..MANY / 2).contains(&told_of()), "{}", told_of());
    assert_eq!(told_of() + left_out(), MANY, "each once");
    worker.stop().await;
    ends(&site).await;
}

#[tokio::test]
async fn a_worker_checks_leases_that_it_cannot_take_over_ever_less_often() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "lapsed-looks").await;
    abandoned(&site, MANY).await;
    let mut commands = Monitor::of(&site.url).await;
    let worker = stranger(&site).await;
    eventually("it lives for a while without a look", async || {
        let mut beats = 0;
        loop {
            let asked = commands.next().await;
            if asked.is_sweep() {
                return None;
            }
            beats += usize::from(asked.beat().is_some());
            if beats == 3 {
                return Some(());
            }
        }
    })
    .await;
    worker.stop().await;
    ends(&site).await;
}
