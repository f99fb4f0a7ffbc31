//! The relay: wakes when a transaction commits, and passes on the rows of each kind.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use keyfall::{Client, Error as RedisError, LaneId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::batch::{Batch, BatchNames, Passed, Step};
use crate::connection::Database;
use crate::error::{Error, Result};

/// The channel of the trigger on `keyfall_outbox`.
const CHANNEL: &str = "keyfall_outbox";

/// How often the outbox is searched although no commit was heard: rows of a relay that has died are
/// found, and those that were written while the connection was away.
const SEARCH: Duration = Duration::from_secs(5);

/// The pauses after a failure: from the first, doubled each time, to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long a kind is left to the relay that works on it.
const TAKEN: Duration = Duration::from_secs(2);

/// How many kinds are worked on at the same time; the others follow.
const MOST_KINDS: usize = 16;

/// After so many batches a kind lets others have its place.
const TURN: usize = 20;

/// How long the end may wait for the database.
const PARTING: Duration = Duration::from_secs(2);

/// Passes on the rows of the outbox to Redis, each once, except after the failures that
/// `docs/database.md` lists. Any number of relays share the work.
///
/// Rows of one kind are passed on in the order of their ids, in batches of up to 1,000. A row that
/// cannot be passed on goes to the table `keyfall_outbox_refused` with the reason, and holds up no
/// other. While Redis or the database is away, rows wait; the rows of a kind whose server is away
/// hold up no other kind.
pub struct Relay(Arc<Shared>);

struct Shared {
    client: Client,
    database: Database,
    /// The name by which the relays know each other.
    name: String,
    batches: BatchNames,
}

/// A kind on which the relay works, or has worked in vain.
#[derive(Default)]
struct Kind {
    is_busy: bool,
    /// Whether a search has met it while it was worked on.
    was_met: bool,
    not_before: Option<Instant>,
    /// The last pause after a failure.
    pause: Option<Duration>,
    /// What was passed on, if the database does not know of it yet.
    passed: Option<Passed>,
    /// The failure that was logged.
    told: Option<String>,
}

/// Why the work on a kind has ended.
enum End {
    /// It has no more rows.
    Over,
    /// Another relay works on it.
    Taken,
    /// Others may have its place.
    Turn,
    /// The database or Redis refuses; what that is, and whether it can pass by itself.
    Failed(String, bool),
}

impl Relay {
    /// A relay from this database to the Redis of the client.
    pub fn new(client: Client, database: Database) -> Self {
        metrics::describe_counter!("keyfall_outbox_passed_total", "Rows that were passed on");
        metrics::describe_counter!("keyfall_outbox_refused_total", "Rows that were refused");
        metrics::describe_gauge!(
            "keyfall_outbox_lag_seconds",
            "How long the oldest row has waited"
        );
        metrics::describe_gauge!(
            "keyfall_database_up",
            "1 if the database has answered, otherwise 0"
        );
        Relay(Arc::new(Shared {
            client,
            database,
            name: LaneId::new().to_string(),
            batches: BatchNames::new(),
        }))
    }

    /// Works until `stopped`. What is on its way by then is left to the next relay, which repeats
    /// nothing.
    pub async fn run_until(self, stopped: impl Future<Output = ()>) {
        // One message is as good as many.
        let (heard, mut wakes) = mpsc::channel(1);
        tokio::select! {
            () = stopped => {}
            () = self.0.listen(heard) => unreachable!("it listens for ever"),
            () = self.0.work(&mut wakes) => unreachable!("it works for ever"),
        }
        // Without it, the others would wait until they may take the kinds over.
        let _ = timeout(PARTING, self.0.database.leave(&self.0.name)).await;
    }
}

impl Shared {
    /// Listens for commits, again and again.
    async fn listen(&self, heard: mpsc::Sender<()>) {
        let (mut told, mut pause) = (None, PAUSES.0);
        loop {
            let began = Instant::now();
            if let Err(error) = self.database.listen(CHANNEL, &heard).await {
                if began.elapsed() > PAUSES.1 {
                    (told, pause) = (None, PAUSES.0);
                }
                self.log(&mut told, &error);
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    /// Searches the outbox with each wake, and now and then, and has the kinds worked on.
    async fn work(self: &Arc<Self>, wakes: &mut mpsc::Receiver<()>) {
        let (mut told, mut pause) = (None, PAUSES.0);
        let mut kinds: HashMap<String, Kind> = HashMap::new();
        let mut tasks = JoinSet::new();
        let (mut last, mut next_search) = (String::new(), Instant::now());
        loop {
            let now = Instant::now();
            if now >= next_search {
                match self.database.kinds_with_rows().await {
                    Ok(found) => {
                        tell(true);
                        self.recovered(&mut told);
                        (pause, next_search) = (PAUSES.0, now + SEARCH);
                        self.begin(found, &mut kinds, &mut last, &mut tasks);
                    }
                    Err(error) => {
                        tell(false);
                        self.log(&mut told, &error);
                        next_search = now + pause;
                        pause = (2 * pause).min(PAUSES.1);
                    }
                }
            }
            // A search begins kinds whose pause is over, if it succeeds and there are places.
            let can_begin = told.is_none() && tasks.len() < MOST_KINDS;
            let asleep = kinds.values().filter(|kind| can_begin && !kind.is_busy);
            let next_kind = asleep.filter_map(|kind| kind.not_before).min();
            let next = next_kind.map_or(next_search, |at| at.min(next_search));
            let ended = async {
                match tasks.join_next().await {
                    Some(ended) => ended,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = wakes.recv() => next_search = Instant::now(),
                () = sleep_until(next) => next_search = Instant::now(),
                ended = ended => {
                    let is_full = tasks.len() + 1 >= MOST_KINDS;
                    let is_met = match ended {
                        Ok((kind, end, passed)) => self.end(kind, end, passed, &mut kinds),
                        Err(error) => {
                            tracing::error!(%error, "the work on a kind of the outbox has failed");
                            kinds.clear();
                            tasks.abort_all();
                            true
                        }
                    };
                    // Rows that came at its end were not seen, and other kinds may wait for a place.
                    if is_full || is_met {
                        next_search = Instant::now();
                    }
                }
            }
        }
    }

    /// Begins to work on kinds that have rows, behind the one that was begun last.
    fn begin(
        self: &Arc<Self>,
        mut found: Vec<String>,
        kinds: &mut HashMap<String, Kind>,
        last: &mut String,
        tasks: &mut JoinSet<(String, End, Option<Passed>)>,
    ) {
        // The database sorts by its own collation.
        found.sort_unstable();
        let behind = found.partition_point(|kind| kind <= last);
        found.rotate_left(behind);
        let now = Instant::now();
        let with_rows: HashSet<&String> = found.iter().collect();
        kinds.retain(|name, kind| kind.is_busy || with_rows.contains(name));
        for name in found {
            let kind = kinds.entry(name.clone()).or_default();
            if kind.is_busy {
                kind.was_met = true;
            } else if kind.not_before.is_none_or(|at| at <= now) && tasks.len() < MOST_KINDS {
                kind.is_busy = true;
                kind.not_before = None;
                *last = name.clone();
                let (relay, passed) = (self.clone(), kind.passed.take());
                tasks.spawn(async move {
                    let mut passed = passed;
                    let end = relay.pass_on(&name, &mut passed).await;
                    (name, end, passed)
                });
            }
        }
    }

    /// Notes how the work on a kind has ended. Returns whether to search again.
    fn end(
        &self,
        name: String,
        end: End,
        passed: Option<Passed>,
        kinds: &mut HashMap<String, Kind>,
    ) -> bool {
        let kind = kinds.entry(name.clone()).or_default();
        kind.is_busy = false;
        kind.passed = passed;
        let was_met = std::mem::take(&mut kind.was_met);
        match end {
            End::Over => {
                kinds.remove(&name);
                was_met
            }
            End::Turn => true,
            End::Taken => {
                kind.not_before = Some(Instant::now() + TAKEN);
                false
            }
            End::Failed(why, can_pass) => {
                let pause = kind.pause.map_or(PAUSES.0, |last| (2 * last).min(PAUSES.1));
                kind.pause = Some(pause);
                kind.not_before = Some(Instant::now() + pause);
                if kind.told.as_ref() != Some(&why) {
                    match can_pass {
                        true => tracing::warn!(kind = name, why, "rows of the outbox wait"),
                        false => tracing::error!(
                            kind = name,
                            why,
                            "rows of the outbox wait until somebody mends this"
                        ),
                    }
                    kind.told = Some(why);
                }
                false
            }
        }
    }

    /// Passes on rows of a kind. `passed` is what the database does not know of yet.
    async fn pass_on(&self, kind: &str, passed: &mut Option<Passed>) -> End {
        for _ in 0..TURN {
            let (relay, new) = (&self.name, self.batches.next());
            let step = self.database.step(kind, relay, new, passed.as_ref());
            let batch = match self.database.in_time(step).await {
                Ok(step) => {
                    *passed = None;
                    match step {
                        Step::Next(batch) => batch,
                        Step::Over => return End::Over,
                        Step::Taken => return End::Taken,
                    }
                }
                Err(error) => return End::Failed(error.to_string(), error.may_pass()),
            };
            match self.send(batch).await {
                Ok(done) => *passed = Some(done),
                Err(error) => return End::Failed(error.to_string(), error.is_retryable()),
            }
        }
        End::Turn
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// The first error of a call that has to be sent again.
    async fn send(&self, batch: Batch) -> Result<Passed, RedisError> {
        let Batch { name, rows } = batch;
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let calls = rows.into_iter().map(|row| row.into_call()).collect();
        let lane = LaneId::parse(&name.lane)?;
        let number = u64::try_from(name.number).unwrap_or(0);
        let answers = self.client.send_numbered(&lane, number, calls).await;
        let (mut done, mut refused) = (0, Vec::new());
        for (id, answer) in ids.into_iter().zip(answers) {
            match answer {
                Ok(_) => done += 1,
                Err(error) if error.is_refusal() => refused.push((id, error.to_string())),
                Err(error) => return Err(error),
            }
        }
        metrics::counter!("keyfall_outbox_passed_total").increment(done);
        metrics::counter!("keyfall_outbox_refused_total").increment(refused.len() as u64);
        Ok(Passed { name, refused })
    }

    /// Logs a failure of the database, unless it was the last one as well.
    fn log(&self, told: &mut Option<String>, error: &Error) {
        let (place, error) = (self.database.place(), error.to_string());
        if told.as_ref() != Some(&error) {
            tracing::warn!(place, error, "the outbox waits for the database");
            *told = Some(error);
        }
    }

    fn recovered(&self, told: &mut Option<String>) {
        if told.take().is_some() {
            let place = self.database.place();
            tracing::info!(place, "the outbox has its database again");
        }
    }
}

/// Notes whether the database answers. The counters are there before they count: otherwise nobody sees
/// their first increase, or that they have not forgotten it.
fn tell(is_up: bool) {
    metrics::gauge!("keyfall_database_up").set(f64::from(u8::from(is_up)));
    for name in [
        "keyfall_outbox_passed_total",
        "keyfall_outbox_refused_total",
    ] {
        metrics::counter!(name).increment(0);
    }
}
