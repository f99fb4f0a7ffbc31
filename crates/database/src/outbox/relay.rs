//! The relay: wakes when a transaction commits, and passes on the rows of each kind.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use keyfall::{Client, Error as RedisError, ErrorKind, LaneId, NumberedCall};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::batch::{Batch, Passed, Step};
use crate::connection::Database;
use crate::error::{Error, Result};

/// The channel of the trigger on `keyfall_outbox`.
const CHANNEL: &str = "keyfall_outbox";

/// How often the outbox is searched although no commit was heard: rows of a relay that has died are
/// found, and those that were written while the connection was away.
const SEARCH: Duration = Duration::from_secs(5);

/// The pauses after a failure: from the first, doubled each time, to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How many kinds are worked on at the same time; the others follow.
const MOST_KINDS: usize = 64;

/// Passes on the rows of the outbox to Redis, each exactly once. Any number of relays share the work.
///
/// Rows of one kind are passed on in the order of their ids, in batches of up to 1,000. A row that
/// cannot be passed on goes to the table `keyfall_outbox_refused` with the reason, and holds up no
/// other. While Redis or the database is away, rows wait; the rows of a kind whose server is away
/// hold up no other kind.
pub struct Relay(Arc<Shared>);

struct Shared {
    client: Client,
    database: Database,
    /// By which the relays know each other.
    name: String,
}

/// A failure of the same sort is logged once, and its end.
#[derive(Default)]
struct Failing(Option<String>);

impl Relay {
    /// A relay from this database to the Redis of the client.
    pub fn new(client: Client, database: Database) -> Self {
        let name = LaneId::new().to_string();
        metrics::describe_counter!("keyfall_outbox_passed_total", "Rows that were passed on");
        metrics::describe_counter!("keyfall_outbox_refused_total", "Rows that were refused");
        metrics::describe_gauge!(
            "keyfall_outbox_lag_seconds",
            "How long the oldest row of the last batch had waited"
        );
        Relay(Arc::new(Shared {
            client,
            database,
            name,
        }))
    }

    /// Works until `stopped`. What is on its way by then is left to the next relay, which repeats
    /// nothing.
    pub async fn run_until(self, stopped: impl Future<Output = ()>) {
        tokio::select! {
            () = stopped => {}
            () = self.run() => unreachable!("it works for ever"),
        }
    }

    async fn run(&self) {
        // One message is as good as many.
        let (heard, mut wakes) = mpsc::channel(1);
        tokio::join!(self.0.listen(heard), self.0.work(&mut wakes));
    }
}

impl Shared {
    /// Listens for commits, again and again.
    async fn listen(&self, heard: mpsc::Sender<()>) {
        let (mut failing, mut pause) = (Failing::default(), PAUSES.0);
        loop {
            let began = tokio::time::Instant::now();
            if let Err(error) = self.database.listen(CHANNEL, &heard).await {
                if began.elapsed() > PAUSES.1 {
                    (failing, pause) = (Failing::default(), PAUSES.0);
                }
                failing.log(&self.database, &error);
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    /// Searches the outbox with each wake, and now and then.
    async fn work(self: &Arc<Self>, wakes: &mut mpsc::Receiver<()>) {
        let (mut failing, mut pause) = (Failing::default(), PAUSES.0);
        // The kinds that are worked on: for each, whether a search has met it since.
        let mut busy: HashMap<String, bool> = HashMap::new();
        let mut tasks = JoinSet::new();
        let mut search = true;
        loop {
            if std::mem::take(&mut search) {
                match self.database.kinds_with_rows().await {
                    Ok(kinds) => {
                        failing.end(&self.database);
                        pause = PAUSES.0;
                        for kind in kinds {
                            if let Some(was_met) = busy.get_mut(&kind) {
                                *was_met = true;
                            } else if busy.len() < MOST_KINDS {
                                busy.insert(kind.clone(), false);
                                tasks.spawn(self.clone().pass_on(kind));
                            }
                        }
                    }
                    Err(error) => {
                        failing.log(&self.database, &error);
                        sleep(pause).await;
                        pause = (2 * pause).min(PAUSES.1);
                        search = true;
                        continue;
                    }
                }
            }
            tokio::select! {
                _ = timeout(SEARCH, wakes.recv()) => search = true,
                Some(ended) = tasks.join_next() => {
                    let kind = ended.expect("it does not panic");
                    // It may have ended before it saw the rows of that search; and kinds beyond the
                    // limit wait.
                    let is_full = busy.len() >= MOST_KINDS;
                    search = busy.remove(&kind) == Some(true) || is_full;
                }
            }
        }
    }

    /// Passes on the rows of a kind until there are none, or another relay does. Returns the kind.
    async fn pass_on(self: Arc<Self>, kind: String) -> String {
        let (mut failing, mut pause) = (Failing::default(), PAUSES.0);
        let mut passed = None;
        loop {
            let batch = match self.database.step(&kind, &self.name, passed.take()).await {
                Ok(Step::Next(batch)) => batch,
                Ok(Step::Over | Step::Taken) => return kind,
                // The batch is sent once more, and answered as before.
                Err(error) => {
                    failing.log(&self.database, &error);
                    sleep(pause).await;
                    pause = (2 * pause).min(PAUSES.1);
                    continue;
                }
            };
            match self.send(batch).await {
                Ok(done) => {
                    (failing, pause) = (Failing::default(), PAUSES.0);
                    passed = Some(done);
                }
                Err(error) => {
                    failing.log_redis(&kind, &error);
                    sleep(pause).await;
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// The first error of a call that may be sent again.
    async fn send(&self, batch: Batch) -> Result<Passed, RedisError> {
        let Batch { lane, number, rows } = batch;
        let oldest = rows.iter().map(|row| row.age).max().unwrap_or_default();
        let (mut calls, mut ids) = (Vec::<NumberedCall>::new(), Vec::new());
        let mut refused = Vec::new();
        for row in rows {
            let id = row.id;
            match row.into_call() {
                Ok(call) => {
                    calls.push(call);
                    ids.push(id);
                }
                Err(why) => refused.push((id, why)),
            }
        }
        let answers = self.client.send_numbered(&lane, number, calls).await;
        let mut done = 0;
        for (id, answer) in ids.into_iter().zip(answers) {
            match answer {
                Ok(_) => done += 1,
                Err(error) if is_refusal(&error) => refused.push((id, error.to_string())),
                Err(error) => return Err(error),
            }
        }
        metrics::counter!("keyfall_outbox_passed_total").increment(done);
        metrics::counter!("keyfall_outbox_refused_total").increment(refused.len() as u64);
        metrics::gauge!("keyfall_outbox_lag_seconds").set(oldest.as_secs_f64());
        Ok(Passed { number, refused })
    }
}

/// Whether the call itself is wrong, so that it can never be passed on.
fn is_refusal(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidKey
            | ErrorKind::InvalidTime
            | ErrorKind::InvalidPolicy
            | ErrorKind::InvalidRule
            | ErrorKind::InvalidSetting
            | ErrorKind::InvalidPayload
            | ErrorKind::InvalidHeaders
    )
}

impl Failing {
    fn log(&mut self, database: &Database, error: &Error) {
        let place = database.place();
        let error = error.to_string();
        if self.0.as_ref() != Some(&error) {
            tracing::warn!(place, error, "the outbox waits for the database");
            self.0 = Some(error);
        }
    }

    fn log_redis(&mut self, kind: &str, error: &RedisError) {
        let error = error.to_string();
        if self.0.as_ref() != Some(&error) {
            tracing::warn!(kind, error, "rows of the outbox wait for Redis");
            self.0 = Some(error);
        }
    }

    fn end(&mut self, database: &Database) {
        if self.0.take().is_some() {
            tracing::info!(
                place = database.place(),
                "the outbox has its database again"
            );
        }
    }
}
