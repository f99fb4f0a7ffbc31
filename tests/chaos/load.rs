//! A producer as a process of its own: jobs at a steady rate, most of them left alone, others
//! moved, replaced, changed and cancelled. Every call is written down before it is sent and
//! when it is answered.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keyfall::Client;
use keyfall_testing::process::told_to_stop;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::task::TaskTracker;

use crate::classic::{ClassicClient, topic};
use crate::daemons::Daemons;
use crate::journal::{Answer, Ask, Journal, What};
use crate::order::{Order, Plan};
use crate::plain::ms;

use crate::service::{Desk, Service};
use crate::sundry;
use crate::target::{Transport, Ways};

/// The kinds of the jobs.
pub(crate) const KINDS: [&str; 2] = ["chaos:load:notice", "chaos:load:refund"];

/// Those kinds, as a glob.
pub(crate) const LOAD: &str = "chaos:load:*";

/// So late that no job with it runs in a trial, whatever happens to clocks.
pub(crate) const FAR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often jobs are started.
const TICK: Duration = Duration::from_millis(10);

/// Names that all producers use, so that they disturb each other.
const BUSY_NAMES: u32 = 100;

/// The task of a producer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) name: String,
    /// The number of this producer.
    pub(crate) number: u64,
    pub(crate) url: String,
    /// How its jobs reach consumers, if no workers run them.
    pub(crate) ways: Option<Ways>,
    pub(crate) journals: PathBuf,
    pub(crate) seed: u64,
    pub(crate) stories_a_second: f64,
    /// For each plan that deviates from the common one: how many of 10,000 jobs have it.
    pub(crate) special: Vec<(Plan, u32)>,
    /// Whether to make the rare calls of a service, too.
    pub(crate) sundry: bool,
}

impl Terms {
    fn can_bury(&self) -> bool {
        self.ways.as_ref().is_none_or(|ways| ways.target.can_bury())
    }
}

/// Schedules until its standard input ends.
pub(crate) fn main(terms: Terms) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(produce(terms));
}

async fn produce(terms: Terms) {
    let client = Client::connect(&terms.url).await.expect("Redis is there");
    let mut random = StdRng::seed_from_u64(terms.seed);
    let service = match &terms.ways {
        Some(ways) if ways.target == Transport::Pull => {
            Service::Daemons(Desk::new(Daemons::new(&ways.api)))
        }
        Some(ways) if ways.target == Transport::Classic => {
            Service::Classic(ClassicClient::new(ways), client.clone())
        }
        _ => Service::Redis(client.clone()),
    };
    let producer = Arc::new(Producer {
        client,
        service,
        journal: Journal::open(&terms.journals, &terms.name),
        calls: AtomicU64::new(0),
        versions: AtomicU64::new(terms.number << 32),
    });
    let stories = TaskTracker::new();
    let sundry = terms.sundry.then(|| {
        let redis = redis::Client::open(&*terms.url).expect("the client could connect to it");
        tokio::spawn(sundry::run(producer.clone(), redis))
    });
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
            let story = Story::imagine(&mut random, &terms, started);
            stories.spawn(producer.clone().tell(story));
        }
    }
    if let Some(sundry) = sundry {
        sundry.abort();
    }
    stories.close();
    stories.wait().await;
}

/// One job, and its calls.
struct Story {
    key: String,
    plan: Plan,
    delay: Duration,
    then: Then,
    /// The pause between the first call and the second.
    pause: Duration,
    second_delay: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Cancel,
    Move,
    FireNow,
    Replace,
    Update,
    /// Makes only the second call, on a name that others use as well.
    Disturb,
}

impl Story {
    fn imagine(random: &mut StdRng, terms: &Terms, number: f64) -> Self {
        let ms = |random: &mut StdRng, most| Duration::from_millis(random.random_range(0..most));
        let then = match random.random_range(0..100) {
            0..64 => Then::Nothing,
            64..76 => Then::Cancel,
            76..82 => Then::Move,
            82..84 => Then::FireNow,
            84..92 => Then::Replace,
            92..94 => Then::Update,
            _ => Then::Disturb,
        };
        let kind = KINDS[random.random_range(0..KINDS.len())];
        let busy = then == Then::Disturb || random.random_bool(0.04);
        let name = if busy {
            format!("busy-{}", random.random_range(0..BUSY_NAMES))
        } else {
            format!("{}-{number}", terms.number)
        };
        // The id names its topic, too: in the classic interface, ids are unique over all topics.
        let key = format!("{kind}:{}-{name}", topic(kind));
        let plan = imagine_plan(random, terms);
        let delay = match random.random_range(0..100) {
            _ if busy || plan.is_deadly() => ms(random, 800),
            0..10 => Duration::ZERO,
            10..12 => FAR,
            _ => ms(random, 2500),
        };
        Story {
            key,
            plan,
            delay,
            then: if plan.is_deadly() {
                Then::Nothing
            } else {
                then
            },
            pause: ms(random, 2500),
            second_delay: ms(random, 1500),
        }
    }
}

fn imagine_plan(random: &mut StdRng, terms: &Terms) -> Plan {
    let mut lot = random.random_range(0..10_000);
    for (plan, share) in &terms.special {
        if lot < *share {
            return *plan;
        }
        lot -= share;
    }
    match random.random_range(0..100) {
        0..8 => Plan::Retry,
        8..11 => Plan::Again,
        11..13 => Plan::Snooze,
        13..15 if terms.can_bury() => Plan::Bury,
        15..25 => Plan::Slow(random.random_range(1..400)),
        _ => Plan::Done,
    }
}

pub(crate) struct Producer {
    pub(crate) client: Client,
    service: Service,
    journal: Journal,
    calls: AtomicU64,
    versions: AtomicU64,
}

impl Producer {
    async fn tell(self: Arc<Self>, story: Story) {
        let key = &story.key;
        if story.then != Then::Disturb {
            self.schedule(key, story.plan, story.delay).await;
            if story.then == Then::Nothing {
                return;
            }
            sleep(story.pause).await;
        }
        match story.then {
            Then::Nothing => {}
            Then::Cancel => self.cancel(key).await,
            Then::Move => {
                let answer = self.service.postpone(key, story.second_delay);
                self.note(key, Ask::Move, answer).await;
            }
            Then::FireNow => self.note(key, Ask::Move, self.service.fire_now(key)).await,
            Then::Replace => self.schedule(key, Plan::Done, story.second_delay).await,
            Then::Update => self.update(key).await,
            Then::Disturb => match story.pause.as_millis() % 3 {
                0 => self.cancel(key).await,
                1 => self.update(key).await,
                _ => self.schedule(key, Plan::Done, story.second_delay).await,
            },
        }
    }

    fn order(&self, plan: Plan) -> Order {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        Order { version, plan }
    }

    async fn schedule(&self, key: &str, plan: Plan, delay: Duration) {
        let order = self.order(plan);
        let ask = Ask::Schedule {
            version: order.version,
            deadly: plan.is_deadly(),
            after: ms(self.service.rounded(delay)),
        };
        let answer = self.service.schedule(key, &order, delay);
        self.note(key, ask, answer).await;
    }

    async fn cancel(&self, key: &str) {
        self.note(key, Ask::Cancel, self.service.cancel(key)).await;
    }

    /// Changes the payload, which makes another version of the job.
    async fn update(&self, key: &str) {
        let order = self.order(Plan::Done);
        let ask = Ask::Update {
            version: order.version,
        };
        self.note(key, ask, self.service.update(key, &order)).await;
    }

    pub(crate) async fn note(
        &self,
        key: &str,
        ask: Ask,
        call: impl Future<Output = Result<Answer, Answer>>,
    ) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        self.journal.note(What::Sent {
            call: number,
            key: key.to_owned(),
            ask,
        });
        let answer = call.await.unwrap_or_else(|error| error);
        self.journal.note(What::Answered {
            call: number,
            answer,
        });
    }
}
