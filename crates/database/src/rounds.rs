//! Rounds over kinds: each has its turn, those first that have waited longest, a few at a time.

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use keyfall::{Kind, Shards};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How often the kinds are looked up.
const REFRESH: Duration = Duration::from_secs(5);

/// How often the shards that a reshard has left are read.
const ALL: Duration = Duration::from_secs(60);

/// The pauses of a kind with nothing to do: from the first, doubled each time, to the last.
const IDLE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The pauses after a failure.
const FAILED: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Work on kinds, a step at a time.
pub(crate) trait Work: Send + Sync + Sized + 'static {
    /// What the work keeps of a kind between two steps.
    type Memory: Default + Clone + Send + Sync + 'static;

    /// What waits while a step fails, and what goes on afterwards: `records of ended jobs`.
    const WHAT: &'static str;

    /// How many kinds are worked on at the same time; the others follow.
    const AT_ONCE: usize;

    /// The kinds to work on.
    fn kinds(&self) -> impl Future<Output = keyfall::Result<BTreeSet<Kind>>> + Send;

    /// One step on a kind.
    fn step(
        &self,
        kind: &Kind,
        shards: Shards,
        memory: &mut Self::Memory,
    ) -> impl Future<Output = Outcome> + Send;

    /// Sets the gauges by all kinds.
    fn tell<'a>(&self, kinds: impl Iterator<Item = &'a Self::Memory>);
}

/// What became of a step.
pub(crate) enum Outcome {
    /// There was nothing to do.
    Empty,
    /// Another process works on the kind.
    Elsewhere,
    /// Something was done, and more waits.
    More,
    /// Something was done, and nothing is left.
    Done,
    /// Redis or the database refuses; what that is, and whether it can pass by itself.
    Failed(String, bool),
}

/// A kind, and when its next turn is.
struct Turn<M> {
    next: Instant,
    pause: Duration,
    is_busy: bool,
    /// When the shards that a reshard has left are read next.
    all: Instant,
    /// Whether it had a step.
    is_known: bool,
    /// As the last step has left it.
    memory: M,
    /// The failure that was logged.
    told: Option<String>,
}

/// Works for ever.
pub(crate) async fn rounds<W: Work>(work: Arc<W>) {
    let mut turns: HashMap<Kind, Turn<W::Memory>> = HashMap::new();
    let mut tasks: JoinSet<(Kind, W::Memory, Outcome)> = JoinSet::new();
    let (mut refresh, mut told) = (Instant::now(), None);
    loop {
        if refresh <= Instant::now() {
            refresh = Instant::now() + REFRESH;
            match work.kinds().await {
                Ok(found) => {
                    told = None;
                    take_over(&mut turns, &found);
                }
                Err(error) => log::<W>(&mut told, &error.to_string(), false),
            }
        }
        begin(&work, &mut turns, &mut tasks);
        // Not before all were asked: a sum that grows from nothing after a start would look like work
        // that has come.
        if turns.values().all(|it| it.is_known) {
            work.tell(turns.values().map(|it| &it.memory));
        }
        let next = turns.values().filter(|it| !it.is_busy).map(|it| it.next);
        let next = match tasks.len() < W::AT_ONCE {
            true => next.min().unwrap_or(refresh).min(refresh),
            false => refresh,
        };
        tokio::select! {
            ended = join_next(&mut tasks) => {
                let (kind, memory, outcome) = ended;
                if let Some(turn) = turns.get_mut(&kind) {
                    turn.memory = memory;
                    turn.end::<W>(outcome);
                }
            }
            () = sleep_until(next) => {}
        }
    }
}

/// Takes over the kinds that were found.
fn take_over<M: Default>(turns: &mut HashMap<Kind, Turn<M>>, found: &BTreeSet<Kind>) {
    turns.retain(|kind, turn| turn.is_busy || found.contains(kind));
    for kind in found {
        turns.entry(kind.clone()).or_insert_with(|| Turn {
            next: Instant::now(),
            pause: IDLE.0,
            is_busy: false,
            all: Instant::now(),
            is_known: false,
            memory: M::default(),
            told: None,
        });
    }
}

/// Begins the work on kinds whose turn has come.
fn begin<W: Work>(
    work: &Arc<W>,
    turns: &mut HashMap<Kind, Turn<W::Memory>>,
    tasks: &mut JoinSet<(Kind, W::Memory, Outcome)>,
) {
    let now = Instant::now();
    let due = turns.iter().filter(|(_, it)| !it.is_busy && it.next <= now);
    let due: BTreeSet<(Instant, Kind)> =
        due.map(|(kind, turn)| (turn.next, kind.clone())).collect();
    for (_, kind) in due.into_iter().take(W::AT_ONCE - tasks.len()) {
        let turn = turns.get_mut(&kind).expect("it is one of them");
        turn.is_busy = true;
        let shards = match turn.all <= now {
            true => Shards::All,
            false => Shards::Present,
        };
        if shards == Shards::All {
            turn.all = now + ALL;
        }
        let (work, mut memory) = (Arc::clone(work), turn.memory.clone());
        tasks.spawn(async move {
            let outcome = work.step(&kind, shards, &mut memory).await;
            (kind, memory, outcome)
        });
    }
}

impl<M> Turn<M> {
    /// Notes the end of a step.
    fn end<W: Work>(&mut self, outcome: Outcome) {
        (self.is_busy, self.is_known) = (false, true);
        let now = Instant::now();
        let pause = match outcome {
            Outcome::Failed(message, may_pass) => {
                log::<W>(&mut self.told, &message, may_pass);
                let pause = self.pause.max(FAILED.0);
                self.next = now + pause;
                self.pause = (2 * pause).min(FAILED.1);
                return;
            }
            Outcome::Empty => self.pause.max(IDLE.0),
            // The other process has its turn.
            Outcome::Elsewhere => IDLE.1,
            Outcome::Done => IDLE.0,
            Outcome::More => Duration::ZERO,
        };
        if self.told.take().is_some() {
            tracing::info!("{} are stored again", W::WHAT);
        }
        self.next = now + pause;
        self.pause = (2 * pause).clamp(IDLE.0, IDLE.1);
    }
}

/// Logs a failure once, until it is another one.
pub(crate) fn log<W: Work>(told: &mut Option<String>, message: &str, may_pass: bool) {
    if told.as_deref() == Some(message) {
        return;
    }
    match may_pass {
        true => tracing::warn!(error = message, "{} wait in Redis", W::WHAT),
        false => tracing::error!(error = message, "{} are not stored", W::WHAT),
    }
    *told = Some(message.to_owned());
}

async fn join_next<T: 'static>(tasks: &mut JoinSet<T>) -> T {
    match tasks.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        None => pending().await,
    }
}
