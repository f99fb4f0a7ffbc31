//! Connections to the database: a pool, which replaces those that have broken, and one that listens.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_postgres::AsyncMessage;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result, with_causes};
use crate::settings::{Settings, place};

/// The oldest server that has all that is used, as `server_version_num` writes it.
const OLDEST: u32 = 130_000;

/// How long a connection may take until it can be used, TLS and password included.
const CONNECTING: Duration = Duration::from_secs(15);

/// By how much a server that does not answer may exceed the time of a statement.
const SILENCE: Duration = Duration::from_secs(5);

/// A database that has, or will have, the tables of Keyfall. Cheap to clone; clones share the
/// connections.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    config: tokio_postgres::Config,
    tls: MakeRustlsConnect,
    statement_timeout: Duration,
    /// How many searches of the archive may run at once.
    pub(crate) searches: Arc<Semaphore>,
}

impl Database {
    /// A database by its settings. It connects with the first call.
    ///
    /// # Errors
    /// [`Error::Setting`] if a setting is not valid.
    pub fn open(settings: &Settings) -> Result<Self> {
        let config = settings.config()?;
        let tls = settings.tls(&config)?;
        let method = RecyclingMethod::Fast;
        let manager = Manager::from_config(
            config.clone(),
            tls.clone(),
            ManagerConfig {
                recycling_method: method,
            },
        );
        let limit = settings.statement_timeout.as_millis();
        // Days of a delay are computed in UTC, and a row that was passed on is not passed on again
        // after a crash of the server.
        // A transaction whose network is gone without a word must not hold its locks for hours.
        // Whatever the database has as its default: a transaction that has waited for a lock reads
        // what was committed until then.
        let set = format!(
            "SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit};
            SET TimeZone = 'UTC'; SET synchronous_commit = on;
            SET default_transaction_isolation = 'read committed'"
        );
        let limit = Hook::async_fn(move |client, _| {
            let set = set.clone();
            Box::pin(async move {
                let facts = "SELECT current_setting('server_version_num'),
                    current_setting('server_encoding')";
                let facts = client.query_one(facts, &[]).await;
                let facts = facts.map_err(HookError::Backend)?;
                check_version(facts.get(0)).map_err(HookError::message)?;
                check_encoding(facts.get(1)).map_err(HookError::message)?;
                client.batch_execute(&set).await.map_err(HookError::Backend)
            })
        });
        let pool = Pool::builder(manager)
            .max_size(settings.connections)
            .post_create(limit)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(settings.statement_timeout + SILENCE),
                create: Some(CONNECTING),
                recycle: Some(SILENCE),
            })
            .build()
            .map_err(|error| Error::Setting(format!("no pool of connections: {error}")))?;
        Ok(Database {
            pool,
            config,
            tls,
            statement_timeout: settings.statement_timeout,
            searches: Arc::new(Semaphore::new((settings.connections / 2).max(1))),
        })
    }

    /// A connection of the pool, or a new one. Waits while all are in use.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if there is none, and [`Error::Refused`] if the server refuses one.
    pub(crate) async fn connection(&self) -> Result<Object> {
        use deadpool_postgres::PoolError;
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                Error::of("a connection")(error)
            }
            PoolError::PostCreateHook(HookError::Message(message)) => {
                Error::Schema(message.into_owned())
            }
            error => Error::Unreachable(with_causes(&error)),
        })
    }

    /// Gives up a call on a server that does not answer: the network may be gone without a word.
    /// Its connection is back in the pool by then, and is closed with all that are idle: the next
    /// call would wait for it as long.
    pub(crate) async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = 2 * self.statement_timeout + SILENCE;
        let done = timeout(limit, call).await.unwrap_or_else(|_| {
            self.pool.retain(|_, _| false);
            Err(Error::Unreachable(format!(
                "it has not answered for {limit:?}"
            )))
        });
        self.evict_read_only(done)
    }

    /// Closes the idle connections if a server takes no writes: they would stay with it for ever, and
    /// the next call can find one that does.
    pub(crate) fn evict_read_only<T>(&self, done: Result<T>) -> Result<T> {
        if matches!(done, Err(Error::ReadOnly { .. })) {
            self.pool.retain(|_, _| false);
        }
        done
    }

    /// Listens to a channel until the connection ends. `heard` gets a message when that begins, and
    /// one for each notification; a full channel loses nothing, since one message is enough.
    ///
    /// # Errors
    /// Why the connection has ended.
    pub(crate) async fn listen(&self, channel: &str, heard: &mpsc::Sender<()>) -> Result<()> {
        let connecting = timeout(CONNECTING, self.config.connect(self.tls.clone())).await;
        let connected = connecting
            .map_err(|_| Error::Unreachable(format!("no connection within {CONNECTING:?}")))?;
        let (client, mut connection) = connected.map_err(Error::of("a connection"))?;
        let listen = format!("LISTEN {channel}");
        let listening = async {
            let listening = client.batch_execute(&listen).await;
            listening.map_err(Error::of("to listen"))?;
            let _ = heard.try_send(());
            // The client has to live as long as the connection.
            std::future::pending::<Result<()>>().await
        };
        let reading = async {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(_) = message.map_err(Error::of("to listen"))? {
                    let _ = heard.try_send(());
                }
            }
            Err(Error::Unreachable("it has closed the connection".into()))
        };
        tokio::select! {
            ended = reading => ended,
            failed = listening => failed,
        }
    }

    /// The hosts, for messages.
    pub(crate) fn place(&self) -> String {
        place(&self.config)
    }
}

fn check_version(text: String) -> Result<(), String> {
    match text.parse::<u32>() {
        Ok(version) if version < OLDEST => Err(format!(
            "this is PostgreSQL {}.{}, and Keyfall needs 13 or later",
            version / 10_000,
            version % 10_000
        )),
        _ => Ok(()),
    }
}

/// Keys and errors are compared and searched as text, and each can have any character.
fn check_encoding(name: &str) -> Result<(), String> {
    match name {
        "UTF8" => Ok(()),
        _ => Err(format!(
            "the encoding of the database is {name}, and Keyfall needs UTF8: make the database by \
             `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
        )),
    }
}
