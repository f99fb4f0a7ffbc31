//! A database and an app segment of a test, on servers that the tests share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use keyfall::embedded::{Embedded, Options};
use keyfall::{Client, JobView, Stats};
use keyfall_database::{Database, Relay, Settings};
use keyfall_testing::patience::eventually;
use keyfall_testing::postgres::Postgres;
use keyfall_testing::proxies::FreezingProxy;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

/// The servers of all tests that kill none.
pub(crate) struct Servers {
    redis: String,
    pub(crate) postgres: Postgres,
}

pub(crate) fn servers() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        // Shown with a test that fails.
        let log = tracing_subscriber::fmt().with_test_writer().without_time();
        let _ = log.try_init();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Embedded::start().await.unwrap();
                tell.send(server.url()).unwrap();
                // The guard of the server ends it when this process is gone.
                std::future::pending::<()>().await;
            });
        });
        Servers {
            redis: told.recv().expect("Redis starts"),
            postgres: Postgres::start(),
        }
    })
}

/// A database and an app of its own.
pub(crate) struct Site {
    pub(crate) app: String,
    /// The URL of the database.
    pub(crate) url: String,
    pub(crate) redis: String,
    pub(crate) client: Client,
    pub(crate) sql: tokio_postgres::Client,
}

/// A relay at work. Dropping it stops it as a kill does.
pub(crate) struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Site {
    /// With the tables.
    pub(crate) async fn new(app: &str) -> Self {
        let site = Site::bare(app).await;
        site.database().migrate().await.unwrap();
        site
    }

    /// Without tables.
    pub(crate) async fn bare(app: &str) -> Self {
        let servers = servers();
        Site::on(&servers.postgres, &servers.redis, app).await
    }

    /// On a PostgreSQL of its own, with the tables.
    pub(crate) async fn beside(postgres: &Postgres, app: &str) -> Self {
        let site = Site::on(postgres, &servers().redis, app).await;
        site.database().migrate().await.unwrap();
        site
    }

    /// On a Redis of its own, with the tables: an archiver stores the jobs of all kinds.
    pub(crate) async fn alone(app: &str) -> (Embedded, Self) {
        Site::alone_with(Embedded::options(), app).await
    }

    /// On a Redis of its own with these options, with the tables.
    pub(crate) async fn alone_with(options: Options, app: &str) -> (Embedded, Self) {
        let redis = options.start().await.unwrap();
        let site = Site::on(&servers().postgres, &redis.url(), app).await;
        site.database().migrate().await.unwrap();
        (redis, site)
    }

    /// On servers of its own.
    pub(crate) async fn on(postgres: &Postgres, redis: &str, app: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("db{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let admin = connect(&postgres.url("postgres")).await;
        // One at a time: a copy of the template must not be in use.
        eventually("a database is made", async || {
            let make = format!("CREATE DATABASE {name}");
            admin.batch_execute(&make).await.ok()
        })
        .await;
        let url = postgres.url(&name);
        Site {
            app: app.to_owned(),
            sql: connect(&url).await,
            url,
            redis: redis.to_owned(),
            client: Client::connect(redis).await.unwrap(),
        }
    }

    pub(crate) fn database(&self) -> Database {
        Database::open(&Settings::new(&self.url)).unwrap()
    }

    /// The URL of the database behind this network.
    pub(crate) fn url_through(&self, network: &FreezingProxy) -> String {
        let (_, port) = network.url.rsplit_once(':').unwrap();
        let (_, rest) = self.url.split_once(" user=").unwrap();
        format!("host=127.0.0.1 port={port} sslmode=disable user={rest}")
    }

    /// Starts a relay, with connections of its own.
    pub(crate) async fn relay(&self) -> Running {
        let client = Client::connect(&self.redis).await.unwrap();
        Running::start(Relay::new(client, self.database()))
    }

    pub(crate) fn kind(&self) -> String {
        format!("{}:it:job", self.app)
    }

    pub(crate) fn key(&self, id: impl std::fmt::Display) -> String {
        format!("{}:{id}", self.kind())
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.client.stats(&self.kind()).await.unwrap()
    }

    pub(crate) async fn view(&self, key: &str) -> JobView {
        let view = self.client.get(key).await.unwrap();
        view.unwrap_or_else(|| panic!("there is no {key}"))
    }

    /// The first value of a query.
    pub(crate) async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Waits until the outbox has no row.
    pub(crate) async fn is_empty(&self) {
        eventually("the outbox is empty", async || {
            // Along the index: a count of a large backlog, again and again, would cost more than the relay.
            let first = "SELECT id FROM keyfall_outbox ORDER BY id LIMIT 1";
            let first = self.sql.query_opt(first, &[]).await.unwrap();
            first.is_none().then_some(())
        })
        .await;
    }
}

impl Running {
    pub(crate) fn start(relay: Relay) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(relay.run_until(async {
            let _ = stopped.await;
        }));
        Running {
            stop: Some(stop),
            task,
        }
    }

    /// Cuts it off wherever it is.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        self.stop.take();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection of a caller.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}
