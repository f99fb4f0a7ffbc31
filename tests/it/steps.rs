//! Daemons that are killed at each step by which a job gets into a list or a stream, and its end
//! comes back.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use keyfall::embedded::Embedded;
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use keyfall_testing::proxies::FreezingProxy;
use redis::aio::MultiplexedConnection;
use serde_json::Value;

use crate::runs::eventually;
use crate::site::{Site, command, connect, ms};

const GROUP: &str = "closers";

#[derive(Debug, Clone, Copy, PartialEq)]
enum OutletKind {
    List,
    Stream,
    /// A target whose consumer does not acknowledge the first attempt.
    Neglected,
}

/// The step at which the daemon is killed.
struct Step {
    app: &'static str,
    /// Stops the traffic to the Redis of the target at this step.
    stop: fn(&FreezingProxy),
    /// Whether a consumer has the job by then.
    has_come: bool,
}

const fn step(app: &'static str, stop: fn(&FreezingProxy), has_come: bool) -> Step {
    Step {
        app,
        stop,
        has_come,
    }
}

/// The consumer of the jobs, which reads directly from the Redis of the target.
#[derive(Clone)]
struct Consumer {
    target: OutletKind,
    name: &'static str,
    taken: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Consumer {
    async fn consume(self, mut redis: MultiplexedConnection) {
        loop {
            match self.target {
                OutletKind::List => self.pop(&mut redis).await,
                OutletKind::Stream | OutletKind::Neglected => self.read(&mut redis).await,
            }
            tokio::time::sleep(ms(5)).await;
        }
    }

    async fn pop(&self, redis: &mut MultiplexedConnection) {
        let document: Option<String> = command(redis, &["LPOP", self.name]).await;
        let Some(document) = document else {
            return;
        };
        let document: Value = serde_json::from_str(&document).unwrap();
        let done = format!("{}:done", self.name);
        let lease = document["lease"].as_str().unwrap();
        self.ended.fetch_add(1, Ordering::Relaxed);
        let _: u64 = command(redis, &["RPUSH", &done, lease]).await;
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    async fn read(&self, redis: &mut MultiplexedConnection) {
        type Entries = Vec<(String, HashMap<String, String>)>;
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", GROUP, "one", "STREAMS", self.name, ">"]);
        // The call fails until the group exists.
        let read: redis::RedisResult<Option<Vec<(String, Entries)>>> =
            read.query_async(redis).await;
        let streams = read.ok().flatten().unwrap_or_default();
        for (id, fields) in streams.into_iter().flat_map(|(_, entries)| entries) {
            if self.target == OutletKind::Stream || fields["attempt"] != "1" {
                self.ended.fetch_add(1, Ordering::Relaxed);
                let _: u64 = command(redis, &["XACK", self.name, GROUP, &id]).await;
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the worker has handled all its receipts.
    async fn is_heard(&self, redis: &mut MultiplexedConnection) -> bool {
        if self.target == OutletKind::List {
            let left: u64 = command(redis, &["LLEN", &format!("{}:done", self.name)]).await;
            return left == 0;
        }
        let left: Vec<redis::Value> =
            command(redis, &["XPENDING", self.name, GROUP, "-", "+", "10"]).await;
        left.is_empty()
    }
}

/// A daemon that finds the list or the stream at `url`.
fn serve(site: &Site, folder: &Folder, target: OutletKind, url: &str) -> TalkingProcess {
    let name = &site.app;
    let target = match target {
        OutletKind::List => format!("list = {{ key = \"{name}\", acknowledged = true"),
        _ => format!("stream = {{ key = \"{name}\", group = \"{GROUP}\""),
    };
    let route = format!(
        "[[route]]\npattern = \"{}:*\"\nlease = \"1s\"\nretry = {{ fixed = \"50ms\" }}\n\
         target = {{ {target}, url = \"{url}\" }} }}\n",
        site.kind()
    );
    folder.write("routes.toml", &route);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--redis-url", &site.url, "--config"])
        .arg(folder.path("routes.toml"));
    let process = TalkingProcess::spawn(command);
    assert!(process.line().starts_with("listening on"));
    process
}

/// Kills a daemon at this step; another one ends the job.
async fn is_survived(step: &Step, target: OutletKind) {
    // The server does not know the scripts yet, so each arrives whole, with its commands in it.
    let outlet = Embedded::start().await.unwrap();
    let site = Site::new(step.app).await;
    let folder = Folder::new(step.app);
    let proxy = FreezingProxy::to(&outlet).await;
    let consumer = Consumer {
        target,
        name: step.app,
        taken: Arc::default(),
        ended: Arc::default(),
    };
    let consuming = tokio::spawn(consumer.clone().consume(connect(&outlet.url()).await));
    let has_begun = || consumer.taken.load(Ordering::Relaxed) > 0;
    let has_ended = || consumer.ended.load(Ordering::Relaxed) > 0;
    (step.stop)(&proxy);
    let mut first = serve(&site, &folder, target, &proxy.url);
    site.client.schedule(site.key("1"), &1).await.unwrap();
    eventually(step.app, async || {
        (proxy.is_frozen() && (has_begun() || !step.has_come)).then_some(())
    })
    .await;
    first.kill();
    // Entries that were on their way arrive now.
    proxy.thaw();
    let second = serve(&site, &folder, target, &outlet.url());
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.dead), (1, 0), "{}", step.app);
    assert!(has_ended(), "{}: nobody has done it", step.app);
    let mut redis = connect(&outlet.url()).await;
    eventually("all is heard", async || {
        consumer.is_heard(&mut redis).await.then_some(())
    })
    .await;
    consuming.abort();
    second.stop();
    site.assert_balanced().await;
}

async fn are_survived(target: OutletKind, steps: &[Step]) {
    join_all(steps.iter().map(|step| is_survived(step, target))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_at_any_step_of_a_list_loses_no_job() {
    let steps = [
        step("killed-list-claimed", |it| it.freeze_before("RPUSH"), false),
        step("killed-list-written", |it| it.freeze_after("RPUSH"), true),
        // A receipt in the answer to `LRANGE`.
        step("killed-list-told", |it| it.freeze_at("@"), true),
        step("killed-list-settled", |it| it.freeze_before("LREM"), true),
        step("killed-list-removed", |it| it.freeze_after("LREM"), true),
    ];
    are_survived(OutletKind::List, &steps).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_at_any_step_of_a_stream_loses_no_job() {
    let steps = [
        step(
            "killed-stream-claimed",
            |it| it.freeze_before("XADD"),
            false,
        ),
        step("killed-stream-written", |it| it.freeze_after("XADD"), true),
        step(
            "killed-stream-acked",
            |it| it.freeze_before("-- look:"),
            true,
        ),
        // The job is settled, and the daemon is about to record this for sweeps: `SET key id`;
        // other calls are longer.
        step(
            "killed-stream-settled",
            |it| it.freeze_before("*3\r\n$3\r\nSET\r\n"),
            true,
        ),
    ];
    are_survived(OutletKind::Stream, &steps).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_while_it_takes_an_entry_back_loses_no_job() {
    let steps = [
        step("killed-late-failed", |it| it.freeze_before("XACK"), true),
        step("killed-late-acked", |it| it.freeze_after("XACK"), true),
    ];
    are_survived(OutletKind::Neglected, &steps).await;
}
