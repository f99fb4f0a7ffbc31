//! A backlog goes through every target, and the memory of its worker does not grow with it.
//! Jobs that are pulled over HTTP are in [`http`](crate::http).

use std::collections::HashSet;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use futures_util::future::join_all;
use keyfall::{Job, NewJob, Outcome, target};
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::resident_bytes;
use crate::runs::PATIENCE;
use crate::site::{Running, Site, command, ms};

const MIB: u64 = 1024 * 1024;

/// The number of jobs before the first look at the memory.
const WARM: usize = 500;

/// The number of jobs in all tests, and with `make extremes`.
const FEW: usize = 1500;
const MANY: usize = 100_000;

/// The number of documents, entries or jobs that a consumer takes at a time.
const BATCH: usize = 500;

/// The number of callers for targets that deliver one job at a time.
const CALLERS: usize = 64;

/// Delivers the jobs of a site to its consumers.
enum Worker {
    Here(Running),
    Daemon(TalkingProcess),
}

/// The delivered jobs.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashSet<String>>>, Arc<watch::Sender<usize>>);

impl Seen {
    #[track_caller]
    fn note(&self, key: &str) {
        let mut seen = self.0.lock().unwrap();
        assert!(seen.insert(key.to_owned()), "{key} is delivered twice");
        self.1.send_replace(seen.len());
    }
}

impl Worker {
    /// The most memory that the daemon has held so far; for this process, its present memory.
    fn memory(&self) -> u64 {
        match self {
            Worker::Here(_) => resident_bytes(),
            Worker::Daemon(process) => process.memory("VmHWM:"),
        }
    }

    /// `keyfall serve`, with a route to this target.
    fn to(site: &Site, target: &str) -> Self {
        let folder = Folder::new(&site.app);
        // A job that a busy machine delays for longer than its lease would come twice.
        let config = format!(
            "[worker]\nlease = \"60s\"\n[[route]]\npattern = {:?}\ntarget = {target}\n",
            site.pattern()
        );
        folder.write("keyfall.toml", &config);
        let mut command = serve(site);
        command.args(["--config", &folder.path("keyfall.toml")]);
        let daemon = TalkingProcess::spawn(command);
        daemon.line();
        Worker::Daemon(daemon)
    }
}

fn serve(site: &Site) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--http-access-log=false", "--log-filter", "warn"])
        .args(["--redis-url", &site.url]);
    command
}

/// Lets this number of jobs wait, releases them at once, and measures the cost.
async fn drained(site: &Site, worker: Worker, seen: &Seen, count: usize) {
    let kind = format!("{}:", site.kind());
    let mut delivered = 0;
    let mut before = 0;
    for (stage, jobs) in [("warm", WARM), ("full", count)] {
        site.client.prefix(&kind).pause().await.unwrap();
        for from in (0..jobs).step_by(10_000) {
            let jobs = (from..jobs.min(from + 10_000)).map(|number| {
                let key = site.key(format_args!("{stage}-{number:07}"));
                NewJob::new(key, &"x".repeat(200))
            });
            for answer in site.client.schedule_many(jobs).await {
                answer.unwrap();
            }
        }
        before = worker.memory();
        let began = Instant::now();
        site.client.prefix(&kind).resume().await.unwrap();
        delivered += jobs;
        let mut told = seen.1.subscribe();
        while *told.borrow_and_update() < delivered {
            let news = tokio::time::timeout(PATIENCE, told.changed()).await;
            let came = *told.borrow();
            news.unwrap_or_else(|_| panic!("{came} of {delivered} came"))
                .unwrap();
        }
        site.all_ended().await;
        println!(
            "{}: {jobs} jobs in {:.1} s, from {} to {} MiB",
            site.app,
            began.elapsed().as_secs_f64(),
            before / MIB,
            worker.memory() / MIB,
        );
    }
    let after = worker.memory();
    // This process has other tests beside it, unless they run one at a time.
    if count > FEW || matches!(worker, Worker::Daemon(_)) {
        assert!(after < before + 16 * MIB, "from {before} to {after} bytes");
    }
    let stats = site.stats().await;
    assert_eq!(
        (stats.done as usize, stats.dead),
        (delivered, 0),
        "{stats:?}"
    );
    match worker {
        Worker::Here(running) => running.stop().await,
        Worker::Daemon(process) => drop(process.stop()),
    }
    site.assert_balanced().await;
}

async fn in_process(site: Site, count: usize) {
    let seen = Seen::default();
    let note = seen.clone();
    let handler = async move |job: Job| note.note(job.key().as_str());
    let router = keyfall::Router::new().route(&site.pattern(), handler);
    let worker = Worker::Here(site.serve(router));
    drained(&site, worker, &seen, count).await;
}

async fn http_callback(site: Site, count: usize) {
    async fn noted(State(seen): State<Seen>, headers: HeaderMap) -> StatusCode {
        seen.note(headers["keyfall-key"].to_str().unwrap());
        StatusCode::NO_CONTENT
    }
    let seen = Seen::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let receiver = Router::new()
        .route("/", post(noted))
        .with_state(seen.clone());
    tokio::spawn(async move { axum::serve(listener, receiver).await });
    let worker = Worker::to(&site, &format!("{{ http = {{ url = {url:?} }} }}"));
    drained(&site, worker, &seen, count).await;
}

async fn list(site: Site, count: usize, acknowledged: bool) {
    let name = format!("{}-list", site.app);
    let target = format!("{{ list = {{ key = {name:?}, acknowledged = {acknowledged} }} }}");
    let worker = Worker::to(&site, &target);
    let seen = Seen::default();
    let consume = async {
        let done = format!("{name}:done");
        let mut redis = site.redis();
        loop {
            let pop = ["LPOP", &name, &BATCH.to_string()];
            let documents: Option<Vec<String>> = command(&mut redis, &pop).await;
            let mut receipts = vec!["RPUSH".to_owned(), done.clone()];
            for document in documents.unwrap_or_default() {
                let document: Value = serde_json::from_str(&document).unwrap();
                seen.note(document["key"].as_str().unwrap());
                receipts.extend(document["lease"].as_str().map(str::to_owned));
            }
            if receipts.len() > 2 {
                let _: u64 = command(&mut redis, &receipts).await;
            } else {
                tokio::time::sleep(ms(2)).await;
            }
        }
    };
    tokio::select! {
        () = drained(&site, worker, &seen, count) => {}
        () = consume => {}
    }
}

async fn stream(site: Site, count: usize, acknowledged: bool) {
    type Entries = Vec<(String, std::collections::HashMap<String, String>)>;
    const GROUP: &str = "closers";
    let name = format!("{}-stream", site.app);
    let make = ["XGROUP", "CREATE", &name, GROUP, "0", "MKSTREAM"];
    let () = site.command(&make).await;
    let group = if acknowledged {
        format!(", group = {GROUP:?}")
    } else {
        String::new()
    };
    let worker = Worker::to(
        &site,
        &format!("{{ stream = {{ key = {name:?}{group} }} }}"),
    );
    let seen = Seen::default();
    let consume = async {
        let mut redis = site.redis();
        let most = BATCH.to_string();
        let read = [
            "XREADGROUP",
            "GROUP",
            GROUP,
            "one",
            "COUNT",
            &most,
            "STREAMS",
            &name,
            ">",
        ];
        loop {
            let read: Option<Vec<(String, Entries)>> = command(&mut redis, &read).await;
            let mut receipts = ["XACK", &name, GROUP].map(str::to_owned).to_vec();
            for (id, fields) in read.into_iter().flatten().flat_map(|(_, entries)| entries) {
                seen.note(&fields["key"]);
                receipts.push(id);
            }
            if receipts.len() > 3 {
                let _: u64 = command(&mut redis, &receipts).await;
            } else {
                tokio::time::sleep(ms(2)).await;
            }
        }
    };
    tokio::select! {
        () = drained(&site, worker, &seen, count) => {}
        () = consume => {}
    }
}

async fn pulled(site: Site, count: usize) {
    let pull = target::Pull::new();
    let router = keyfall::Router::new().route(&site.pattern(), pull.clone());
    let worker = Worker::Here(site.serve(router));
    let seen = Seen::default();
    let consume = async {
        loop {
            let pulled = pull.pull(&[""; 0], BATCH, PATIENCE).await.unwrap();
            let settles = pulled.into_iter().map(async |pulled| {
                let (job, lease) = pulled.accept().unwrap();
                seen.note(job.key().as_str());
                site.client.settle(&lease, Outcome::Done).await.unwrap();
            });
            join_all(settles).await;
        }
    };
    tokio::select! {
        () = drained(&site, worker, &seen, count) => {}
        () = consume => {}
    }
}

async fn popped(site: Site, count: usize) {
    let mut command = serve(&site);
    command
        .args(["--classic-listen", "127.0.0.1:0"])
        .args(["--classic-prefix", &format!("{}:it", site.app)]);
    let daemon = TalkingProcess::spawn(command);
    daemon.line();
    let url = daemon.line();
    let url = url
        .strip_prefix("classic interface on ")
        .unwrap()
        .to_owned();
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (http, seen, kind) = (Client::new(), Seen::default(), site.kind());
    let callers = (0..CALLERS).map(|_| {
        let (http, url, seen, kind) = (http.clone(), url.clone(), seen.clone(), kind.clone());
        tokio::spawn(async move {
            // The daemon may stop at any time, and cuts off callers then.
            let call = async |name: &str, body: Value| {
                let sent = http.post(format!("{url}/{name}")).json(&body).send();
                let mut answer: Value = sent.await.ok()?.json().await.ok()?;
                assert_eq!(answer["code"], 0, "{answer}");
                Some(answer["data"].take())
            };
            while let Some(job) = call("pop", json!({"topic": "job"})).await {
                // Or the daemon ends the calls of waiting consumers.
                let Some(id) = job["id"].as_str() else { return };
                seen.note(&format!("{kind}:{id}"));
                call("finish", json!({"id": id})).await;
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    drained(&site, Worker::Daemon(daemon), &seen, count).await;
    for caller in callers {
        caller.await.unwrap();
    }
}

/// Each target with a few jobs, and in `make extremes` with very many.
macro_rules! drains {
    ($($name:ident: $drain:expr;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_backlog_is_drained_in_bounded_memory() {
                let app = concat!("drain-", stringify!($name)).replace('_', "-");
                let drain = $drain;
                drain(Site::new(&app).await, FEW).await;
            }

            /// `make extremes`
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "takes a minute or two"]
            async fn a_hundred_thousand_are_drained_in_bounded_memory() {
                let app = concat!("drain-all-", stringify!($name)).replace('_', "-");
                let drain = $drain;
                drain(Site::new(&app).await, MANY).await;
            }
        }
    )*};
}

drains! {
    in_process: super::in_process;
    http_callback: super::http_callback;
    list_handed_over: async |site, count| list(site, count, false).await;
    list_acknowledged: async |site, count| list(site, count, true).await;
    stream_handed_over: async |site, count| stream(site, count, false).await;
    stream_acknowledged: async |site, count| stream(site, count, true).await;
    pulled: super::pulled;
    popped: super::popped;
}
