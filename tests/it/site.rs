//! The site of a test: its own app segment on a Redis, a client, and workers.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use keyfall::embedded::Embedded;
use keyfall::{Client, JobState, JobView, Readiness, Result, RetryPolicy, Router, Stats, Worker};
use keyfall_testing::server;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ToRedisArgs};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::runs::{PATIENCE, eventually};
use crate::shell::Daemon;

/// The URL of a Redis that all tests share. It ends with the process.
pub(crate) fn shared_redis() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(started)
}

/// The number of sites on one Redis. A worker looks at all kinds of its Redis, also at the
/// kinds of ended tests.
const SITES: usize = 40;

/// The URL of the Redis of the next site. It ends with the process.
fn redis_of_next_site() -> String {
    static LATEST: Mutex<(usize, String)> = Mutex::new((0, String::new()));
    let mut latest = LATEST.lock().unwrap();
    if latest.0.is_multiple_of(SITES) {
        latest.1 = started();
    }
    latest.0 += 1;
    latest.1.clone()
}

/// The URL of a new Redis, which ends with the process.
fn started() -> String {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = Embedded::start().await.unwrap();
            tell.send(server.url()).unwrap();
            // The guard of the server ends the server when this process is gone.
            std::future::pending::<()>().await;
        });
    });
    told.recv().expect("the shared Redis starts")
}

/// An app of its own, and the means to use it.
pub(crate) struct Site {
    pub(crate) app: String,
    pub(crate) url: String,
    pub(crate) client: Client,
    /// `None` if the jobs are on several servers.
    redis: Option<MultiplexedConnection>,
    /// The daemon for commands, unless they go straight to Redis.
    pub(crate) daemon: Option<Daemon>,
}

impl Site {
    /// A site on a Redis that other tests use too; none of them has the same `app`.
    pub(crate) async fn new(app: &str) -> Self {
        Site::at(&redis_of_next_site(), app).await
    }

    /// A site on a separate Redis.
    pub(crate) async fn at(url: &str, app: &str) -> Self {
        Site::found_by(url, url, app).await
    }

    /// A site whose clients use another URL than its direct commands to Redis.
    pub(crate) async fn found_by(url: &str, redis: &str, app: &str) -> Self {
        Site {
            app: app.to_owned(),
            url: redis.to_owned(),
            client: patient(url).await,
            redis: Some(connect(redis).await),
            daemon: None,
        }
    }

    /// A site on any topology, used only through the client.
    pub(crate) async fn on(url: &str, app: &str) -> Self {
        Site {
            app: app.to_owned(),
            url: url.to_owned(),
            client: patient(url).await,
            redis: None,
            daemon: None,
        }
    }

    /// Connects again for direct commands, after Redis was away.
    pub(crate) async fn reconnect(&mut self) {
        self.redis = Some(connect(&self.url).await);
    }

    /// The kind that most tests use, `app:it:job`.
    pub(crate) fn kind(&self) -> String {
        format!("{}:it:job", self.app)
    }

    /// The pattern of its route.
    pub(crate) fn pattern(&self) -> String {
        format!("{}:{{id}}", self.kind())
    }

    /// A job of that kind.
    pub(crate) fn key(&self, id: impl std::fmt::Display) -> String {
        format!("{}:{id}", self.kind())
    }

    pub(crate) fn keys(&self, count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| self.key(format_args!("{number:05}")))
    }

    /// A direct connection to Redis, to inspect its keys, or for commands that Keyfall would not
    /// send.
    pub(crate) fn redis(&self) -> MultiplexedConnection {
        let redis = self.redis.clone();
        redis.expect("there is one server, behind the curtain")
    }

    /// Sends one command directly to Redis.
    pub(crate) async fn command<T: FromRedisValue>(&self, args: &[impl ToRedisArgs]) -> T {
        command(&mut self.redis(), args).await
    }

    /// A worker with the client of this site and the default settings.
    pub(crate) fn worker(&self, router: Router) -> Worker {
        Worker::new(self.client.clone(), router)
    }

    /// Starts a worker with the default settings.
    pub(crate) fn serve(&self, router: Router) -> Running {
        Running::start(self.worker(router))
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.client.stats(&self.kind()).await.unwrap()
    }

    /// The view of an existing job.
    pub(crate) async fn view(&self, key: &str) -> JobView {
        let view = self.client.get(key).await.unwrap();
        view.unwrap_or_else(|| panic!("there is no {key}"))
    }

    /// Waits until the job is in this state.
    pub(crate) async fn reaches(&self, key: &str, state: JobState) -> JobView {
        eventually(&format!("{state:?}"), async || {
            let view = self.client.get(key).await.unwrap()?;
            (view.state() == state).then_some(view)
        })
        .await
    }

    /// Ends the lease of a job, as if it had not been renewed for too long: so no test needs a
    /// lease that a machine which stands still would lose.
    pub(crate) async fn lapse(&self, id: impl std::fmt::Display) {
        let id = id.to_string();
        let leased = format!("keyfall:{{{}/0}}:leased", self.kind());
        let changed: u32 = self.command(&["ZADD", &leased, "XX", "CH", "1", &id]).await;
        assert_eq!(changed, 1, "{id} is leased");
    }

    /// Waits until this time has passed by the clock of Redis.
    pub(crate) async fn passes(&self, time: Duration) {
        let over = redis_time(&mut self.redis()).await + time.as_micros();
        eventually("so much time has passed", async || {
            (redis_time(&mut self.redis()).await > over).then_some(())
        })
        .await;
    }

    /// Makes all workers look for lapsed leases soon, whenever they expected the next one.
    pub(crate) async fn sweep(&self) {
        let wake = format!("resume {}", self.kind());
        let _: u32 = self.command(&["PUBLISH", "keyfall:wake:0", &wake]).await;
    }

    /// Waits until no job of the kind is pending or runs.
    pub(crate) async fn all_ended(&self) -> Stats {
        eventually("all ended", async || {
            let stats = self.stats().await;
            (stats.pending + stats.leased + stats.successors == 0).then_some(stats)
        })
        .await
    }

    /// Asserts that the books of every kind of this app balance. The last line of every test.
    pub(crate) async fn assert_balanced(&self) {
        let prefix = format!("{}:", self.app);
        for kind in self.client.kinds().await.unwrap() {
            if !kind.to_string().starts_with(&prefix) {
                continue;
            }
            let stats = self.client.stats(&kind.to_string()).await.unwrap();
            assert!(stats.is_balanced(), "{kind}: {stats:?}");
        }
    }
}

/// A running worker.
pub(crate) struct Running {
    readiness: Readiness,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel();
        let readiness = worker.readiness();
        let run = worker.run_until(async {
            // A message and a dropped sender mean the same.
            let _ = stopped.await;
        });
        Running {
            readiness,
            stop,
            task: tokio::spawn(run),
        }
    }

    /// Waits until the worker hears the announcements of Redis.
    pub(crate) async fn ready(&self) {
        eventually("it is ready", async || {
            self.readiness.is_ready().then_some(())
        })
        .await;
    }

    /// Whether the worker hears the announcements of Redis.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    /// Stops it gracefully.
    pub(crate) async fn stop(self) {
        self.told_to_stop().await.unwrap().unwrap();
    }

    /// Whether it has ended by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// The result of a worker that ends by itself.
    pub(crate) async fn ended(self) -> Result<()> {
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.expect("it goes on and on").unwrap()
    }

    /// Tells the worker to stop, and does not wait.
    pub(crate) fn told_to_stop(self) -> JoinHandle<Result<()>> {
        let _ = self.stop.send(());
        self.task
    }

    /// Drops the worker, which stops it hard.
    pub(crate) async fn drop_it(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A client that waits for as long as a busy machine may take.
pub(crate) async fn patient(url: &str) -> Client {
    let client = Client::builder(url).call_timeout(PATIENCE / 3);
    client.connect().await.unwrap()
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    server::connect(url).await.unwrap()
}

pub(crate) async fn command<T: FromRedisValue>(
    redis: &mut MultiplexedConnection,
    args: &[impl ToRedisArgs],
) -> T {
    redis::Cmd::new()
        .arg(args)
        .query_async(redis)
        .await
        .unwrap()
}

/// Redis' clock, in microseconds.
pub(crate) async fn redis_time(redis: &mut MultiplexedConnection) -> u128 {
    let (seconds, micros): (u128, u128) = command(redis, &["TIME"]).await;
    seconds * 1_000_000 + micros
}

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Asserts that a time is about this far ahead, give or take a minute.
#[track_caller]
pub(crate) fn assert_about(due: SystemTime, ahead: Duration) {
    let expected = SystemTime::now() + ahead;
    let apart = due
        .duration_since(expected)
        .unwrap_or_else(|e| e.duration());
    assert!(apart < Duration::from_secs(60), "{apart:?} apart");
}

/// The events of a job.
pub(crate) fn steps(view: &JobView) -> Vec<&str> {
    view.steps().iter().map(|step| step.what.as_str()).collect()
}

/// A retry that does not begin during a test.
pub(crate) fn fails_slowly() -> RetryPolicy {
    RetryPolicy::fixed(HOUR).unwrap()
}
