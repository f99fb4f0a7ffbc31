//! A hundred thousand overdue jobs of one kind: their cost, and their effect on other jobs.

use keyfall::embedded::Embedded;
use keyfall::{Cancelled, Job, JobState, NewJob, Rescheduled, Router};
use keyfall_testing::process::TalkingProcess;

use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Running, Site, ms};

const JOBS: usize = 100_000;

/// The number of jobs with the same due time.
const AT_ONCE: usize = 100;

/// The distance from the front at which the next jobs may start: jobs with the same due time, and
/// some simultaneous claims.
const ABOUT: usize = 8 * 256;

fn id(number: usize) -> String {
    format!("{number:05}")
}

fn number(id: &str) -> usize {
    id.parse().unwrap()
}

/// The memory that a process holds, in bytes.
fn resident(process: &TalkingProcess) -> usize {
    let status = format!("/proc/{}/status", process.child.id());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_runs_oldest_first_and_delays_no_other_kind() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "backlog").await;
    let kind = format!("{}:work:sleep", site.app);
    // Each job sleeps for 100 ms, and carries a kilobyte.
    let payload = format!("100{}", " ".repeat(1024));
    let jobs = (0..JOBS).map(|n| {
        let job = NewJob::from_bytes(format!("{kind}:{}", id(n)), payload.clone());
        job.after(ms((n / AT_ONCE) as u64))
    });
    let answers = site.client.schedule_many(jobs).await;
    assert!(answers.iter().all(Result::is_ok));
    let stats = async || site.client.stats(&kind).await.unwrap();
    eventually("all are overdue", async || {
        (stats().await.overdue == JOBS as u64).then_some(())
    })
    .await;
    // No worker hears the triggers expire: a worker that did would start with the job of the event.
    for first in (0..JOBS).step_by(1000) {
        let triggers = (first..first + 1000).map(|n| format!("{kind}:{}", id(n)));
        let words: Vec<String> = ["EXISTS".to_owned()].into_iter().chain(triggers).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let left: usize = site.command(&words).await;
        assert_eq!(left, 0);
    }

    // A worker in a process of its own, with 256 slots.
    let process = TalkingProcess::worker(&site.url, &site.app);
    assert_eq!(process.line(), format!("working for {}", site.app));
    let before = resident(&process);
    let mut started = 0;
    while started < 3_000 {
        let line = process.line();
        let Some(job) = line.strip_prefix("started ") else {
            continue;
        };
        let found = number(job.rsplit_once(':').unwrap().1.split(' ').next().unwrap());
        assert!(found < started + ABOUT, "{found} as number {started}");
        started += 1;
        if started % 500 == 0 {
            let leased = stats().await.leased;
            // Running jobs, and jobs that are about to be settled.
            assert!(leased <= 2 * 256, "{leased}");
        }
    }
    let grown = resident(&process).saturating_sub(before);
    assert!(grown < 40 * 1024 * 1024, "it grew by {grown} bytes");
    process.stop();

    // Another worker, which also has other jobs.
    let (log, mut runs) = recorder();
    let (note, mut slow_runs) = recorder();
    let slow = async move |job: Job| {
        note.note(&job);
        tokio::time::sleep(ms(100)).await;
    };
    let router = Router::new()
        .route(&format!("{kind}:{{id}}"), slow)
        .route(&site.pattern(), log.done());
    let worker = Running::start(site.worker(router).concurrency(32));
    slow_runs.take(100).await;
    let cancelled = format!("{kind}:{}", id(JOBS - 1));
    let postponed = format!("{kind}:{}", id(JOBS - 2));
    let answer = site.client.cancel(&cancelled).await.unwrap();
    assert_eq!(answer, Cancelled::Cancelled);
    let answer = site.client.reschedule(&postponed).after(HOUR).await;
    assert!(matches!(answer.unwrap(), Rescheduled::Moved(_)));
    for key in site.keys(20) {
        site.client.schedule(&key, "").after(ms(100)).await.unwrap();
        let job = runs.next().await;
        assert_eq!(job.key().as_str(), key);
        // This job did not wait for jobs with an earlier due time.
        let stats = stats().await;
        assert!(stats.leased <= 2 * 32, "{stats:?}");
        assert!(stats.overdue > 50_000, "{stats:?}");
    }
    let view = site.view(&postponed).await;
    assert_eq!(view.state(), JobState::Pending);
    assert!(site.client.get(&cancelled).await.unwrap().is_none());
    worker.stop().await;
    let stats = stats().await;
    assert_eq!((stats.cancelled, stats.leased, stats.dead), (1, 0, 0));
    for job in slow_runs.rest() {
        assert!(number(job.key().id()) < 20_000, "{job:?} was not its turn");
    }
    site.assert_balanced().await;
}
