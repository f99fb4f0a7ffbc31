//! The largest, the oddest and the most: payloads, keys, errors, dead letters, jobs through each
//! target, and unused names.

mod draining;
mod limits;
mod nonsense;

use std::time::{Duration, Instant};

use keyfall::{Job, JobState, MAX_FAILURE_BYTES, NewJob, Outcome, Router};

use crate::runs::recorder;
use crate::site::{Running, Site, command, ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_any_bytes_arrive_as_they_were_sent() {
    let site = Site::new("extreme-bytes").await;
    let every: Vec<u8> = (0..=255).collect();
    let mut payloads: Vec<Vec<u8>> = every.iter().map(|byte| vec![*byte]).collect();
    payloads.extend([
        Vec::new(),
        every.clone(),
        every.repeat(4096),
        b"\n\n\n".to_vec(),
        b"{\"v\":99}\n1763712345678\nx".to_vec(),
        vec![0; 1024 * 1024],
    ]);
    let name = |number: usize| site.key(format_args!("{number:03}"));
    let (note, mut runs) = recorder();
    let handler = note.then(|job| match job.attempt() {
        1 => Outcome::again_after(ms(0)),
        _ => Outcome::bury("to be looked at"),
    });
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    for (number, payload) in payloads.iter().enumerate() {
        let call = site.client.schedule_bytes(name(number), payload.clone());
        call.await.unwrap();
    }
    // Run, stored again, run again, buried, and requeued: each copy of the payload is complete.
    for job in runs.take(2 * payloads.len()).await {
        let number: usize = job.key().id().parse().unwrap();
        assert_eq!(job.payload()[..], payloads[number], "{number}");
    }
    site.all_ended().await;
    worker.stop().await;
    for (number, payload) in payloads.iter().enumerate() {
        let letter = site.view(&name(number)).await;
        assert_eq!(letter.state(), JobState::Dead);
        assert_eq!(letter.payload()[..], payload[..], "{number}");
    }
    let requeued = site.client.prefix(&format!("{}:", site.kind()));
    let requeued = requeued.requeue().await.unwrap();
    assert_eq!(requeued.done, payloads.len() as u64);
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    for job in runs.take(payloads.len()).await {
        let number: usize = job.key().id().parse().unwrap();
        assert_eq!(job.payload()[..], payloads[number], "{number}");
    }
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn keys_at_their_limits_work_everywhere() {
    let long = format!("extreme-keys{}", "a".repeat(64 - "extreme-keys".len()));
    let site = Site::new(&long).await;
    let module = "m".repeat(64);
    let biz = "._-9".repeat(16);
    let kind = format!("{long}:{module}:{biz}");
    let odd: [String; 5] = [
        "i".repeat(256),
        "ü".repeat(128),
        "🔑".repeat(64),
        "%d%s%00\\n?[a-z]".into(),
        "x".into(),
    ];
    let (note, mut runs) = recorder();
    let handler = note.then(|job| match job.attempt() {
        1 => Outcome::again_after(ms(0)),
        _ => Outcome::bury("no"),
    });
    let worker = site.serve(Router::new().route(&format!("{kind}:{{id}}"), handler));
    for id in &odd {
        let key = format!("{kind}:{id}");
        site.client.schedule(&key, id).after(ms(100)).await.unwrap();
        site.client.reschedule(&key).after(ms(150)).await.unwrap();
        for _ in 0..2 {
            assert_eq!(runs.next().await.key().id(), id);
        }
        site.reaches(&key, JobState::Dead).await;
        let letters = site.client.dead_letters(&key).await.unwrap();
        assert_eq!(letters[0].json::<String>().unwrap(), *id);
    }
    let listed = site.client.list(&format!("{kind}:"), JobState::Dead);
    assert_eq!(listed.await.unwrap().jobs.len(), odd.len());
    worker.stop().await;
    // No character of a name acts as a pattern.
    let one = site.client.prefix(&format!("{kind}:%d%s%00\\n?["));
    assert_eq!(one.requeue().await.unwrap().done, 1);
    assert!(site.client.audit(&kind).await.unwrap().is_clean());
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_error_of_ten_megabytes_is_cut_and_delays_no_other_job() {
    let site = Site::new("extreme-error").await;
    let (note, mut runs) = recorder();
    let handler = async move |job: Job| {
        note.note(&job);
        match job.key().id() {
            "loud" => Err("ü".repeat(5 * 1024 * 1024)),
            "panics" => panic!("{}", "p".repeat(10 * 1024 * 1024)),
            "buries" => Ok(Outcome::bury("b".repeat(10 * 1024 * 1024))),
            _ => Ok(Outcome::Done),
        }
    };
    let route = keyfall::Handler::retry(
        handler,
        keyfall::RetryPolicy::fixed(ms(10)).unwrap().attempts(2),
    );
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    for id in ["loud", "panics", "buries"] {
        site.client.schedule(site.key(id), "").await.unwrap();
    }
    for key in site.keys(50) {
        site.client.schedule(key, "").after(ms(50)).await.unwrap();
    }
    runs.take(55).await;
    site.all_ended().await;
    for id in ["loud", "panics", "buries"] {
        let letter = site.reaches(&site.key(id), JobState::Dead).await;
        let error = letter.last_error().unwrap();
        assert!(error.len() <= MAX_FAILURE_BYTES, "{id}: {}", error.len());
        assert!(error.ends_with('…'), "{id}: {error}");
    }
    worker.stop().await;
    site.assert_balanced().await;
}

/// A stage: its name, its duration, and the longest single command in Redis. It is printed, so
/// `--nocapture` shows the figures that the documentation quotes.
struct Stages {
    began: Instant,
    redis: redis::aio::MultiplexedConnection,
}

impl Stages {
    async fn begin(site: &Site) -> Self {
        let mut redis = site.redis();
        let log = ["CONFIG", "SET", "slowlog-log-slower-than", "2000"];
        let () = command(&mut redis, &log).await;
        let began = Instant::now();
        Stages { began, redis }
    }

    /// Ends a stage. No command may have taken a large part of it, unless that is less than half a
    /// second: a hundred times the time on an idle machine.
    async fn end(&mut self, what: &str) {
        type Entry = (u64, u64, u64, Vec<redis::Value>, String, String);
        let log: Vec<Entry> = command(&mut self.redis, &["SLOWLOG", "GET", "128"]).await;
        let slowest = log.iter().map(|entry| entry.2).max().unwrap_or_default();
        let memory: String = command(&mut self.redis, &["INFO", "memory"]).await;
        let memory = memory
            .lines()
            .find_map(|it| it.strip_prefix("used_memory:"));
        let memory: u64 = memory.unwrap().parse().unwrap();
        println!(
            "{what:24} {:6.2} s; slowest command {:3} ms; Redis holds {:4} MB, this process {:4} MB",
            self.began.elapsed().as_secs_f64(),
            slowest / 1000,
            memory / 1_000_000,
            resident_bytes() / 1_000_000,
        );
        let large = (self.began.elapsed().as_micros() as u64 / 4).max(500_000);
        assert!(slowest < large, "{what}: a command took {slowest} µs");
        let () = command(&mut self.redis, &["SLOWLOG", "RESET"]).await;
        self.began = Instant::now();
    }
}

/// The memory of this process; zero if the system does not report it.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|it| it.parse().ok());
    pages.unwrap_or(0_u64) * 4096
}

/// Buries this number of jobs; lists, requeues, deletes and trims their letters. No single call may
/// hold Redis up for long, however many letters there are.
async fn dead_letters(count: usize) {
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "extreme-dead").await;
    let mut stages = Stages::begin(&site).await;
    let (second, day) = (ms(1000), ms(24 * 3600 * 1000));
    let key = |n: usize| site.key(format_args!("{}-{n:07}", n % 10));
    for from in (0..count).step_by(10_000) {
        let jobs = (from..count.min(from + 10_000)).map(|n| NewJob::new(key(n), ""));
        for answer in site.client.schedule_many(jobs).await {
            answer.unwrap();
        }
    }
    stages.end("scheduled").await;
    let router = Router::new().route(&site.pattern(), async || Outcome::bury("no"));
    let burying = site.worker(router).dead_letters(count as u64, day);
    let burying = Running::start(burying);
    site.dead_are(count).await;
    burying.stop().await;
    stages.end("run and buried").await;

    let prefix = |tenth: usize| format!("{}:{tenth}-", site.kind());
    let page = site.client.list(&prefix(3), JobState::Dead).limit(1000);
    assert_eq!(page.await.unwrap().jobs.len(), 1000);
    stages.end("a page of 1,000 listed").await;
    let requeued = site.client.prefix(&prefix(3)).requeue().await.unwrap();
    assert_eq!(requeued.done as usize, count / 10);
    stages.end("a tenth requeued").await;
    let counts = site.client.count(&prefix(3)).await.unwrap();
    assert_eq!(counts.pending as usize, count / 10, "{counts:?}");
    stages.end("a tenth counted").await;
    let deleted = site.client.prefix(&prefix(4)).delete_dead_letters();
    assert_eq!(deleted.await.unwrap().done as usize, count / 10);
    stages.end("a tenth deleted").await;
    // A worker that keeps no letter for longer than a second.
    let router = Router::new().route(&site.pattern(), async || {});
    let trimming = site.worker(router).dead_letters(count as u64, second);
    let trimming = Running::start(trimming);
    site.dead_are(0).await;
    stages.end("eight tenths trimmed").await;
    trimming.stop().await;
    let stats = site.stats().await;
    let fell = (stats.deleted as usize, stats.trimmed as usize);
    assert_eq!(fell, (count / 10, count / 10 * 8), "{stats:?}");
    site.assert_balanced().await;
}

impl Site {
    /// Waits for this number of dead letters, for longer than other tests do.
    async fn dead_are(&self, count: usize) {
        let patience = Instant::now() + Duration::from_secs(600);
        while self.stats().await.dead != count as u64 {
            assert!(Instant::now() < patience, "{:?}", self.stats().await);
            tokio::time::sleep(ms(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_dead_letters_are_handled_in_small_steps() {
    dead_letters(20_000).await;
}

/// `make extremes`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and 1 GiB"]
async fn a_million_dead_letters_are_handled_in_small_steps() {
    dead_letters(1_000_000).await;
}
