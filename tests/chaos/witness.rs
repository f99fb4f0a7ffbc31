//! Asks Redis, again and again, who listens to changes of adopted keys: the answer does not depend
//! on the beliefs of the subscribers.

use std::path::Path;
use std::time::Duration;

use keyfall_testing::journals::{Micros, now};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::journal::{Journal, What};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(15);

/// The longest time between two looks without a gap.
const APART: Micros = 300_000;

/// How many patterns each listener subscribes to.
const PATTERNS: &str = "2";

/// The faults that a look may miss, and how long after its line in the journal one may happen.
pub(crate) const SILENCING: &str = "CONFIG SET notify-keyspace-events";
const TOLD_BEFORE: Micros = 50_000;

/// Looks until it is aborted.
pub(crate) fn start(url: String, journals: &Path) -> JoinHandle<()> {
    let journal = Journal::open(journals, "witness");
    tokio::spawn(async move {
        let redis = redis::Client::open(url).expect("its URL is valid");
        let mut open = None;
        loop {
            match look(&redis, &mut open).await {
                Ok(what) => journal.note(what),
                Err(error) if error.code().is_some() => {}
                Err(_) => open = None,
            }
            sleep(PAUSE).await;
        }
    })
}

async fn look(
    redis: &redis::Client,
    open: &mut Option<MultiplexedConnection>,
) -> redis::RedisResult<What> {
    if open.is_none() {
        *open = Some(redis.get_multiplexed_async_connection().await?);
    }
    let connection = open.as_mut().expect("it was opened");
    let sent = now();
    // If a server takes no writes, nobody can adopt anything.
    let written: redis::RedisResult<()> = redis::cmd("SET")
        .arg("chaos-witness")
        .arg(sent)
        .query_async(connection)
        .await;
    let (server, flags, clients): (String, (String, String), String) = redis::pipe()
        .cmd("INFO")
        .arg("server")
        .cmd("CONFIG")
        .arg(&["GET", "notify-keyspace-events"])
        .cmd("CLIENT")
        .arg(&["LIST", "TYPE", "pubsub"])
        .query_async(connection)
        .await?;
    let has = |flag| flags.1.contains(flag);
    let announces = has('K') && (has('A') || has('g') && has('$') && has('x'));
    // Announcements of a replica are not believed.
    let is_replica = matches!(&written, Err(error) if error.code() == Some("READONLY"));
    // A server that is started again begins to count anew.
    let process = server
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    let process: u64 = process.and_then(|id| id.parse().ok()).unwrap_or(0);
    let listeners = clients.lines().filter_map(listener);
    Ok(What::Looked {
        sent,
        able: written.is_ok() && announces,
        listeners: if announces && !is_replica {
            listeners.map(|id| process << 32 | id).collect()
        } else {
            Vec::new()
        },
    })
}

/// The id of a client that listens: `id=7 addr=… psub=2 …`.
fn listener(client: &str) -> Option<u64> {
    let field = |name: &str| {
        let mut fields = client.split(' ');
        fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    (field("psub")? == PATTERNS).then(|| field("id")?.parse().ok())?
}

/// A look.
struct Look {
    sent: Micros,
    answered: Micros,
    listeners: Vec<u64>,
}

/// The listeners, and the spans in which they listened.
#[derive(Default)]
pub(crate) struct Ears {
    looks: Vec<Look>,
    /// The times at which announcements were turned off.
    silenced: Vec<Micros>,
    /// The spans in which each listener is known to have heard everything, and to have been able to
    /// act.
    spans: Vec<(u64, Micros, Micros)>,
}

impl Ears {
    /// Puts the notes together, in order. A look may be so late by itself.
    pub(crate) fn new<'a>(
        lines: impl Iterator<Item = (Micros, &'a What)>,
        allowance: Micros,
    ) -> Self {
        let mut ears = Ears::default();
        // The span that each listener may still extend.
        let mut open: Vec<(u64, Micros, Micros)> = Vec::new();
        let mut silenced = None;
        for (at, what) in lines {
            match what {
                What::Fault { name, .. } if name == SILENCING => {
                    silenced = Some(at);
                    ears.silenced.push(at);
                    ears.spans.append(&mut open);
                }
                What::Looked {
                    sent,
                    able,
                    listeners,
                } => {
                    let is_silenced = silenced.is_some_and(|told| *sent < told + TOLD_BEFORE);
                    let able = *able && !is_silenced;
                    let goes_on = |span: &(u64, Micros, Micros)| {
                        able && at <= span.2 + APART + allowance && listeners.contains(&span.0)
                    };
                    let (mut kept, over): (Vec<_>, Vec<_>) = open.drain(..).partition(goes_on);
                    kept.iter_mut().for_each(|span| span.2 = *sent);
                    ears.spans.extend(over);
                    open = kept;
                    let new = listeners.iter().filter(|_| able);
                    let new: Vec<u64> = new
                        .filter(|id| open.iter().all(|span| span.0 != **id))
                        .copied()
                        .collect();
                    open.extend(new.into_iter().map(|id| (id, at, at)));
                    ears.looks.push(Look {
                        sent: *sent,
                        answered: at,
                        listeners: listeners.clone(),
                    });
                }
                _ => {}
            }
        }
        ears.spans.append(&mut open);
        ears
    }

    /// Whether a listener was there all the time, and could act.
    pub(crate) fn listened(&self, from: Micros, to: Micros) -> bool {
        let mut spans = self.spans.iter();
        spans.any(|(_, begin, end)| *begin <= from && *end >= to)
    }

    /// Whether, in between, a listener was there for so long without a gap, and could act.
    pub(crate) fn listened_for(&self, time: Micros, from: Micros, to: Micros) -> bool {
        let common = |begin: Micros, end: Micros| end.min(to).saturating_sub(begin.max(from));
        let mut spans = self.spans.iter();
        spans.any(|(_, begin, end)| common(*begin, *end) >= time)
    }

    /// Whether one and the same listener was subscribed all the time, able to act or not.
    pub(crate) fn were_open(&self, from: Micros, to: Micros) -> bool {
        let before = self.looks.iter().rev().find(|look| look.answered <= from);
        let after = self.looks.iter().find(|look| look.sent >= to);
        let (Some(before), Some(after)) = (before, after) else {
            return false;
        };
        let mut both = before.listeners.iter();
        let meanwhile = self.looks.iter();
        let meanwhile =
            meanwhile.filter(|look| look.sent >= before.sent && look.answered <= after.answered);
        let is_silenced = |at: &Micros| *at >= before.sent && *at <= after.answered;
        !self.silenced.iter().any(is_silenced)
            && both.any(|id| meanwhile.clone().all(|look| look.listeners.contains(id)))
    }

    /// How long nobody listened, from the first look to the last.
    pub(crate) fn deaf(&self) -> Micros {
        let (Some(first), Some(last)) = (self.looks.first(), self.looks.last()) else {
            return 0;
        };
        let mut spans: Vec<_> = self
            .spans
            .iter()
            .map(|(_, from, to)| (*from, *to))
            .collect();
        spans.sort_unstable();
        let mut deaf = 0;
        let mut heard = first.answered;
        for (from, to) in spans {
            deaf += from.saturating_sub(heard);
            heard = heard.max(to);
        }
        deaf + last.sent.saturating_sub(heard)
    }
}
