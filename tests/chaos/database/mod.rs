//! A PostgreSQL beside Redis, and two daemons between them: transactions schedule jobs through the
//! outbox, the archive keeps each job that has ended, and the copy has each job that has not.
//!
//! | module | task |
//! |---|---|
//! | [`clerk`] | the program that writes orders and rows of the outbox in its transactions |
//! | [`accounts`] | what the database and Redis hold at the end |
//! | [`copied`] | the copy of the pending jobs, and whether it is what the ledgers have |
//! | [`rebuilt`] | the rules if Redis has lost jobs that were brought back: each committed row had its effect at least once, and the last row of a key has the last word |
//! | [`judge`] | the rules: each ended job once in the archive, each committed row once in Redis, each pending job in the copy |

mod accounts;
mod clerk;
mod copied;
mod judge;
mod rebuilt;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use accounts::{Accounts, Archived};
pub(crate) use clerk::{Clerk, KINDS, Op, Order, Reminder};
pub(crate) use copied::{Copied, Pending, PendingJob};
pub(crate) use judge::judge;
use keyfall::{ArchiveTerms, CopyTerms, Handler, Job, Json};
use keyfall_testing::postgres::Postgres;
use keyfall_testing::process::LoggedProcess;
use keyfall_testing::proxies::FreezingProxy;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};
use tokio_postgres::NoTls;

use crate::daemons::{DAEMONS, Ports};
use crate::journal::{Journal, What};
use crate::roles::keyfall;
use crate::scenarios;
use crate::stage::{PATIENCE, Stage};

/// How long a statement of a daemon may take: one that gets no answer is given up after a few times
/// as long.
const STATEMENT_TIMEOUT: &str = "1s";

/// The most bytes of a payload in the archive: more than any has.
const PAYLOAD: u64 = 4096;

/// The database of a trial.
pub(crate) struct Database {
    /// Away only while a thread kills or starts it.
    server: Option<Postgres>,
    /// The URL for all but the daemons.
    url: String,
    /// The network between the server and the daemons.
    pub(crate) network: FreezingProxy,
    daemons: Vec<Option<LoggedProcess>>,
    ports: Ports,
    redis: String,
    dir: PathBuf,
    /// Whether all pending jobs are copied.
    copies: bool,
    /// Once Redis has lost jobs: the last order that it may have kept by itself, as an older snapshot
    /// has it.
    pub(crate) lost: Option<i64>,
}

impl Database {
    /// Starts the server, has all jobs archived, and copied if it is so wanted, and starts the daemons.
    pub(crate) async fn start(
        redis: &str,
        client: &keyfall::Client,
        dir: &Path,
        copies: bool,
    ) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let terms = ArchiveTerms::new().payload(PAYLOAD);
        let set = client.everything().archive(terms).await;
        set.map_err(|error| told(&error))?;
        if copies {
            let set = client.everything().copy(CopyTerms::new()).await;
            set.map_err(|error| told(&error))?;
        }
        let server = tokio::task::spawn_blocking(Postgres::start).await;
        let server = server.map_err(|error| told(&error))?;
        let socket = server.socket();
        let mut database = Database {
            url: server.url("postgres"),
            network: FreezingProxy::at(&socket.to_string_lossy()).await,
            server: Some(server),
            daemons: (0..DAEMONS).map(|_| None).collect(),
            ports: Ports::free(DAEMONS),
            redis: redis.to_owned(),
            dir: dir.to_owned(),
            copies,
            lost: None,
        };
        (0..DAEMONS).for_each(|number| database.start_daemon(number));
        database.until_there_are_tables().await?;
        Ok(database)
    }

    /// A connection past the network of the daemons.
    pub(crate) async fn connect(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        connect(&self.url).await
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    async fn until_there_are_tables(&self) -> Result<(), String> {
        let sql = self.connect().await.map_err(|error| error.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        // The last step of the migrations makes it.
        let made = "SELECT FROM pg_class WHERE relname = 'keyfall_copy_state'";
        while !matches!(sql.query_opt(made, &[]).await, Ok(Some(_))) {
            if Instant::now() > deadline {
                return Err("the daemons make no tables".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn start_daemon(&mut self, number: usize) {
        let place = self.network.url.rsplit_once(':');
        let port = place.map_or("", |(_, port)| port);
        let mut command = keyfall();
        command
            .args(["serve", "--redis-url", &self.redis])
            .args([
                "--http-listen",
                &format!("127.0.0.1:{}", self.ports.0[number]),
            ])
            .args(["--http-access-log=false", "--log-filter", "info"])
            .args(["--database-statement-timeout", STATEMENT_TIMEOUT])
            .args([
                "--database-url",
                &format!("host=127.0.0.1 port={port} user=keyfall dbname=postgres sslmode=disable"),
            ]);
        let name = format!("daemon-{number}");
        self.daemons[number] = Some(LoggedProcess::spawn(command, &name, &self.dir));
    }

    /// Runs `act` on the server in a thread of its own: it takes a while, and blocks.
    async fn with_server(&mut self, act: fn(&mut Postgres)) -> scenarios::Result {
        let mut server = self.server.take().ok_or("the last act has failed")?;
        let done = tokio::task::spawn_blocking(move || {
            act(&mut server);
            server
        });
        self.server = Some(done.await?);
        Ok(())
    }

    /// Asks the daemons to end. Those that have ended by themselves are returned with their error.
    pub(crate) fn leave(&mut self) -> Vec<LoggedProcess> {
        let living: Vec<LoggedProcess> = self.daemons.drain(..).flatten().collect();
        living.iter().for_each(|one| one.signal(Signal::TERM));
        living
    }
}

/// The faults.
impl Stage {
    pub(crate) fn database(&mut self) -> Result<&mut Database, &'static str> {
        self.database.as_mut().ok_or("there is no database")
    }

    /// Kills PostgreSQL, with all its connections.
    pub(crate) async fn kill_postgres(&mut self) -> scenarios::Result {
        self.strike("PostgreSQL is killed");
        self.database()?.with_server(Postgres::kill).await
    }

    pub(crate) async fn begin_postgres(&mut self) -> scenarios::Result {
        self.database()?.with_server(Postgres::begin).await
    }

    /// Kills a daemon beside PostgreSQL.
    pub(crate) fn kill_relay(&mut self, number: usize) -> scenarios::Result {
        if let Some(process) = self.database()?.daemons[number].take() {
            self.kill_process(process);
        }
        Ok(())
    }

    pub(crate) fn start_relay(&mut self, number: usize) -> scenarios::Result {
        self.database()?.start_daemon(number);
        Ok(())
    }
}

/// Writes down each run of a job that a transaction has scheduled.
pub(crate) fn handler(journal: Arc<Journal>) -> impl Handler<(Job, Json<Reminder>), ()> {
    async move |job: Job, Json(reminder): Json<Reminder>| {
        journal.note(What::Reminded {
            key: job.key().to_string(),
            version: reminder.version,
            fence: job.fence(),
        });
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        // Calls on the client tell why it has ended.
        let _ = connection.await;
    });
    Ok(client)
}
