//! The support of these tests: one server, a ledger of its own for each test, and ways to look at
//! stored data that do not go through the scripts.

mod by_hand;
mod calls;
mod ears;
mod repeat;
mod state;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue};
use tokio::time::sleep;

pub(super) use self::by_hand::{key_called, keys_in_header};
pub(super) use self::calls::{
    HEADER, HOUR, KEPT, LATER, MOMENT, NEVER, PENDING, after, at, bury, due_of, foreign_tokens,
    ids, later, suspect, word, words,
};
pub(super) use self::ears::Ears;
pub(super) use self::repeat::same_when_repeated;
pub(super) use self::state::State;
use crate::Stats;
use crate::embedded::Embedded;
use crate::key::{JobKey, Kind};
use crate::names::{LedgerNames, Names};
use crate::settings::LinkSettings;
use crate::shards::Layout;
use crate::store::{Ledger, Store};

/// How long a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server of all tests. The first test starts it, on a thread of its own, since each test has a
/// runtime of its own. The guard of the server ends it with this process.
static SERVER: LazyLock<Embedded> = LazyLock::new(|| {
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(Embedded::start()).unwrap()
    };
    thread::spawn(start).join().expect("a Redis for the tests")
});

/// A ledger that no other test uses.
pub(super) struct Bench {
    pub(super) ledger: Arc<Ledger>,
    url: String,
    raw: MultiplexedConnection,
    balanced: Cell<bool>,
}

/// The contents of a ledger: `key field` → value.
pub(super) type Snapshot = BTreeMap<String, String>;

impl Bench {
    pub(super) async fn new() -> Self {
        Bench::on(&SERVER).await
    }

    /// A ledger on a server that only this test uses.
    pub(super) async fn on(server: &Embedded) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let app = NEXT.fetch_add(1, Ordering::Relaxed);
        let kind = Kind::parse(&format!("test{app}:orders:expire")).unwrap();
        Bench::of(&server.url(), kind).await
    }

    /// A ledger on a server that only this test uses, and on which a key expires only when
    /// something looks at it.
    pub(super) async fn of_lazy_expiry() -> (Embedded, Self) {
        let debug = Embedded::options().args(["--enable-debug-command", "yes"]);
        let server = match debug.start().await {
            Ok(server) => server,
            // Redis before 7.0 has no such option, and allows `DEBUG` to everybody.
            Err(_) => Embedded::start().await.unwrap(),
        };
        let bench = Bench::on(&server).await;
        let _: String = bench.ask(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]).await;
        (server, bench)
    }

    /// A ledger of this kind, reached as the user in the URL.
    pub(super) async fn of(url: &str, kind: Kind) -> Self {
        // On a busy machine with two cores the server may answer late, and is not gone.
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = Client::open(url).unwrap();
        let raw = client.get_multiplexed_async_connection_with_config(&patient);
        let settings = LinkSettings {
            connect_timeout: PATIENCE,
            response_timeout: PATIENCE,
            ..LinkSettings::default()
        };
        let store = Store::new(url, Names::new("keyfall"), &settings).unwrap();
        Bench {
            ledger: store.ledger(&kind, Layout::FIRST.place(0)),
            url: url.to_owned(),
            raw: raw.await.unwrap(),
            balanced: Cell::new(false),
        }
    }

    pub(super) fn names(&self) -> &LedgerNames {
        &self.ledger.names
    }

    pub(super) fn key(&self, id: &str) -> JobKey {
        self.ledger.kind().key(id).unwrap()
    }

    /// Sends a command on a connection of the bench, without the store.
    pub(super) async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        let answer = cmd.query_async(&mut self.raw.clone()).await;
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The server's clock, Unix ms.
    pub(super) async fn now(&self) -> u64 {
        self.now_us().await / 1000
    }

    /// The server's clock, Unix µs.
    pub(super) async fn now_us(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.ask(&["TIME"]).await;
        seconds * 1_000_000 + micros
    }

    /// Waits until the server's clock is past `ms`.
    pub(super) async fn past(&self, ms: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.now().await <= ms {
            assert!(Instant::now() < deadline, "the clock never came to {ms}");
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The contents of the ledger. A comparison of two shows what a call has changed.
    pub(super) async fn snapshot(&self) -> Snapshot {
        let n = self.names();
        let mut all = Snapshot::new();
        for key in [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.next, &n.dead, &n.grave, &n.stats, &n.calls,
            &n.lanes, &n.history, &n.adopted,
        ] {
            let read: &[&str] = match self.ask::<String>(&["TYPE", key]).await.as_str() {
                "none" => continue,
                "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
                "hash" => &["HGETALL", key],
                "stream" => {
                    let entries: u64 = self.ask(&["XLEN", key]).await;
                    all.insert(key.clone(), entries.to_string());
                    continue;
                }
                "string" => {
                    all.insert(key.clone(), self.ask(&["GET", key]).await);
                    continue;
                }
                other => panic!("{key} is a {other}"),
            };
            let pairs: Vec<(Vec<u8>, Vec<u8>)> = self.ask(read).await;
            for (field, value) in pairs {
                let name = format!("{key} {}", field.escape_ascii());
                all.insert(name, value.escape_ascii().to_string());
            }
        }
        all
    }

    /// The value of one counter of the ledger.
    pub(super) async fn counted(&self, counter: &str) -> u64 {
        let found: Option<u64> = self.ask(&["HGET", &self.names().stats, counter]).await;
        found.unwrap_or(0)
    }

    /// The last check of every test: no job has disappeared, and none was counted twice.
    pub(super) async fn balanced(&self) -> Stats {
        let stats = Stats::from(self.ledger.tally(soon()).await.unwrap());
        assert!(stats.is_balanced(), "{stats:#?}");
        let n = self.names();
        for (key, expected) in [
            (&n.shadow, stats.pending + stats.leased),
            (&n.lease, stats.leased),
        ] {
            let mut names: Vec<String> = self.ask(&["HKEYS", key]).await;
            // A placeholder is no id.
            names.retain(|name| name != ":");
            assert_eq!(names.len() as u64, expected, "{key}: {names:?}");
        }
        let graves: Vec<String> = self.ask(&["HKEYS", &n.grave]).await;
        let is_letter = |name: &&String| name.contains(':') && *name != ":";
        let letters = graves.iter().filter(is_letter).count();
        assert_eq!(letters as u64, stats.dead, "letters");
        self.balanced.set(true);
        stats
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        assert!(
            self.balanced.get() || thread::panicking(),
            "a test ended without looking whether its ledger balances"
        );
    }
}

/// The deadline of a call.
pub(super) fn soon() -> Instant {
    Instant::now() + PATIENCE
}
