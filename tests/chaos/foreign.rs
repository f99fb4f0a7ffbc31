//! A program in another language, as a process of its own: it has no library of Keyfall, calls the
//! Redis functions, and finds the primary by the sentinels. Each call has an id. A call whose answer
//! is lost is repeated under its id until it is answered, at the primary of that moment; and many
//! calls are repeated again after their answer, as some libraries do.
//!
//! Some connections are closed on purpose before the answer has come.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use keyfall_testing::process::told_to_stop;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult, Value};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::journal::{Answer, Ask, Journal, What};
use crate::load::KINDS;
use crate::order::{Order, Plan};
use crate::plain::ms;

/// Numbers its versions; no producer has this number.
const NUMBER: u64 = 1001;

const TICK: Duration = Duration::from_millis(10);

/// How many stories it begins in a second.
const STORIES_A_SECOND: f64 = 20.0;

/// The limit for the answer to one attempt.
const PATIENCE: Duration = Duration::from_secs(1);

/// The limit for the answer to a call, with all its repeats.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

/// The pause before a call without an answer is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// How many ms to wait until all replicas have a call.
const WAIT: u64 = 500;

/// Refusals that another attempt may mend: the server is no primary, or not ready.
const PASSING: [&str; 5] = ["READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "BUSY"];

/// The task of this program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) name: String,
    /// The addresses of the sentinels, and their name for the primary.
    pub(crate) sentinels: Vec<String>,
    pub(crate) master: String,
    /// The number of replicas that may take the place of the primary.
    pub(crate) replicas: u64,
    pub(crate) journals: PathBuf,
    pub(crate) seed: u64,
}

/// One job, and the calls on it.
struct Story {
    key: String,
    plan: Plan,
    delay: Duration,
    /// Whether the first call may create the job only.
    is_new: bool,
    then: Then,
    /// The pause between the first call and the second.
    pause: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Cancel,
    Replace,
    /// Cancels the job and schedules it anew; then the cancel is repeated.
    CancelAndRepeat,
}

impl Story {
    fn imagine(random: &mut StdRng, number: f64) -> Self {
        let ms = |random: &mut StdRng, most| Duration::from_millis(random.random_range(0..most));
        let kind = KINDS[random.random_range(0..KINDS.len())];
        Story {
            key: format!("{kind}:foreign-{number}"),
            plan: match random.random_range(0..100) {
                0..8 => Plan::Retry,
                8..18 => Plan::Slow(random.random_range(1..400)),
                _ => Plan::Done,
            },
            delay: ms(random, 2000),
            is_new: random.random_bool(0.3),
            then: match random.random_range(0..100) {
                0..60 => Then::Nothing,
                60..75 => Then::Cancel,
                75..85 => Then::Replace,
                _ => Then::CancelAndRepeat,
            },
            pause: ms(random, 2000),
        }
    }
}

/// Goes on until its standard input ends.
pub(crate) fn main(terms: Terms) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run(terms));
}

async fn run(terms: Terms) {
    let mut random = StdRng::seed_from_u64(terms.seed);
    let enough = CancellationToken::new();
    let sentinels = terms.sentinels.iter().map(|address| Sentinel {
        redis: redis::Client::open(format!("redis://{address}")).expect("its address is valid"),
        open: Mutex::new(None),
    });
    let program = Arc::new(Program {
        sentinels: sentinels.collect(),
        journal: Journal::open(&terms.journals, &terms.name),
        calls: AtomicU64::new(0),
        versions: AtomicU64::new(NUMBER << 32),
        enough: enough.clone(),
        terms,
    });
    let stories = TaskTracker::new();
    let told_to_stop = told_to_stop();
    tokio::pin!(told_to_stop);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    let mut started = 0_f64;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut told_to_stop => break,
        }
        let wanted = began.elapsed().as_secs_f64() * STORIES_A_SECOND;
        while started < wanted {
            started += 1.0;
            let story = Story::imagine(&mut random, started);
            let program = program.clone();
            stories.spawn(async move { program.tell(story).await });
        }
    }
    enough.cancel();
    stories.close();
    stories.wait().await;
}

struct Sentinel {
    redis: redis::Client,
    open: Mutex<Option<MultiplexedConnection>>,
}

struct Program {
    terms: Terms,
    sentinels: Vec<Sentinel>,
    journal: Journal,
    calls: AtomicU64,
    versions: AtomicU64,
    /// Cancelled when no story is to go on.
    enough: CancellationToken,
}

/// A call that was answered, and whose effect all replicas had.
struct Kept {
    call: u64,
    words: Vec<String>,
}

impl Program {
    /// Runs a story. `None` if it ends early: a call was not answered, or the stop was asked for.
    async fn tell(&self, story: Story) -> Option<()> {
        let (key, delay) = (&story.key, story.delay);
        let kept = self.schedule(key, story.plan, delay, story.is_new).await?;
        match story.then {
            Then::Nothing => self.repeat(kept?).await,
            Then::Cancel => {
                self.wait(story.pause).await?;
                let kept = self.cancel(key).await?;
                self.repeat(kept?).await
            }
            Then::Replace => {
                self.wait(story.pause).await?;
                let kept = self.schedule(key, Plan::Done, delay, false).await?;
                self.repeat(kept?).await
            }
            Then::CancelAndRepeat => {
                let cancelled = self.cancel(key).await?;
                // If it was a new call, the repeat of the cancel would take this job away.
                self.schedule(key, Plan::Done, delay + 2 * story.pause, false)
                    .await?;
                self.repeat(cancelled?).await
            }
        }
    }

    async fn wait(&self, time: Duration) -> Option<()> {
        let waited = self.enough.run_until_cancelled(sleep(time)).await;
        waited.filter(|()| !self.enough.is_cancelled())
    }

    async fn schedule(
        &self,
        key: &str,
        plan: Plan,
        delay: Duration,
        is_new: bool,
    ) -> Option<Option<Kept>> {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let order = serde_json::to_string(&Order { version, plan });
        let mut words = vec!["keyfall_schedule".into(), "1".into(), key.to_owned()];
        words.push(order.expect("an order is plain data"));
        words.extend(["PX".into(), ms(delay).to_string()]);
        words.extend(is_new.then(|| "NX".into()));
        let ask = Ask::Schedule {
            version,
            deadly: plan.is_deadly(),
            after: ms(delay),
        };
        self.call(key, ask, words).await
    }

    async fn cancel(&self, key: &str) -> Option<Option<Kept>> {
        let words = vec!["keyfall_cancel".into(), "1".into(), key.to_owned()];
        self.call(key, Ask::Cancel, words).await
    }

    /// Calls a function under a new id until there is an answer. `None` if there is none; an empty
    /// value if not all replicas had the effect.
    async fn call(&self, key: &str, ask: Ask, mut words: Vec<String>) -> Option<Option<Kept>> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        words.extend(["CALL".into(), format!("{}-{call}", self.terms.name)]);
        self.journal.note(What::Sent {
            call,
            key: key.to_owned(),
            ask,
        });
        let (reply, mut redis) = match self.until_answered(&words).await {
            Ok(answered) => answered,
            Err(answer) => {
                self.journal.note(What::Answered { call, answer });
                return None;
            }
        };
        let answer = read(&reply);
        self.journal.note(What::Answered { call, answer });
        let kept = self.is_kept(&mut redis).await;
        self.journal.note(What::Replied { call, reply, kept });
        Some(kept.then_some(Kept { call, words }))
    }

    /// Repeats a call of which nothing may be forgotten, some time after its answer.
    async fn repeat(&self, kept: Kept) -> Option<()> {
        let Kept { call, words } = kept;
        self.wait(Duration::from_millis(rand::random_range(0..3000)))
            .await?;
        if let Ok((reply, _)) = self.until_answered(&words).await {
            let kept = false;
            self.journal.note(What::Replied { call, reply, kept });
        }
        Some(())
    }

    /// Makes a call until it is answered. Returns the answer, and the connection on which it came.
    async fn until_answered(
        &self,
        words: &[String],
    ) -> Result<(String, MultiplexedConnection), Answer> {
        let deadline = Instant::now() + LAST_PATIENCE;
        loop {
            let told = match timeout(PATIENCE, self.attempt(words)).await {
                Ok(Ok(answered)) => return Ok(answered),
                Ok(Err(error)) if is_final(&error) => {
                    return Err(Answer::Failed(error.to_string()));
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() > deadline {
                return Err(Answer::Unknown(told));
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt(&self, words: &[String]) -> RedisResult<(String, MultiplexedConnection)> {
        let primary = self.primary().await.ok_or_else(unanswered)?;
        let mut redis = connect(&redis::Client::open(format!("redis://{primary}"))?).await?;
        let mut call = redis::cmd("FCALL");
        call.arg(words);
        let answer = call.query_async::<Value>(&mut redis);
        // One of five connections is closed before the answer has come.
        let value = match rand::random_bool(0.2) {
            true => {
                let soon = Duration::from_millis(rand::random_range(0..3));
                timeout(soon, answer).await.map_err(|_| unanswered())??
            }
            false => answer.await?,
        };
        Ok((written(&value), redis))
    }

    /// Whether all replicas have what was called on this connection, and everything before it.
    async fn is_kept(&self, redis: &mut MultiplexedConnection) -> bool {
        let mut both = redis::pipe();
        // `WAIT` covers the writes of its own connection. The call may have been carried out on
        // another one, and the answer was repeated without a write.
        both.cmd("SET").arg("chaos-foreign").arg("").ignore();
        both.cmd("WAIT").arg(self.terms.replicas).arg(WAIT);
        let told: RedisResult<(u64,)> = both.query_async(redis).await;
        told.is_ok_and(|(had,)| had >= self.terms.replicas)
    }

    /// The address that most sentinels name: one of them may be behind.
    async fn primary(&self) -> Option<String> {
        let asked = self.sentinels.iter().map(|it| it.named(&self.terms.master));
        let named: Vec<String> = join_all(asked).await.into_iter().flatten().collect();
        let votes = |one: &String| named.iter().filter(|it| *it == one).count();
        let most = named
            .iter()
            .find(|one| votes(one) * 2 > self.sentinels.len());
        most.cloned()
    }
}

impl Sentinel {
    async fn named(&self, master: &str) -> Option<String> {
        let mut open = self.open.lock().await;
        let asked = async {
            let mut redis = match &*open {
                Some(redis) => redis.clone(),
                None => connect(&self.redis).await?,
            };
            let mut ask = redis::cmd("SENTINEL");
            ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
            let (host, port): (String, u16) = ask.query_async(&mut redis).await?;
            RedisResult::Ok((redis, format!("{host}:{port}")))
        };
        // A stopped one does not answer.
        let named = timeout(PATIENCE / 2, asked).await.ok().and_then(Result::ok);
        let (redis, address) = named.unzip();
        *open = redis;
        address
    }
}

async fn connect(redis: &redis::Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    redis
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

fn unanswered() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Whether an error says that another attempt is of no use.
fn is_final(error: &RedisError) -> bool {
    let code = error.code();
    code.is_some_and(|code| !PASSING.contains(&code))
}

fn read(reply: &str) -> Answer {
    match reply.split(' ').next().unwrap_or_default() {
        "created" => Answer::Done,
        "replaced" => Answer::Replaced,
        "succeeds" => Answer::Follows,
        "cancelled" => Answer::Cancelled,
        "running" => Answer::Running,
        "absent" | "exists" => Answer::Absent,
        _ => Answer::Failed(format!("an unknown answer: {reply:?}")),
    }
}

/// The words of an answer, with blanks between them.
fn written(value: &Value) -> String {
    match value {
        Value::Array(all) => all.iter().map(written).collect::<Vec<_>>().join(" "),
        Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}
