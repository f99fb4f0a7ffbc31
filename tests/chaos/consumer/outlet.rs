//! Takes jobs from an acknowledged list, or from an acknowledged stream, and acknowledges them as
//! any client can: `RPUSH` and `XACK`. A job that fails is not acknowledged; other messages, for
//! which lists and streams have no form, go over HTTP.
//!
//! Before a run it asks whether the lease is still held: a job that lay there for long may belong
//! to another consumer by now, or be cancelled.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::pull::Document;
use super::{AT_ONCE, Leases, PAUSE, RunEnd, Source, Taken};
use crate::target::{GROUP, OUTLET, Ways};

/// Longer than any command waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to the Redis in between, opened again whenever that Redis comes back.
struct OutletConnection {
    client: Client,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl OutletConnection {
    fn new(ways: &Ways) -> Self {
        OutletConnection {
            client: Client::open(&*ways.outlet).expect("its URL is valid"),
            open: Mutex::new(None),
        }
    }

    /// Sends a command. Without an answer it pauses and returns `None`.
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Option<T> {
        let answer = async {
            let mut open = self.open.lock().await;
            let mut connection = match &*open {
                Some(connection) => connection.clone(),
                None => {
                    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
                    let client = &self.client;
                    let connecting = client.get_multiplexed_async_connection_with_config(&config);
                    open.insert(connecting.await?).clone()
                }
            };
            drop(open);
            command.query_async(&mut connection).await
        };
        let answer: redis::RedisResult<T> = answer.await;
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                eprintln!("{error}");
                self.open.lock().await.take();
                sleep(PAUSE).await;
                None
            }
        }
    }

    /// Repeats the command until it is answered.
    async fn insist(&self, command: &Cmd) {
        while self.ask::<u64>(command).await.is_none() {}
    }
}

/// Keeps the jobs whose leases are still held.
async fn held<T>(
    leases: &Leases,
    taken: Vec<Taken<T>>,
    lease: impl Fn(&T) -> &str,
) -> Vec<Taken<T>> {
    if taken.is_empty() {
        return taken;
    }
    let texts: Vec<&str> = taken.iter().map(|one| lease(&one.ticket)).collect();
    let held = leases.hold(&texts).await;
    let both = taken.into_iter().zip(held);
    both.filter_map(|(one, is_held)| is_held.then_some(one))
        .collect()
}

/// Takes documents from a list; the ticket is the lease.
pub(super) struct ListSource {
    /// The connection that waits; it must not hold up the other.
    pops: OutletConnection,
    receipts: OutletConnection,
    leases: Leases,
}

impl ListSource {
    pub(super) fn new(ways: &Ways, leases: Leases) -> Self {
        ListSource {
            pops: OutletConnection::new(ways),
            receipts: OutletConnection::new(ways),
            leases,
        }
    }
}

impl Source for ListSource {
    type Ticket = String;

    async fn take(&self) -> Vec<Taken<String>> {
        let first = redis::cmd("BLPOP").arg(OUTLET).arg(1).to_owned();
        let first: Option<Option<(String, String)>> = self.pops.ask(&first).await;
        let Some((_, first)) = first.flatten() else {
            return Vec::new();
        };
        let more = redis::cmd("LPOP").arg(OUTLET).arg(AT_ONCE - 1).to_owned();
        let more: Option<Option<Vec<String>>> = self.pops.ask(&more).await;
        let texts = std::iter::once(first).chain(more.flatten().unwrap_or_default());
        let taken = texts.map(|text| {
            let document: Document = serde_json::from_str(&text).expect("as documented");
            document.delivered(|lease| lease)
        });
        held(&self.leases, taken.collect(), String::as_str).await
    }

    async fn end(&self, leases: Vec<String>, end: RunEnd) -> Vec<Option<bool>> {
        match end {
            RunEnd::Done => {
                let done = format!("{OUTLET}:done");
                let receipts = redis::cmd("RPUSH").arg(done).arg(&leases).to_owned();
                self.receipts.insist(&receipts).await;
                Vec::new()
            }
            // The job comes again.
            RunEnd::Failed => Vec::new(),
            RunEnd::Later | RunEnd::Bury => Source::end(&self.leases, leases, end).await,
        }
    }
}

/// Takes entries of a stream; the ticket is the id, and the lease.
pub(super) struct StreamSource {
    reads: OutletConnection,
    acks: OutletConnection,
    leases: Leases,
    consumer: String,
}

type EntryFields = HashMap<String, String>;
type StreamReply = Vec<(String, Vec<(String, EntryFields)>)>;

impl StreamSource {
    pub(super) fn new(ways: &Ways, consumer: &str, leases: Leases) -> Self {
        StreamSource {
            reads: OutletConnection::new(ways),
            acks: OutletConnection::new(ways),
            leases,
            consumer: consumer.to_owned(),
        }
    }
}

impl Source for StreamSource {
    type Ticket = (String, String);

    async fn take(&self) -> Vec<Taken<Self::Ticket>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", GROUP, &self.consumer, "COUNT"]);
        read.arg(AT_ONCE)
            .arg(&["BLOCK", "1000", "STREAMS", OUTLET, ">"]);
        let read: Option<Option<StreamReply>> = self.reads.ask(&read).await;
        let entries = read.flatten().unwrap_or_default().into_iter();
        let entries = entries.flat_map(|(_, entries)| entries);
        let taken = entries.map(|(id, fields)| {
            let field = |name: &str| fields[name].clone();
            let number = |name: &str| field(name).parse().expect("as documented");
            let document = Document {
                key: field("key"),
                lease: field("lease"),
                payload: serde_json::from_str(&field("payload")).expect("as it was scheduled"),
                attempt: u32::try_from(number("attempt")).expect("attempts are few"),
                due: field("due").parse().expect("as documented"),
                fence: number("fence"),
            };
            document.delivered(|lease| (id, lease))
        });
        held(&self.leases, taken.collect(), |(_, lease)| lease).await
    }

    async fn end(&self, tickets: Vec<Self::Ticket>, end: RunEnd) -> Vec<Option<bool>> {
        let (ids, leases): (Vec<String>, Vec<String>) = tickets.into_iter().unzip();
        match end {
            RunEnd::Done => {
                let acks = redis::cmd("XACK")
                    .arg(&[OUTLET, GROUP])
                    .arg(&ids)
                    .to_owned();
                self.acks.insist(&acks).await;
                Vec::new()
            }
            // The job comes again.
            RunEnd::Failed => Vec::new(),
            RunEnd::Later | RunEnd::Bury => Source::end(&self.leases, leases, end).await,
        }
    }
}
