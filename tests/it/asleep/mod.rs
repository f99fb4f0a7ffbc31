//! A machine that sleeps: processes stand still, and so does the clock of their timers, while
//! leases go on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use keyfall::embedded::Embedded;
use keyfall::{Cancelled, Handler, JobState, Outcome, RetryPolicy, Router};
use keyfall_testing::files::Folder;
use keyfall_testing::process::{TalkingProcess, example};
use keyfall_testing::proxies::FreezingProxy;
use rustix::process::Signal;

use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Running, Site};
use crate::workers::SECOND;

/// A clock of timers that stands still while its process sleeps.
struct HeldBack {
    folder: Folder,
    nanos: File,
}

impl HeldBack {
    fn new(app: &str) -> Self {
        let folder = Folder::new(app);
        let (source, library) = (folder.path("it.c"), folder.path("it.so"));
        std::fs::write(&source, include_str!("held_back.c")).unwrap();
        // Rust links with this library, so it exists.
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&library);
        let built = cc.arg(&source).status().unwrap();
        assert!(built.success(), "{built}");
        let nanos = File::create(folder.path("nanos")).unwrap();
        let clock = HeldBack { folder, nanos };
        clock.set(Duration::ZERO);
        clock
    }

    fn set(&self, time: Duration) {
        let nanos = (time.as_nanos() as i64).to_ne_bytes();
        self.nanos.write_all_at(&nanos, 0).unwrap();
    }

    /// The example `worker` with this clock. Its leases last two seconds.
    fn worker(&self, site: &Site, url: &str) -> TalkingProcess {
        let mut worker = example("worker", url);
        worker
            .arg(&site.app)
            .env("LD_PRELOAD", self.folder.path("it.so"))
            .env("HELD_BACK", self.folder.path("nanos"));
        let worker = TalkingProcess::spawn(worker);
        assert_eq!(worker.line(), format!("working for {}", site.app));
        worker
    }

    /// Sends the process to sleep, as the machine would, until `night` is over.
    async fn sleep(&self, process: &TalkingProcess, night: impl Future<Output = ()>) {
        process.signal(Signal::STOP);
        let asleep = Instant::now();
        night.await;
        self.set(asleep.elapsed());
        process.signal(Signal::CONT);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_cancelled_during_sleep_does_not_start() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "asleep-claim").await;
    let clock = HeldBack::new(&site.app);
    let sleeper = clock.worker(&site, &proxy.url);
    let kind = format!("{}:work:sleep", site.app);
    let key = format!("{kind}:1");
    // Only the reply to the claim has the payload in it.
    proxy.freeze_at("86399999");
    site.client.schedule(&key, &86_399_999).await.unwrap();
    eventually("its claim is being answered", async || {
        proxy.is_frozen().then_some(())
    })
    .await;
    let night = async {
        site.reaches(&key, JobState::Lapsed).await;
        let (log, mut runs) = recorder();
        let policy = RetryPolicy::fixed(HOUR).unwrap().attempts(9);
        let handler = log.then(|_| Outcome::retry("not today")).retry(policy);
        let router = Router::new().route(&format!("{kind}:{{id}}"), handler);
        let rival = Running::start(site.worker(router).lease(3 * SECOND));
        runs.next().await;
        site.reaches(&key, JobState::Retrying).await;
        let cancelled = site.client.cancel(&key).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled);
        rival.stop().await;
        proxy.thaw();
    };
    clock.sleep(&sleeper, night).await;
    let next = format!("{kind}:next");
    site.client.schedule(&next, &0).await.unwrap();
    eventually("the next one is done", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.done == 1).then_some(())
    })
    .await;
    let lines = sleeper.stop();
    let [started, finished] = [format!("started {next} 1"), format!("finished {next}")];
    assert_eq!(lines, [&started, &finished, "stopped"]);
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_lease_ended_during_sleep_is_ended() {
    let site = Site::new("asleep-run").await;
    let clock = HeldBack::new(&site.app);
    let sleeper = clock.worker(&site, &site.url);
    let kind = format!("{}:work:sleep", site.app);
    let key = format!("{kind}:1");
    site.client.schedule(&key, &86_399_999).await.unwrap();
    assert_eq!(sleeper.line(), format!("started {key} 1"));
    let night = async {
        site.reaches(&key, JobState::Lapsed).await;
        // The lease can be renewed, and no other worker can take the job.
        site.client.prefix(&kind).pause().await.unwrap();
    };
    clock.sleep(&sleeper, night).await;
    site.passes(2 * SECOND).await;
    site.client.prefix(&kind).resume().await.unwrap();
    // There was no other worker to take the job.
    assert_eq!(sleeper.line(), format!("started {key} 2"));
    assert_eq!(site.client.cancel(&key).await.unwrap(), Cancelled::Running);
    sleeper.stop();
    site.assert_balanced().await;
}
