//! Plain keys on several servers: each is adopted on the server of its job, also while another
//! server is down.

use std::time::SystemTime;

use keyfall::doctor::Severity;
use keyfall::{Client, Handler, JobState, KeyDiffers, MissingKey, Router, server_of, shard_of};
use redis::aio::MultiplexedConnection;

use super::several::Pair;
use crate::log::Log;
use crate::runs::{Runs, eventually, recorder};
use crate::site::{Running, command, connect, ms};

/// Two servers, and a worker that adopts a kind with a shard on each server.
struct AdoptedOnBoth {
    pair: Pair,
    runs: Runs,
    worker: Running,
}

impl AdoptedOnBoth {
    async fn start(app: &str, missing: MissingKey) -> Self {
        AdoptedOnBoth::at(Pair::start(app).await, missing).await
    }

    async fn at(pair: Pair, missing: MissingKey) -> Self {
        let (log, runs) = recorder();
        // Kinds are found by the list of kinds, and by their keys.
        let pattern = pair.pattern().replace(":job:", ":*:");
        let router = Router::new().route(&pattern, log.done().adopt(missing));
        let client = Client::connect(&pair.url()).await.unwrap();
        let worker = Running::start(keyfall::Worker::new(client, router));
        worker.ready().await;
        AdoptedOnBoth { pair, runs, worker }
    }

    async fn redis(&self, server: usize) -> MultiplexedConnection {
        connect(&self.pair.servers[server].url()).await
    }

    /// A command on this server, its words separated by blanks, with the key of a job behind the
    /// first.
    async fn does(&self, server: usize, id: &str, text: &str) {
        let key = self.pair.key(id);
        let mut words = text.split(' ');
        let first = words.next().unwrap();
        let words: Vec<&str> = [first, &key].into_iter().chain(words).collect();
        let _: redis::Value = command(&mut self.redis(server).await, &words).await;
    }

    /// Waits until the job has this payload and is due in about this number of seconds.
    async fn becomes(&self, id: &str, payload: &str, seconds: u64) {
        eventually(&format!("{id} is {payload} in {seconds} s"), async || {
            let view = self.pair.client.get(self.pair.key(id)).await.ok()??;
            let left = view.due().duration_since(SystemTime::now()).ok()?;
            let off = (left.as_secs_f64() - seconds as f64).abs();
            let is_so = view.payload() == payload.as_bytes() && off < 60.0;
            (is_so && view.state() == JobState::Pending).then_some(())
        })
        .await;
    }

    async fn is_gone(&self, id: &str) {
        eventually(&format!("{id} is gone"), async || {
            let there = self.pair.client.get(self.pair.key(id)).await.ok()?;
            there.is_none().then_some(())
        })
        .await;
    }

    /// Waits until the worker has handled all earlier announcements of a server: it then handles a
    /// later one.
    async fn has_heard(&self, server: usize, name: &str) {
        let id = &self.pair.ids_on(server, name, 1)[0];
        self.does(server, id, "SET v EX 900").await;
        self.becomes(id, "v", 900).await;
        self.does(server, id, "DEL").await;
        self.is_gone(id).await;
    }

    async fn has_pending(&self, count: u64) {
        eventually("so many are pending", async || {
            let stats = self.pair.client.stats(&self.pair.kind).await.ok()?;
            (stats.unseen.is_empty() && stats.pending == count).then_some(())
        })
        .await;
    }

    /// Lets keys of this server expire until the worker hears one: a missing key runs its job only
    /// then.
    async fn hears_expired_keys(&mut self, server: usize) {
        for id in self.pair.ids_on(server, "over", 1000) {
            self.does(server, &id, "SET v EX 900").await;
            self.becomes(&id, "v", 900).await;
            self.does(server, &id, "PEXPIRE 100").await;
            self.is_gone(&id).await;
            if self.runs.rest().iter().any(|job| job.key().id() == id) {
                return;
            }
        }
        panic!("none was heard");
    }

    async fn differs(&self, id: &str) -> Option<KeyDiffers> {
        let story = self.pair.client.story(self.pair.key(id)).await;
        story.unwrap().key_differs
    }

    /// Waits until a key has expired.
    async fn has_expired(&self, server: usize, id: &str) {
        let there = ["EXISTS", &self.pair.key(id)];
        eventually("it has expired", async || {
            let there: u64 = command(&mut self.redis(server).await, &there).await;
            (there == 0).then_some(())
        })
        .await;
    }

    async fn ends(mut self) {
        self.worker.stop().await;
        self.runs.assert_no_more();
        self.pair.assert_balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_each_server_schedule_postpone_cancel_and_run() {
    for missing in [MissingKey::Run, MissingKey::Cancel] {
        let mut it = AdoptedOnBoth::start(&format!("several-adopt-{missing:?}"), missing).await;
        for server in [0, 1] {
            let ids = it.pair.ids_on(server, "k", 3);
            for id in &ids {
                it.does(server, id, "SET v EX 900").await;
            }
            for id in &ids {
                it.becomes(id, "v", 900).await;
            }
            it.does(server, &ids[0], "EXPIRE 3600").await;
            it.becomes(&ids[0], "v", 3600).await;
            it.does(server, &ids[0], "SET w EX 1800").await;
            it.becomes(&ids[0], "w", 1800).await;
            assert_eq!(it.differs(&ids[0]).await, None);
            let key = it.pair.key(&ids[1]);
            it.pair.client.update_payload(&key, "x").await.unwrap();
            assert_eq!(it.differs(&ids[1]).await, Some(KeyDiffers::OtherValue));
            it.does(server, &ids[1], "PERSIST").await;
            it.is_gone(&ids[1]).await;
            it.does(server, &ids[2], "DEL").await;
            it.is_gone(&ids[2]).await;
            it.does(server, &ids[0], "PEXPIRE 100").await;
            let job = it.runs.next().await;
            assert_eq!((job.key().id(), &job.payload()[..]), (&*ids[0], &b"w"[..]));
        }
        // A kind that nobody has heard of starts with one shard, on the server that its name says.
        let kind = it.pair.kind.replace(":job", ":new");
        let home = usize::from(server_of(&kind, 0, 2));
        let key = format!("{kind}:1");
        let set = ["SET", &key, "v", "EX", "900"];
        let () = command(&mut it.redis(home).await, &set).await;
        eventually("it is adopted", async || {
            it.pair.client.get(&key).await.unwrap()
        })
        .await;
        let _: u64 = command(&mut it.redis(home).await, &["PEXPIRE", &key, "100"]).await;
        assert_eq!(it.runs.next().await.key().as_str(), key);
        it.ends().await;
    }
}

#[tokio::test]
async fn a_key_on_the_wrong_server_is_left_alone_and_logged_once() {
    let log = Log::read();
    for missing in [MissingKey::Run, MissingKey::Cancel] {
        let it = AdoptedOnBoth::start(&format!("several-wrong-{missing:?}"), missing).await;
        let before = log.with("is on a server that does not have its job").len();
        let ids = it.pair.ids_on(0, "k", 3);
        for id in &ids {
            it.does(0, id, "SET right EX 900").await;
            it.becomes(id, "right", 900).await;
        }
        for id in &ids {
            it.does(1, id, "SET wrong EX 3600").await;
        }
        it.does(1, &ids[0], "DEL").await;
        it.does(1, &ids[1], "PERSIST").await;
        it.does(1, &ids[2], "PEXPIRE 1").await;
        it.has_expired(1, &ids[2]).await;
        // A key without a job is not adopted either.
        let alone = &it.pair.ids_on(0, "alone", 1)[0];
        it.does(1, alone, "SET wrong EX 900").await;
        it.has_heard(1, "behind").await;
        it.has_heard(0, "behind").await;
        for id in &ids {
            it.becomes(id, "right", 900).await;
        }
        it.is_gone(alone).await;
        it.has_pending(3).await;
        let told = eventually("it is told", async || {
            let told = log.with("is on a server that does not have its job");
            (told.len() > before).then_some(told)
        })
        .await;
        assert_eq!(told.len(), before + 1, "{told:?}");
        let [right, wrong] = [0, 1].map(|server| {
            let url = it.pair.servers[server].url();
            url.replace("redis+unix://", "")
        });
        for said in [
            it.pair.key(&ids[0]),
            format!("belongs={right}"),
            format!("here={wrong}"),
        ] {
            let line = told[before].replace('"', "");
            assert!(line.contains(&said), "{said}: {line}");
        }
        // A search does not adopt such a key either: a new subscription starts one.
        let cut = ["CLIENT", "KILL", "TYPE", "pubsub"];
        let _: u64 = command(&mut it.redis(1).await, &cut).await;
        let found = &it.pair.ids_on(1, "found", 1)[0];
        it.does(1, found, "SET v EX 900").await;
        it.becomes(found, "v", 900).await;
        it.is_gone(alone).await;
        it.ends().await;
    }
}

/// The keys of these jobs were deleted unheard: only events on the other server are heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fate_of_a_key_on_the_wrong_server_decides_nothing() {
    let it = AdoptedOnBoth::start("several-adopt-decides", MissingKey::Run).await;
    let ids = it.pair.ids_on(0, "k", 2);
    for id in &ids {
        it.does(0, id, "SET v EX 900").await;
        it.becomes(id, "v", 900).await;
    }
    let mut both = redis::pipe();
    both.atomic();
    both.cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub");
    both.cmd("DEL").arg(it.pair.key(&ids[0]));
    both.cmd("DEL").arg(it.pair.key(&ids[1]));
    let _: redis::Value = both.query_async(&mut it.redis(0).await).await.unwrap();
    it.has_heard(0, "again").await;
    for id in &ids {
        it.does(1, id, "SET v EX 900").await;
    }
    it.does(1, &ids[0], "DEL").await;
    it.does(1, &ids[1], "PEXPIRE 1").await;
    it.has_expired(1, &ids[1]).await;
    for _ in 0..3 {
        it.has_heard(1, "behind").await;
        it.has_heard(0, "behind").await;
    }
    for id in &ids {
        it.becomes(id, "v", 900).await;
    }
    it.has_pending(2).await;
    it.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_takes_only_its_own_keys_with_it() {
    let mut it = AdoptedOnBoth::start("several-adopt-killed", MissingKey::Cancel).await;
    let of_dead = it.pair.ids_on(1, "dead", 4);
    for id in &of_dead {
        it.does(1, id, "SET v EX 900").await;
    }
    for id in &of_dead {
        it.becomes(id, "v", 900).await;
    }
    it.pair.servers[1].kill_server().await.unwrap();

    // The worker misses none of this, or it would not run the keys that expire here.
    let there = it.pair.ids_on(0, "there", 6);
    for id in &there {
        it.does(0, id, "SET v EX 900").await;
        it.becomes(id, "v", 900).await;
    }
    it.does(0, &there[0], "DEL").await;
    for id in &there[1..] {
        it.does(0, id, "PEXPIRE 100").await;
    }
    let ran = it.runs.take(5).await;
    assert!(ran.iter().all(|job| job.key().id() != there[0]));

    it.pair.servers[1].restart().await.unwrap();
    it.does(1, &of_dead[0], "EXPIRE 3600").await;
    it.becomes(&of_dead[0], "v", 3600).await;
    it.does(1, &of_dead[1], "DEL").await;
    it.is_gone(&of_dead[1]).await;
    it.does(1, &of_dead[2], "SET w EX 900").await;
    it.becomes(&of_dead[2], "w", 900).await;
    it.hears_expired_keys(1).await;
    it.becomes(&of_dead[3], "v", 900).await;
    it.has_pending(3).await;
    it.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_set_while_a_server_was_away_are_found() {
    let mut pair = Pair::start("several-adopt-found").await;
    let ids = pair.ids_on(1, "k", 5);
    let mut redis = connect(&pair.servers[1].url()).await;
    for id in &ids {
        let set = ["SET", &pair.key(id), "v", "EX", "3600"];
        let () = command(&mut redis, &set).await;
    }
    pair.servers[1].kill_server().await.unwrap();
    let mut it = AdoptedOnBoth::at(pair, MissingKey::Run).await;
    let here = it.pair.ids_on(0, "k", 1);
    it.does(0, &here[0], "SET v EX 900").await;
    it.becomes(&here[0], "v", 900).await;
    it.pair.servers[1].restart().await.unwrap();
    for id in &ids {
        it.becomes(id, "v", 3600).await;
    }
    it.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_flags_is_mended_and_the_other_continues() {
    let mut it = AdoptedOnBoth::start("several-adopt-flags", MissingKey::Cancel).await;
    let flags = "notify-keyspace-events";
    let off = ["CONFIG", "SET", flags, "Ex"];
    let () = command(&mut it.redis(1).await, &off).await;
    let [unheard, heard] = [1, 0].map(|server| it.pair.ids_on(server, "k", 1).remove(0));
    it.does(1, &unheard, "SET v EX 3600").await;
    it.does(0, &heard, "SET v EX 900").await;
    it.becomes(&heard, "v", 900).await;
    it.does(0, &heard, "PEXPIRE 100").await;
    assert_eq!(it.runs.next().await.key().id(), heard);
    it.becomes(&unheard, "v", 3600).await;
    for server in [0, 1] {
        eventually("flags are merged", async || {
            let get = ["CONFIG", "GET", flags];
            let told = command(&mut it.redis(server).await, &get).await;
            let (_, flags): (String, String) = told;
            "ExKg$"
                .chars()
                .all(|flag| flags.contains(flag))
                .then_some(())
        })
        .await;
    }
    it.ends().await;
}

/// Keys stay where they are, and their jobs move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_moves_to_another_server_runs_without_its_key() {
    let pair = Pair::start("several-adopt-moved").await;
    pair.client.reshard(&pair.kind, 1).await.unwrap();
    let first = usize::from(server_of(&pair.kind, 0, 2));
    let mut it = AdoptedOnBoth::at(pair, MissingKey::Cancel).await;
    let leaves = |id: &String| shard_of(id, 2) == 1;
    let ids: Vec<String> = (0..12).map(|id| format!("k{id}")).collect();
    for id in &ids {
        it.does(first, id, "SET v EX 900").await;
    }
    for id in &ids {
        it.becomes(id, "v", 900).await;
    }
    for id in &ids {
        it.does(first, id, "PEXPIRE 8000").await;
    }
    for id in &ids {
        let key = it.pair.key(id);
        eventually("it is due soon, or has run", async || {
            let view = it.pair.client.get(&key).await.unwrap();
            let is_soon = |view: keyfall::JobView| {
                let left = view.due().duration_since(SystemTime::now());
                left.is_ok_and(|left| left < ms(60_000))
            };
            view.is_none_or(is_soon).then_some(())
        })
        .await;
    }
    it.pair.client.reshard(&it.pair.kind, 2).await.unwrap();
    let moved = ids.iter().find(|id| leaves(id)).unwrap();
    // The place of the key from now on.
    let new = (0..).map(|id| format!("new{id}")).find(leaves).unwrap();
    it.does(1 - first, &new, "SET v EX 900").await;
    it.becomes(&new, "v", 900).await;
    let mut ran: Vec<String> = Vec::new();
    for job in it.runs.take(ids.len()).await {
        ran.push(job.key().id().to_owned());
    }
    ran.sort_unstable();
    let mut all = ids.clone();
    all.sort_unstable();
    assert_eq!(ran, all, "none is taken for deleted");
    // The keys set before no longer match: a number of shards that the number of servers divides
    // would have kept them in place.
    it.does(first, moved, "SET v EX 900").await;
    it.has_heard(first, "behind").await;
    it.has_pending(1).await;
    it.pair.client.reshard(&it.pair.kind, 4).await.unwrap();
    it.does(1 - first, &new, "EXPIRE 3600").await;
    it.becomes(&new, "v", 3600).await;
    it.does(1 - first, &new, "DEL").await;
    it.is_gone(&new).await;
    it.ends().await;
}

#[tokio::test]
async fn the_doctor_looks_at_each_server() {
    let it = AdoptedOnBoth::start("several-adopt-doctor", MissingKey::Run).await;
    for set in [
        ["CONFIG", "SET", "maxmemory", "1gb"],
        ["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"],
    ] {
        let () = command(&mut it.redis(1).await, &set).await;
    }
    let address = it.pair.servers[1].url().replace("redis+unix://", "");
    let found = eventually("it is warned of", async || {
        let diagnosis = it.pair.client.diagnose().await.ok()?;
        let mut found = diagnosis.findings.into_iter();
        let found = found.find(|it| it.check.id == "adopted-keys")?;
        (found.severity == Severity::Warning).then_some(found)
    })
    .await;
    assert!(found.found.contains(&address), "{found}");
    it.ends().await;
}
