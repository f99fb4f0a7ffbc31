//! Slots whose source dies while they are on their way: a part of a ledger is on a node that does not
//! serve it.

mod halfway;

use std::time::{Duration, SystemTime};

use keyfall::doctor::Severity;
use keyfall::{Client, ErrorKind, JobState, KeptJob, NewJob, Router, StrayState, Worker};
use serde_json::{Value, json};

use super::clusters::{Clustered, is_copied, ledger_of};
use crate::log::Log;
use crate::runs::{Recorder, eventually, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Running, ms};

/// The keys of a ledger.
const PARTS: [&str; 13] = [
    "due", "leased", "dead", "lanes", "adopted", "shadow", "lease", "next", "grave", "stats",
    "calls", "leaving", "history",
];

/// The time in which no job of a torn ledger may run.
const A_WHILE: Duration = Duration::from_secs(3);

/// A ledger on the primary at index 0, and its slot.
struct Torn {
    them: Clustered,
    client: Client,
    kind: String,
    slot: u16,
}

impl Torn {
    /// A ledger with this number of jobs, which fall due after it is torn.
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

    /// The number of keys of the slot that a node has.
    async fn keys_on(&self, place: usize) -> u64 {
        let count = format!("CLUSTER COUNTKEYSINSLOT {}", self.slot);
        self.them.nodes[place].ask(&count).await
    }

    /// Moves these parts to the node at index 1; then the source is gone for good.
    async fn tear(&mut self, parts: &[&str]) {
        self.them.open_to_move(self.slot, 0, 1).await;
        let names = parts.iter().map(|part| self.name(part));
        let names: Vec<String> = names.collect();
        let to = self.them.nodes[1].port;
        let migrate = format!("MIGRATE 127.0.0.1 {to} {{empty}} 0 20000 KEYS");
        let migrate = format!("{migrate} {}", names.join(" "));
        let _: String = self.them.nodes[0].ask(&migrate).await;
        let mark = format!("{}mark", ledger_of(&self.kind));
        // In the slot itself, the key would be on another node.
        let mark = mark.replace(&self.kind, &self.of_the_same_node().await);
        is_copied(&self.them.nodes[0], &mark).await;
        self.them.nodes[0].server.kill_server().await.unwrap();
        eventually("its replica has taken over", async || {
            // The destination of the slot does not follow the source.
            (self.them.owner_of(self.slot, 2).await == Some(3)).then_some(())
        })
        .await;
        // Valkey 8 and later pass the state of a moving slot on to replicas.
        let forget = format!("CLUSTER SETSLOT {} STABLE", self.slot);
        let _: () = self.them.nodes[3].ask(&forget).await;
        // Clients may ask any node for the primaries.
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

    /// A command on a slot that is moving to this node.
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

    /// Another kind on the primary at index 0.
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

    /// A client with a short timeout.
    async fn impatient(&self) -> Client {
        self.giving_up_after(Duration::from_secs(5)).await
    }

    async fn giving_up_after(&self, timeout: Duration) -> Client {
        eventually("all have heard who serves", async || {
            let client = Client::builder(&self.them.url()).call_timeout(timeout);
            client.connect().await.ok()
        })
        .await
    }

    /// Runs `keyfall cluster mend` with these flags. On a busy machine a node may not answer it in time.
    async fn mend(&self, flags: &str) -> Ran {
        let url = self.them.url();
        eventually("the command is answered", async || {
            let mut args = vec!["cluster", "mend", "--redis-url", url.as_str()];
            args.extend(flags.split_whitespace());
            let ran = Ran::of(keyfall(&args)).await;
            (ran.code != 4).then_some(ran)
        })
        .await
    }

    /// The copies of these parts on the owner.
    async fn stored(&self) -> Vec<Vec<String>> {
        let owner = &self.them.nodes[3];
        let mut stored = Vec::new();
        for (command, part, words) in [
            ("ZRANGE", "due", " 0 -1 WITHSCORES"),
            ("ZRANGE", "dead", " 0 -1 WITHSCORES"),
            ("ZRANGE", "lanes", " 0 -1"),
            ("HGETALL", "calls", ""),
            ("HGETALL", "next", ""),
        ] {
            let look = format!("{command} {}{words}", self.name(part));
            stored.push(owner.ask(&look).await);
        }
        stored
    }

    /// Asserts that a call fails because the ledger is not on the node that serves it, with this
    /// text. The call is repeated if a busy machine does not answer in time.
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

    /// Waits until this number of jobs are done and the books balance.
    async fn all_done(&self, count: u64) {
        eventually("all have ended", async || {
            let stats = self.client.stats(&self.kind).await.ok()?;
            (stats.done == count && stats.is_balanced()).then_some(())
        })
        .await;
    }

    /// The jobs so far have become dead letters.
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

    // An operator would do this by hand: one half goes back to the node that serves the slot.
    let (slot, owner) = (torn.slot, &torn.them.nodes[3]);
    let import = format!("CLUSTER SETSLOT {slot} IMPORTING {}", owner.id);
    let _: () = torn.them.nodes[1].ask(&import).await;
    torn.them.hand_keys_over(slot, 1, 3).await;
    let jobs = runs.take(20).await;
    assert!(jobs.iter().all(|job| job.payload().as_ref() == b"\"x\""));
    torn.all_done(20).await;
    worker.stop().await;
}

/// The owner may die before its replica has the copy, which is then the only one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_originals_stay_until_a_replica_has_the_copies_also_at_a_second_try() {
    let mut torn = Torn::new("torn-lagging", 3).await;
    torn.tear(&["shadow"]).await;
    let (owner, replica) = (&torn.them.nodes[3], &torn.them.nodes[5]);
    let id: String = owner.ask("CLUSTER MYID").await;
    eventually("the owner has a replica", async || {
        let _: String = replica
            .try_ask(&format!("CLUSTER REPLICATE {id}"))
            .await
            .ok()?;
        let told: String = owner.ask("INFO replication").await;
        told.contains("state=online").then_some(())
    })
    .await;
    let told: String = replica.ask("INFO server").await;
    let process = told
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    let signal = |name: &str| {
        let mut kill = std::process::Command::new("kill");
        kill.args([name, process.unwrap()]).status().unwrap();
    };
    signal("-STOP");
    for _ in 0..2 {
        let tried = torn.client.mend_slots().confirmed().await;
        assert!(format!("{tried:?}").contains("no replica of"), "{tried:?}");
        assert_eq!(torn.keys_on(1).await, 1, "the original");
        // Half a minute passes.
        let _: u64 = owner.ask(&format!("DEL {}", torn.name("mending"))).await;
    }
    signal("-CONT");
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    assert_eq!(torn.keys_on(1).await, 0);
    let audit = torn.client.audit(&torn.kind).await.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_ledger_is_reported_and_mended() {
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
    // The key exists, so it is not given up.
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
async fn a_ledger_on_the_wrong_node_does_not_begin_anew() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_pauses_a_kind_does_not_begin_its_ledger_anew() {
    let mut torn = Torn::new("torn-paused", 5).await;
    let prefix = format!("{}:", torn.kind);
    torn.client.prefix(&prefix).pause().await.unwrap();
    torn.tear(&PARTS).await;
    // A client that uses the kind for the first time applies the rule to its ledger.
    let (client, holder) = (torn.impatient().await, torn.address(1));
    let schedule = async || client.schedule(torn.key("more"), "").await;
    torn.refuses(&[&holder], schedule).await;
    assert_eq!(torn.keys_on(3).await, 0, "nothing has begun anew");
    torn.client.mend_slots().confirmed().await.unwrap();
    torn.client.prefix(&prefix).resume().await.unwrap();
    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    runs.take(5).await;
    torn.all_done(5).await;
    worker.stop().await;
}

/// As older versions did, which took a part for the whole: the rest of the ledger begins anew, and
/// changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_halves_of_a_torn_ledger_are_joined_by_rule() {
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
    // The copy may also be from before the slot moved, so a further flag is required.
    let left = torn.client.mend_slots().confirmed().await.unwrap();
    assert_eq!(left.slots[0].state, StrayState::Left, "{left:?}");
    assert!(
        left.left[0].contains("whole on the node that serves its slot"),
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

/// As if the replica took over before it heard that a key had left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_dropped_or_replaces_the_older_key() {
    let mut torn = Torn::new("torn-copy", 3).await;
    torn.tear(&["shadow", "due"]).await;
    let (older, from) = (torn.name("due"), &torn.them.nodes[3]);
    let _: u64 = from.ask(&format!("ZADD {older} inf : 1 gone")).await;
    // Without its records the ledger is torn, and the moved part is newer.
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    let due: Vec<String> = from.ask(&format!("ZRANGE {older} 0 -1")).await;
    assert_eq!(due, ["0", "1", "2", ":"]);

    // A copy beside a complete ledger.
    let holder = &torn.them.nodes[1];
    let import = format!("CLUSTER SETSLOT {} IMPORTING {}", torn.slot, from.id);
    let _: () = holder.ask(&import).await;
    let grave = torn.name("grave");
    let _: u64 = torn.ask_for(1, &format!("HSET {grave} : 0")).await;
    let passing = format!("passing:{}", ledger_of(&torn.kind));
    let set = format!("SET {passing} x PX 3600000");
    let _: String = torn.ask_for(1, &set).await;
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
    let lives: i64 = from.ask(&format!("PTTL {passing}")).await;
    assert!((1..=3_600_000).contains(&lives), "{lives} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_no_node_has_can_be_given_up() {
    let mut torn = Torn::new("torn-lost", 3).await;
    torn.tear(&["shadow"]).await;
    let shadow = format!("UNLINK {}", torn.name("shadow"));
    let _: u64 = torn.ask_for(1, &shadow).await;
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(!mended.is_whole() && mended.slots.is_empty(), "{mended:?}");
    let ledger = mended.torn[0].ledger.clone();
    let mended = torn.client.mend_slots().confirmed().give_up(ledger).await;
    assert!(mended.unwrap().is_whole());
    // An audit shows the loss, as in other cases.
    let audit = torn.client.audit(&torn.kind).repair().await.unwrap();
    assert!(!audit.is_clean(), "{audit:?}");
    let stats = torn.client.stats(&torn.kind).await.unwrap();
    assert_eq!(stats.dead, 3, "{stats:?}");
}

#[tokio::test]
async fn the_log_names_the_slot_and_the_remedy() {
    let log = Log::read();
    let mut torn = Torn::new("torn-logged", 3).await;
    torn.tear(&["shadow", "grave"]).await;
    let (ledger, slot) = (format!("{}/0", torn.kind), torn.slot.to_string());
    let holder = torn.address(1);
    let told = "a part of the ledger is not on the node that serves its slot";
    let (client, line) = eventually("the log names who has the rest", async || {
        // Each client logs it once. On a busy machine it may not have found the holder in time.
        let client = torn.impatient().await;
        let schedule = async || client.schedule(torn.key("more"), "").await;
        torn.refuses(&[&*ledger, &*slot], schedule).await;
        let mut lines = log.with(told).into_iter();
        let line = lines.find(|line| line.contains(&holder))?;
        Some((client, line))
    })
    .await;
    for part in [
        format!("ledger=\"{ledger}\""),
        format!("slot={slot}"),
        "missing=\"shadow grave\"".to_owned(),
        "`keyfall cluster mend` brings the part back".to_owned(),
    ] {
        assert!(line.contains(&part), "no {part} in {line}");
    }
    let count = log.with(told).len();
    let cancel = async || client.cancel(torn.key(0)).await;
    torn.refuses(&[&*ledger], cancel).await;
    assert_eq!(log.with(told).len(), count, "it was said");

    torn.client.mend_slots().confirmed().await.unwrap();
    eventually("it is used again", async || {
        let schedule = client.schedule(torn.key("more"), "").after(HOUR);
        schedule.await.ok()
    })
    .await;
    let again = log.with("the ledger is whole again");
    assert!(again.iter().any(|line| line.contains(&ledger)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_ledger_is_mended_from_the_command_line() {
    let mut torn = Torn::new("torn-shell", 5).await;
    let whole = torn.mend("").await;
    assert_eq!(whole.code, 0, "{whole:?}");
    assert!(
        whole
            .out
            .contains("every key is on the node that serves its slot")
    );
    torn.tear(&["due", "stats"]).await;
    let (holder, owner) = (torn.address(1), torn.address(3));
    let (ledger, slot) = (format!("{}/0", torn.kind), torn.slot);

    // Without a flag the command moves nothing, and asks no question.
    let before = (torn.keys_on(1).await, torn.keys_on(3).await);
    assert_eq!(before.0, 2);
    let found = torn.mend("").await;
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.err.contains("add `--yes`"), "{found:?}");
    let lacks = format!("{ledger} (slot {slot}) lacks due stats");
    for part in [&*holder, &*owner, "found", &*lacks] {
        assert!(found.out.contains(part), "no {part} in {found:?}");
    }
    let found = torn.mend("--json").await;
    assert_eq!(found.code, 1, "{found:?}");
    let told: Value = serde_json::from_str(&found.out).unwrap();
    let of_slot = |state: &str| {
        json!({
            "slot": slot, "holder": holder, "owner": owner, "keys": 2, "ledgers": [ledger],
            "state": state,
        })
    };
    let lacking = json!({"ledger": ledger, "slot": slot, "missing": "due stats"});
    let expected = json!({"slots": [of_slot("found")], "torn": [lacking], "left": []});
    assert_eq!(told, expected);
    torn.mend("--join").await.fails(2, "--yes");
    torn.mend("--give-up a:b:c/0").await.fails(2, "--yes");
    let both = torn.mend("--yes --drop --join").await;
    both.fails(2, "cannot be used with");
    let daemon = ["cluster", "mend", "--yes", "--api", "http://127.0.0.1:1"];
    let daemon = Ran::of(keyfall(&daemon)).await;
    daemon.fails(2, "name the cluster by --redis-url");
    assert_eq!((torn.keys_on(1).await, torn.keys_on(3).await), before);

    let mended = torn.mend("--yes --json").await;
    let expected = json!({"slots": [of_slot("together")], "torn": [], "left": []});
    assert_eq!(mended.value(), expected);
    assert_eq!(torn.keys_on(1).await, 0);
    let again = torn.mend("--yes").await;
    assert_eq!(again.code, 0, "{again:?}");
    assert!(
        again
            .out
            .contains("every key is on the node that serves its slot")
    );
    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    runs.take(5).await;
    torn.all_done(5).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_gives_up_lost_parts_on_request() {
    let mut torn = Torn::new("torn-forsaken", 3).await;
    torn.tear(&["shadow"]).await;
    let shadow = format!("UNLINK {}", torn.name("shadow"));
    let _: u64 = torn.ask_for(1, &shadow).await;
    let ledger = format!("{}/0", torn.kind);
    let left = torn.mend("--yes").await;
    assert_eq!(left.code, 1, "{left:?}");
    assert!(left.out.contains("lacks shadow"), "{left:?}");
    let way_out = format!("--give-up {ledger}");
    assert!(left.err.contains(&way_out), "{left:?}");
    let given_up = torn.mend(&format!("--yes {way_out}")).await;
    assert_eq!(given_up.code, 0, "{given_up:?}");
    let stats = torn.client.stats(&torn.kind).await.unwrap();
    assert_eq!(stats.pending, 3, "{stats:?}");
}

/// `src/store/tests/torn.rs` shows which scripts refuse a torn ledger, and when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_on_a_torn_ledger_is_refused_and_changes_nothing() {
    let mut torn = Torn::new("torn-calls", 3).await;
    let letter = KeptJob::dead(torn.key("dead"), SystemTime::now(), "");
    torn.client.restore(letter.error("no")).await.unwrap();
    torn.tear(&["shadow", "grave", "stats"]).await;
    // Each call waits for the same time.
    let client = torn.giving_up_after(Duration::from_secs(2)).await;
    let (kind, prefix) = (torn.kind.clone(), format!("{}:", torn.kind));
    let (ledger, slot) = (format!("{kind}/0"), torn.slot.to_string());
    let told = [
        &*ledger,
        "lacks shadow grave stats",
        &*slot,
        "keyfall cluster mend",
    ];
    let (some, dead) = (torn.key(0), torn.key("dead"));
    let before = (torn.keys_on(1).await, torn.stored().await);
    macro_rules! refused {
        ($($call:expr,)*) => {
            $(torn.refuses(&told, async || $call.await).await;)*
        };
    }
    refused! {
        client.schedule(torn.key("more"), ""),
        client.schedule(&some, "").if_present(),
        client.get(&some),
        client.cancel(&some),
        client.reschedule(&some).after(HOUR),
        client.fire_now(&some),
        client.update_payload(&some, "y"),
        client.story(&some),
        client.happenings(&some),
        client.dead_letters(&dead),
        client.requeue(&dead),
        client.delete_dead_letter(&dead),
        client.restore(KeptJob::pending(torn.key("kept"), SystemTime::now(), "")),
        client.stats(&kind),
        client.count(&prefix),
        client.list(&prefix, JobState::Pending),
        client.audit(&kind),
        client.audit(&kind).repair(),
        client.drop_kind(&kind),
        client.prefix(&prefix).cancel(),
        client.prefix(&prefix).fire_now(),
        client.prefix(&prefix).postpone().after(HOUR),
        client.prefix(&prefix).requeue(),
        client.prefix(&prefix).delete_dead_letters(),
        client.prefix(&prefix).keep_history(7),
        client.prefix(&prefix).pause(),
        client.prefix(&prefix).resume(),
    }
    let many = async || {
        let jobs = [NewJob::new(torn.key("many"), "")];
        client.schedule_many(jobs).await.remove(0)
    };
    torn.refuses(&told, many).await;
    assert_eq!((torn.keys_on(1).await, torn.stored().await), before);

    // That reshard has begun, and goes on when the ledger is complete.
    let reshard = async || client.reshard(&kind, 2).await;
    torn.refuses(&told, reshard).await;
    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    torn.client.reshard(&kind, 2).await.unwrap();
    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    runs.take(3).await;
    torn.all_done(3).await;
    worker.stop().await;
    let letters = torn.client.dead_letters(&dead).await.unwrap();
    assert_eq!(letters.len(), 1);
}
