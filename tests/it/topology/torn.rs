//! Slots whose source dies while they are on their way: a part of a ledger is on a node that does not
//! serve it.

mod halfway;

use std::time::Duration;

use keyfall::doctor::Severity;
use keyfall::{Client, ErrorKind, Router, StrayState, Worker};

use super::clusters::{Clustered, ledger_of};
use crate::runs::{Recorder, eventually, recorder};
use crate::site::{Running, ms};

/// The keys of a ledger.
const PARTS: [&str; 13] = [
    "due", "leased", "dead", "lanes", "adopted", "shadow", "lease", "next", "grave", "stats",
    "calls", "leaving", "history",
];

/// For how long nothing may run of a ledger that is torn.
const A_WHILE: Duration = Duration::from_secs(3);

/// A ledger on the primary at place 0, and its slot.
struct Torn {
    them: Clustered,
    client: Client,
    kind: String,
    slot: u16,
}

impl Torn {
    /// With so many jobs, which are due when it is torn already.
    async fn new(app: &str, jobs: usize) -> Self {
        let them = Clustered::start().await;
        let client = Client::builder(&them.url()).default_shards(1);
        let client = client.connect().await.unwrap();
        let kind = them.kinds(app).await.remove(0);
        let slot = them.slot_of(&ledger_of(&kind), 0).await;
        let it = Torn {
            them,
            client,
            kind,
            slot,
        };
        for number in 0..jobs {
            let key = it.key(number);
            it.client.schedule(key, "x").after(ms(500)).await.unwrap();
        }
        eventually("all keys are there", async || {
            (it.keys_on(0).await >= PARTS.len() as u64).then_some(())
        })
        .await;
        it
    }

    fn key(&self, id: impl std::fmt::Display) -> String {
        format!("{}:{id}", self.kind)
    }

    /// How many keys of the slot a node has.
    async fn keys_on(&self, place: usize) -> u64 {
        let count = format!("CLUSTER COUNTKEYSINSLOT {}", self.slot);
        self.them.nodes[place].ask(&count).await
    }

    /// These parts go to the node at place 1, and then the source is gone for good.
    async fn tear(&mut self, parts: &[&str]) {
        self.them.open_to_move(self.slot, 0, 1).await;
        let names = parts.iter().map(|part| self.name(part));
        let names: Vec<String> = names.collect();
        let to = self.them.nodes[1].port;
        let migrate = format!("MIGRATE 127.0.0.1 {to} {{empty}} 0 20000 KEYS");
        let migrate = format!("{migrate} {}", names.join(" "));
        let _: String = self.them.nodes[0].ask(&migrate).await;
        let mark = format!("{}mark", ledger_of(&self.kind));
        // In the slot itself it would be elsewhere.
        let mark = mark.replace(&self.kind, &self.of_the_same_node().await);
        self.them.nodes[0].is_copied(&mark).await;
        self.them.nodes[0].server.kill_server().await.unwrap();
        eventually("its replica has taken over", async || {
            // The node to which the slot was to come does not follow.
            (self.them.owner_of(self.slot, 2).await == Some(3)).then_some(())
        })
        .await;
        // Valkey 8 and later hand on to replicas that a slot is on its way.
        let forget = format!("CLUSTER SETSLOT {} STABLE", self.slot);
        let _: () = self.them.nodes[3].ask(&forget).await;
        // Any of them may be asked for the primaries.
        let port = format!(":{}@", self.them.nodes[3].port);
        for node in &self.them.nodes[1..] {
            eventually("all have heard of it", async || {
                let told: String = node.try_ask("CLUSTER NODES").await.ok()?;
                let mut lines = told.lines();
                lines
                    .any(|line| line.contains(&port) && line.contains("master"))
                    .then_some(())
            })
            .await;
        }
    }

    fn name(&self, part: &str) -> String {
        format!("keyfall:{}:{part}", ledger_of(&self.kind))
    }

    /// A command on a slot that is on its way to this node.
    async fn ask_for<T: redis::FromRedisValue>(&self, place: usize, text: &str) -> T {
        let mut redis = self.them.nodes[place].connection().await.unwrap();
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore();
        let mut words = text.split(' ');
        let cmd = both.cmd(words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        let (told,): (T,) = both.query_async(&mut redis).await.unwrap();
        told
    }

    /// Another kind on the primary at place 0.
    async fn of_the_same_node(&self) -> String {
        self.them.kinds("torn-beside").await.remove(0)
    }

    fn serve(&self, log: &Recorder) -> Running {
        let router = Router::new().route(&format!("{}:{{id}}", self.kind), log.done());
        Running::start(Worker::new(self.client.clone(), router))
    }

    fn address(&self, place: usize) -> String {
        format!("127.0.0.1:{}", self.them.nodes[place].port)
    }

    /// A client that gives up soon.
    async fn impatient(&self) -> Client {
        eventually("all have heard who serves", async || {
            let client = Client::builder(&self.them.url()).call_timeout(Duration::from_secs(5));
            client.connect().await.ok()
        })
        .await
    }

    /// A call fails because the ledger is not where it is served, and says this. On a busy machine it may
    /// not hear so in time, and is made again.
    async fn refuses<T>(&self, parts: &[&str], call: impl AsyncFn() -> keyfall::Result<T>) {
        eventually("it is said why the call is refused", async || {
            let error = match call().await {
                Ok(_) => panic!("it was carried out"),
                Err(error) => error,
            };
            let text = error.to_string();
            let is_told = parts.iter().all(|part| text.contains(part));
            assert!(is_told || error.is_retryable(), "{error}");
            (is_told && error.kind() == ErrorKind::Unavailable).then_some(())
        })
        .await;
    }

    /// Waits until so many are done, and the books balance.
    async fn all_done(&self, count: u64) {
        eventually("all have ended", async || {
            let stats = self.client.stats(&self.kind).await.ok()?;
            (stats.done == count && stats.is_balanced()).then_some(())
        })
        .await;
    }

    /// What became of the jobs so far: dead letters.
    async fn dead(&self) -> usize {
        let mut letters: Vec<String> = Vec::new();
        for node in [1, 3] {
            let dead = format!("ZRANGE {} 0 -1", self.name("dead"));
            let found: redis::RedisResult<Vec<String>> = self.them.nodes[node].try_ask(&dead).await;
            letters.extend(found.unwrap_or_default());
        }
        letters.retain(|letter| letter != ":");
        letters.len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_torn_ledger_wait_until_its_halves_are_together() {
    let mut torn = Torn::new("torn-waits", 20).await;
    torn.tear(&["shadow", "stats", "calls"]).await;
    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    worker.ready().await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(torn.dead().await, 0, "nothing is given up");

    // As an operator would by hand: the one half goes back to where the slot is served.
    let (slot, owner) = (torn.slot, &torn.them.nodes[3]);
    let import = format!("CLUSTER SETSLOT {slot} IMPORTING {}", owner.id);
    let _: () = torn.them.nodes[1].ask(&import).await;
    torn.them.hand_keys_over(slot, 1, 3).await;
    let jobs = runs.take(20).await;
    assert!(jobs.iter().all(|job| job.payload().as_ref() == b"\"x\""));
    torn.all_done(20).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_ledger_is_told_of_and_mended() {
    let mut torn = Torn::new("torn-mended", 20).await;
    let whole = torn.client.mend_slots().await.unwrap();
    assert!(whole.is_whole() && whole.slots.is_empty(), "{whole:?}");
    torn.tear(&["due", "grave", "stats", "history"]).await;
    let (holder, owner) = (torn.address(1), torn.address(3));

    let client = torn.impatient().await;
    let ledger = format!("{}/0", torn.kind);
    let slot = torn.slot.to_string();
    let parts = [
        &*ledger,
        "lacks due grave stats history",
        &slot,
        "keyfall cluster mend",
    ];
    let schedule = async || client.schedule(torn.key("more"), "").await;
    torn.refuses(&parts, schedule).await;

    let diagnosis = torn.client.diagnose().only(["slots-whole"]).await.unwrap();
    let finding = &diagnosis.findings[0];
    assert_eq!(finding.severity, Severity::Error, "{finding}");
    for part in [&holder, &owner, &slot, &ledger, &"4 keys".to_owned()] {
        assert!(finding.found.contains(part), "{finding}");
    }
    assert!(
        finding
            .remedy
            .as_ref()
            .unwrap()
            .contains("keyfall cluster mend --yes")
    );

    let found = torn.client.mend_slots().await.unwrap();
    assert!(!found.is_whole(), "{found:?}");
    let slot = &found.slots[0];
    assert_eq!((slot.slot, slot.keys), (torn.slot, 4));
    assert_eq!((&slot.holder, slot.owner.as_ref()), (&holder, Some(&owner)));
    assert_eq!(
        (&slot.ledgers, &slot.state),
        (&vec![ledger.clone()], &StrayState::Found)
    );
    assert_eq!(
        (&found.torn[0].ledger, found.torn[0].slot),
        (&ledger, torn.slot)
    );
    // It is there, so it is not given up.
    let kept = torn.client.mend_slots().give_up(&ledger).await.unwrap();
    assert_eq!(kept.torn.len(), 1, "{kept:?}");

    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    worker.ready().await;
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    assert_eq!(mended.slots[0].state, StrayState::Together);
    runs.take(20).await;
    torn.all_done(20).await;
    worker.stop().await;
    let audit = torn.client.audit(&torn.kind).await.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
    let again = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(again.is_whole() && again.slots.is_empty(), "{again:?}");
    let diagnosis = torn.client.diagnose().only(["slots-whole"]).await.unwrap();
    assert_eq!(diagnosis.worst(), Severity::Ok, "{diagnosis:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_elsewhere_as_a_whole_is_not_taken_for_a_new_one() {
    let mut torn = Torn::new("torn-whole", 5).await;
    torn.tear(&PARTS).await;
    let (client, holder) = (torn.impatient().await, torn.address(1));
    let schedule = async || client.schedule(torn.key("more"), "").await;
    torn.refuses(&[&holder], schedule).await;
    let cancel = async || client.cancel(torn.key(0)).await;
    torn.refuses(&[&holder], cancel).await;
    torn.refuses(&[&holder], async || client.get(torn.key(0)).await)
        .await;
    assert_eq!(torn.keys_on(3).await, 0);
    torn.client.mend_slots().confirmed().await.unwrap();
    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    runs.take(5).await;
    torn.all_done(5).await;
    worker.stop().await;
}

/// As versions did that took a part for the whole: the rest of the ledger begins anew, and changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_both_halves_have_is_joined_by_rule() {
    let mut torn = Torn::new("torn-joined", 3).await;
    torn.tear(&["shadow", "stats", "calls", "dead", "grave"])
        .await;
    let owner = &torn.them.nodes[3];
    let there = |part: &str, words: &str| {
        let (command, words) = words.split_once(' ').unwrap();
        format!("{command} {} {words}", torn.name(part))
    };
    for (part, words) in [
        ("shadow", "HSET : 0 0 newer"),
        ("stats", "HSET : 0 accepted 4 buried 2"),
        ("calls", "HSET : 0 fence 7"),
        ("dead", "ZADD inf : 1 x:1"),
        ("grave", "HSET : 0 x:1 letter x 1"),
    ] {
        let _: redis::Value = owner.ask(&there(part, words)).await;
    }
    // It may also be one from before the slot moved, so it takes a word more.
    let left = torn.client.mend_slots().confirmed().await.unwrap();
    assert_eq!(left.slots[0].state, StrayState::Left, "{left:?}");
    assert!(
        left.left[0].contains("whole where it is served"),
        "{left:?}"
    );
    assert_eq!(torn.keys_on(1).await, 5);
    let mended = torn
        .client
        .mend_slots()
        .confirmed()
        .joining()
        .await
        .unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    let get = |part: &str, field: &str| format!("HGET {} {field}", torn.name(part));
    let newer: String = owner.ask(&get("shadow", "0")).await;
    assert_eq!(newer, "newer");
    let older: String = owner.ask(&get("shadow", "1")).await;
    assert!(older.ends_with("\n\"x\""), "{older}");
    let accepted: u64 = owner.ask(&get("stats", "accepted")).await;
    assert_eq!(accepted, 7);
    let fence: Option<u64> = owner.ask(&get("calls", "fence")).await;
    assert_eq!(fence, Some(7), "nothing was claimed before");
    let letters: u64 = owner.ask(&format!("ZCARD {}", torn.name("dead"))).await;
    assert_eq!(letters, 2, "and the placeholder");
    let aside: Vec<String> = owner.ask("KEYS *mending*").await;
    assert!(aside.is_empty(), "{aside:?}");
}

/// As if the replica had not heard yet that a key has left when it took over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_dropped_or_takes_the_place_of_what_is_older() {
    let mut torn = Torn::new("torn-copy", 3).await;
    torn.tear(&["shadow", "due"]).await;
    let (older, from) = (torn.name("due"), &torn.them.nodes[3]);
    let _: u64 = from.ask(&format!("ZADD {older} inf : 1 gone")).await;
    // Without its records it is torn, and what comes is newer.
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    let due: Vec<String> = from.ask(&format!("ZRANGE {older} 0 -1")).await;
    assert_eq!(due, ["0", "1", "2", ":"]);

    // A copy beside a ledger that is whole.
    let holder = &torn.them.nodes[1];
    let import = format!("CLUSTER SETSLOT {} IMPORTING {}", torn.slot, from.id);
    let _: () = holder.ask(&import).await;
    let grave = torn.name("grave");
    let _: u64 = torn.ask_for(1, &format!("HSET {grave} : 0")).await;
    let left = torn.client.mend_slots().confirmed().await.unwrap();
    assert_eq!(left.slots[0].state, StrayState::Left, "{left:?}");
    let dropped = torn
        .client
        .mend_slots()
        .confirmed()
        .dropping()
        .await
        .unwrap();
    assert!(dropped.is_whole(), "{dropped:?}");
    assert_eq!(torn.keys_on(1).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_node_has_any_more_can_be_given_up() {
    let mut torn = Torn::new("torn-lost", 3).await;
    torn.tear(&["shadow"]).await;
    let shadow = format!("UNLINK {}", torn.name("shadow"));
    let _: u64 = torn.ask_for(1, &shadow).await;
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(!mended.is_whole() && mended.slots.is_empty(), "{mended:?}");
    let ledger = mended.torn[0].ledger.clone();
    let mended = torn.client.mend_slots().confirmed().give_up(ledger).await;
    assert!(mended.unwrap().is_whole());
    // What that has cost is told by an audit, as ever.
    let audit = torn.client.audit(&torn.kind).repair().await.unwrap();
    assert!(!audit.is_clean(), "{audit:?}");
    let stats = torn.client.stats(&torn.kind).await.unwrap();
    assert_eq!(stats.dead, 3, "{stats:?}");
}
