//! A program as a process of its own that knows nothing of Keyfall: by plain commands it sets keys
//! with a time, changes the time, and changes and removes keys. Each command is written down before
//! it is sent and when it is answered.
//!
//! Each story has a key of its own, and its commands follow one another. A command without an
//! answer is the last one: it may have been carried out or not.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use keyfall_testing::process::told_to_stop;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Value};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::journal::{Answer, Ask, Journal, Version, What};
use crate::load::FAR;
use crate::order::{Order, Plan};
use crate::races::Race;

/// The start of the keys of this program.
pub(crate) const PLAIN: &str = "chaos:plain";

/// The adopted kinds: a missing key runs the job of one, and cancels the job of the other.
pub(crate) const RUN: &str = "chaos:plain:run";
pub(crate) const CANCEL: &str = "chaos:plain:cancel";

/// Numbers its versions; no producer has this number.
const NUMBER: u64 = 1000;

const TICK: Duration = Duration::from_millis(10);

/// The limit for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The life of a key in ms, unless it is to live for long.
pub(crate) const LIFE: std::ops::Range<u64> = 300..3000;

/// The task of this program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) journals: PathBuf,
    pub(crate) seed: u64,
    pub(crate) stories_a_second: f64,
    /// Whether its clock and the clock of Redis are the same, so that a command can name a time.
    pub(crate) names_times: bool,
    /// Whether its commands [race](crate::races) the times of the keys.
    pub(crate) races: bool,
}

/// One key, and its commands.
struct Story {
    key: String,
    plan: Plan,
    life: Duration,
    then: Then,
    /// The pause between the first command and the second.
    pause: Duration,
    second_life: Duration,
    names_time: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    /// The time of the key begins anew, so often.
    Beats(u32),
    Move,
    Replace,
    Delete,
    Persist,
    /// Replaces the key by a value without a time.
    Overwrite,
}

impl Story {
    fn imagine(random: &mut StdRng, terms: &Terms, number: f64) -> Self {
        let ms = |random: &mut StdRng, range| Duration::from_millis(random.random_range(range));
        let kind = some_kind(random);
        let then = match random.random_range(0..100) {
            0..46 => Then::Nothing,
            46..56 => Then::Beats(random.random_range(2..8)),
            56..71 => Then::Move,
            71..80 => Then::Replace,
            80..89 => Then::Delete,
            89..95 => Then::Persist,
            _ => Then::Overwrite,
        };
        let is_far = random.random_bool(match then {
            Then::Nothing => 0.1,
            Then::Beats(_) => 0.0,
            _ => 0.5,
        });
        let life = if is_far { FAR } else { ms(random, LIFE) };
        // Every other time it is later than the key's time, where that is near.
        let pause = match then {
            Then::Beats(_) => life / 3,
            _ if is_far => ms(random, 0..2000),
            _ => life.mul_f64(random.random_range(0.0..1.3)),
        };
        // At times so short that only its end is seen.
        let second_life = match random.random_range(0..3) {
            0 if is_far => ms(random, 1..40),
            _ => ms(random, LIFE),
        };
        Story {
            key: format!("{kind}:{number}"),
            plan: some_plan(random),
            life,
            then,
            pause,
            second_life,
            names_time: terms.names_times && random.random_bool(0.3),
        }
    }
}

/// One of the adopted kinds.
pub(crate) fn some_kind(random: &mut StdRng) -> &'static str {
    if random.random() { RUN } else { CANCEL }
}

pub(crate) fn some_plan(random: &mut StdRng) -> Plan {
    match random.random_range(0..100) {
        0..8 => Plan::Retry,
        8..11 => Plan::Again,
        11..13 => Plan::Snooze,
        13..15 => Plan::Bury,
        15..25 => Plan::Slow(random.random_range(1..400)),
        _ => Plan::Done,
    }
}

/// Goes on until its standard input ends.
pub(crate) fn main(terms: &Terms) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run(terms));
}

async fn run(terms: &Terms) {
    let mut random = StdRng::seed_from_u64(terms.seed);
    let enough = CancellationToken::new();
    let program = Arc::new(Program {
        redis: redis::Client::open(&*terms.url).expect("its URL is valid"),
        open: Mutex::new(None),
        journal: Journal::open(&terms.journals, &terms.name),
        calls: AtomicU64::new(0),
        versions: AtomicU64::new(NUMBER << 32),
        enough: enough.clone(),
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
        let wanted = began.elapsed().as_secs_f64() * terms.stories_a_second;
        while started < wanted {
            started += 1.0;
            let program = program.clone();
            if terms.races {
                let race = Race::imagine(&mut random, started);
                stories.spawn(async move { program.race(race).await });
            } else {
                let story = Story::imagine(&mut random, terms, started);
                stories.spawn(async move { program.tell(story).await });
            }
        }
    }
    enough.cancel();
    stories.close();
    stories.wait().await;
}

pub(crate) struct Program {
    redis: redis::Client,
    open: Mutex<Option<MultiplexedConnection>>,
    journal: Journal,
    calls: AtomicU64,
    versions: AtomicU64,
    /// Cancelled when no story is to go on.
    enough: CancellationToken,
}

impl Program {
    /// Runs a story. `None` if the program has to stop: a command was not answered, or the stop was
    /// asked for.
    async fn tell(&self, story: Story) -> Option<Answer> {
        let key = &story.key;
        self.set(key, story.plan, Some(story.life)).await?;
        if story.then == Then::Nothing {
            return None;
        }
        self.wait(story.pause).await?;
        match story.then {
            Then::Nothing => None,
            Then::Beats(times) => {
                for _ in 0..times {
                    self.expire(&story, story.life).await?;
                    self.wait(story.pause).await?;
                }
                None
            }
            Then::Move => self.expire(&story, story.second_life).await,
            Then::Replace => self.set(key, Plan::Done, Some(story.second_life)).await,
            Then::Overwrite => self.set(key, Plan::Done, None).await,
            Then::Delete => self.ask(key, Ask::Delete, redis::cmd("DEL").arg(key)).await,
            Then::Persist => {
                let mut command = redis::cmd("PERSIST");
                self.ask(key, Ask::Persist, command.arg(key)).await
            }
        }
    }

    pub(crate) async fn wait(&self, time: Duration) -> Option<()> {
        let waited = self.enough.run_until_cancelled(sleep(time)).await;
        waited.filter(|()| !self.enough.is_cancelled())
    }

    /// Sets the key. The answer says whether another value was there.
    pub(crate) async fn set(
        &self,
        key: &str,
        plan: Plan,
        life: Option<Duration>,
    ) -> Option<Answer> {
        let (version, order) = self.order(plan);
        let mut command = redis::cmd("SET");
        command.arg(key).arg(order);
        if let Some(life) = life {
            command.arg("PX").arg(ms(life));
        }
        let ask = Ask::Set {
            version,
            ms: life.map(ms),
        };
        self.ask(key, ask, command.arg("GET")).await
    }

    /// A new value.
    pub(crate) fn order(&self, plan: Plan) -> (Version, String) {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let order = serde_json::to_string(&Order { version, plan });
        (version, order.expect("an order is plain data"))
    }

    async fn expire(&self, story: &Story, life: Duration) -> Option<Answer> {
        let ask = Ask::Expire {
            ms: ms(life),
            named: story.names_time,
        };
        let mut command;
        if story.names_time {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let at = now.expect("it is after 1970") + life;
            command = redis::cmd("PEXPIREAT");
            command.arg(&story.key).arg(ms(at));
        } else {
            command = redis::cmd("PEXPIRE");
            command.arg(&story.key).arg(ms(life));
        }
        self.ask(&story.key, ask, &command).await
    }

    /// Sends a command, whose reply is 0 or nil if the key was not there. `None` if its outcome is
    /// not known.
    pub(crate) async fn ask(&self, key: &str, ask: Ask, command: &Cmd) -> Option<Answer> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_set = matches!(ask, Ask::Set { .. });
        self.journal.note(What::Sent {
            call,
            key: key.to_owned(),
            ask,
        });
        let answer = match (self.connection().await, is_set) {
            (Err(error), _) => Answer::Refused(error.to_string()),
            (Ok(mut redis), _) => match (command.query_async(&mut redis).await, is_set) {
                (Ok(Value::Nil | Value::Int(0)), true) => Answer::Done,
                (Ok(_), true) => Answer::Replaced,
                (Ok(Value::Nil | Value::Int(0)), false) => Answer::Absent,
                (Ok(_), false) => Answer::Done,
                (Err(error), _) if error.to_string().contains("no such key") => Answer::Absent,
                (Err(error), _) if error.code().is_some() => Answer::Refused(error.to_string()),
                (Err(error), _) => {
                    self.open.lock().await.take();
                    Answer::Unknown(error.to_string())
                }
            },
        };
        self.journal.note(What::Answered {
            call,
            answer: answer.clone(),
        });
        (!matches!(answer, Answer::Unknown(_))).then_some(answer)
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connecting = self
            .redis
            .get_multiplexed_async_connection_with_config(&config);
        Ok(open.insert(connecting.await?).clone())
    }
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("it is no more than a century")
}
