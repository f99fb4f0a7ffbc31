//! Jobs with ids that several topics share, through daemons and consumers that are killed: while a
//! consumer still has the job of one topic, another topic gets the id, and another consumer that
//! job. Journals keep such jobs under their id, whatever the topic.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::classic::{ClassicClient, topic};
use crate::journal::{Answer, Ask, Journal, What};
use crate::leases::{Claim, Leases};
use crate::order::{Order, Plan};
use crate::story::{Call, Story, Wrong};
use crate::target::{PREFIX, Ways};

/// The kinds of topics with no other jobs.
pub(crate) const COMMON: [&str; 3] = ["chaos:load:fifth", "chaos:load:fourth", "chaos:load:sixth"];

/// The start of the keys in journals: no topic has this name.
const IDS: &str = "chaos:load:common:";

/// Numbers its versions; no other program has this number.
const NUMBER: u64 = 1001;

/// The time between two ids: a push costs a look into each topic.
const PAUSE: Duration = Duration::from_millis(120);

/// Uses ids until the faults are over.
pub(crate) struct Common {
    classic: ClassicClient,
    journal: Journal,
    calls: AtomicU64,
    versions: AtomicU64,
    is_over: AtomicBool,
}

impl Common {
    pub(crate) fn new(ways: &Ways, journals: &Path) -> Self {
        Common {
            classic: ClassicClient::new(ways),
            journal: Journal::open(journals, "common"),
            calls: AtomicU64::new(0),
            versions: AtomicU64::new(NUMBER << 32),
            is_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn run(self: Arc<Self>, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let stories = TaskTracker::new();
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let random = StdRng::seed_from_u64(random.random());
            stories.spawn(self.clone().tell(format!("common-{number}"), random));
            sleep(PAUSE).await;
        }
        stories.close();
        stories.wait().await;
    }

    /// One id: pushed into two topics or three, each time while a consumer may have the job before.
    async fn tell(self: Arc<Self>, id: String, mut random: StdRng) {
        let mut kinds = COMMON;
        kinds.shuffle(&mut random);
        let pushes = random.random_range(2..=3);
        for (place, kind) in kinds[..pushes].iter().enumerate() {
            let plan = match random.random_range(0..3) {
                _ if place + 1 < pushes => Plan::Slow(random.random_range(300..1500)),
                // The consumer gives it up, and it has to come again.
                0 => Plan::Retry,
                1 => Plan::Slow(random.random_range(1..400)),
                _ => Plan::Done,
            };
            self.push(kind, &id, plan).await;
            sleep(Duration::from_millis(random.random_range(0..700))).await;
        }
        self.look(&id).await;
        if random.random_bool(0.1) {
            let key = format!("{PREFIX}:any:{id}");
            self.note(&id, Ask::Cancel, self.classic.delete(&key)).await;
        }
    }

    async fn push(&self, kind: &str, id: &str, plan: Plan) {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let ask = Ask::Schedule {
            version,
            deadly: false,
            after: 0,
        };
        let key = format!("{PREFIX}:{}:{id}", topic(kind));
        let order = Order { version, plan };
        let answer = self.classic.push(&key, &order, Duration::ZERO);
        self.note(id, ask, answer).await;
    }

    async fn look(&self, id: &str) {
        let answer = async {
            let found = self.classic.get(id).await?;
            Ok(found.map_or(Answer::Absent, |order| Answer::Found(order.version)))
        };
        self.note(id, Ask::Look, answer).await;
    }

    async fn note(&self, id: &str, ask: Ask, answer: impl Future<Output = Result<Answer, Answer>>) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let key = format!("{IDS}{id}");
        self.journal.note(What::Sent { call, key, ask });
        let answer = answer.await.unwrap_or_else(|error| error);
        self.journal.note(What::Answered { call, answer });
    }
}

/// The claims of the jobs that journals keep under this key.
pub(crate) fn claims<'a>(key: &str, leases: &'a Leases) -> Cow<'a, [Claim]> {
    let of = |key: &str| leases.claims.get(key).map_or(&[][..], Vec::as_slice);
    let Some(id) = key.strip_prefix(IDS) else {
        return Cow::Borrowed(of(key));
    };
    let kinds = COMMON.iter();
    let all = kinds.flat_map(|kind| of(&format!("{kind}:{id}")).to_vec());
    Cow::Owned(all.collect())
}

impl Story {
    /// Looks at an id that showed another job than the latest one, or none although that one had
    /// not ended.
    pub(crate) fn hidden(&self) -> Vec<Wrong> {
        let looks = self.calls.iter().filter(|call| call.ask == Ask::Look);
        let hidden = looks.filter_map(|look| {
            let before = || self.calls.iter().filter(|call| call.sent < look.sent);
            let latest = before().max_by_key(|call| call.sent)?.version()?;
            let is_right = match look.answer {
                Some(Answer::Found(version)) => version == latest,
                Some(Answer::Absent) => {
                    let mut runs = self.runs.iter();
                    runs.any(|run| run.version == latest && run.last && run.ended < look.until)
                }
                _ => true,
            };
            // A push without an answer may be carried out later.
            let is_sure = before().all(Call::is_acknowledged);
            (is_sure && !is_right)
                .then(|| Wrong::Other(format!("version {latest} is hidden: {look:?}")))
        });
        hidden.collect()
    }
}
