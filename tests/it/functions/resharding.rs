//! While a kind is resharded, functions refuse calls on jobs that are yet to be moved, and carry
//! out all other calls.

use std::collections::{BTreeSet, HashMap};

use keyfall::{Client, NewJob, Router, shard_of};
use redis::Value;

use super::site;
use crate::resharding::FAR;
use crate::runs::{Gate, eventually, recorder};
use crate::site::{HOUR, Site};

impl Site {
    async fn is_seen(&self, id: &str) -> Option<HashMap<String, Value>> {
        self.fcall("get", id, &[]).await
    }

    async fn state_by_function(&self, id: &str) -> Option<String> {
        let mut told = self.is_seen(id).await?;
        Some(redis::from_redis_value(told.remove("state")?).unwrap())
    }

    /// Whether functions refuse a job because it is yet to be moved; checks each function and its
    /// error.
    async fn is_held_back(&self, id: &str) -> bool {
        let key = self.key(id);
        if self.try_fcall("get", &key, &[]).await.is_ok() {
            return false;
        }
        for (name, args) in [("get", ""), ("schedule", "x EX 3600"), ("cancel", "")] {
            let args: Vec<&str> = args.split_whitespace().collect();
            let told = self.refused(name, &key, &args).await;
            assert!(told.starts_with("RESHARDING "), "{told}");
            for word in [&*self.kind(), "repeat the call in a moment", "run `keyfall"] {
                assert!(told.contains(word), "{told}");
            }
        }
        true
    }

    /// The number of these jobs that are held back. A client then gets each of them, which moves
    /// it.
    async fn held_back(&self, ids: &[String]) -> usize {
        let mut held_back = 0;
        for id in ids {
            if self.is_held_back(id).await {
                held_back += 1;
                let found = self.client.get(self.key(id)).await.unwrap();
                assert!(found.is_some(), "{id}");
            }
        }
        held_back
    }

    /// The answers to a cancel, and to its repeat.
    async fn cancelled_twice(&self, id: &str) -> [String; 2] {
        [
            self.fcall("cancel", id, &[]).await,
            self.fcall("cancel", id, &[]).await,
        ]
    }

    /// Schedules this number of jobs an hour ahead.
    pub(super) async fn has_many(&self, count: usize) -> Vec<String> {
        let ids: Vec<String> = (0..count).map(|number| format!("{number:05}")).collect();
        let jobs = ids
            .iter()
            .map(|id| NewJob::new(self.key(id), "").after(HOUR));
        for answer in self.client.schedule_many(jobs).await {
            answer.unwrap();
        }
        ids
    }

    /// The ids of all pending jobs in all ledgers; a job that is stored twice comes twice.
    async fn pending_ids(&self) -> Vec<String> {
        let mut ids = Vec::new();
        for (_, due) in self.ledgers("due").await {
            let there: Vec<String> = self.command(&["ZRANGE", &due, "0", "-1"]).await;
            ids.extend(there);
        }
        ids.sort_unstable();
        ids
    }

    /// Ends the reshard; then exactly the expected jobs are pending, each once.
    pub(super) async fn arrives(&self, shards: u16, expected: &BTreeSet<String>) {
        self.client.reshard(&self.kind(), shards).await.unwrap();
        let pending = self.pending_ids().await;
        assert!(pending.iter().eq(expected), "{pending:?}");
        let report = self.client.audit(&self.kind()).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        self.assert_balanced().await;
    }
}

/// Looks up all jobs, and replaces, cancels and creates a third each; `new` is in the ids of the
/// new ones.
async fn goes_on(site: &Site, ids: &[String], new: &str) -> BTreeSet<String> {
    let mut there: BTreeSet<String> = ids.iter().cloned().collect();
    for id in ids {
        let seen = site.state_by_function(id).await;
        assert_eq!(seen.as_deref(), Some("pending"), "{id}");
    }
    for (number, id) in ids.iter().enumerate() {
        match number % 3 {
            0 => assert_eq!(site.placed(id, &["x", "EX", "3600"]).await.0, "replaced"),
            1 => {
                assert_eq!(site.cancelled_twice(id).await, ["cancelled", "absent"]);
                assert_eq!(site.is_seen(id).await, None, "{id}");
                there.remove(id);
            }
            _ => {
                let new = format!("{new}-{id}");
                for word in ["created", "replaced"] {
                    assert_eq!(site.placed(&new, &["x", "EX", "3600"]).await.0, word);
                }
                there.insert(new);
            }
        }
    }
    there
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_way_jobs_that_are_yet_to_be_moved_are_refused_and_no_other() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let mut ids = site.has_many(600).await;
    for (shards, new) in [(4, "new"), (2, "newer")] {
        site.begin_to_reshard(shards).await;
        // Some jobs were moved, and some stay.
        let held_back = site.held_back(&ids).await;
        assert!((1..ids.len()).contains(&held_back), "{held_back}");
        let there = goes_on(&site, &ids, new).await;
        site.arrives(shards, &there).await;
        ids = there.into_iter().collect();
    }
}

#[tokio::test]
async fn functions_go_by_the_first_ledger_and_not_by_the_list() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let ids = site.has_many(60).await;
    // The state after the resharding client died at once.
    let listed = async |layout: &str| {
        let list = ["HSET", "keyfall:kinds", &site.kind(), layout];
        let _: u64 = site.command(&list).await;
    };
    listed("4 1 1").await;
    let there = goes_on(&site, &ids, "new").await;
    site.arrives(4, &there).await;
    // The list was forgotten.
    let _: u64 = site.command(&["HDEL", "keyfall:kinds", &site.kind()]).await;
    let rest: Vec<String> = there.into_iter().collect();
    let there = goes_on(&site, &rest, "newer").await;
    site.arrives(4, &there).await;
    // The state after a dropping client died before the kind was off the list.
    site.client.reshard(&site.kind(), 1).await.unwrap();
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.client.drop_kind(&site.kind()).await.unwrap();
    listed("1 7").await;
    site.placed("1", &["x", "EX", "3600"]).await;
    site.arrives(1, &BTreeSet::from(["1".to_owned()])).await;
}

#[tokio::test]
async fn nothing_is_stored_by_a_new_layout_before_all_ledgers_concerned_were_told() {
    // Four ledgers become two; the first two ledgers, or the other two, were told.
    for told in [0..2, 2..4] {
        let Some((_server, site)) = site().await else {
            return;
        };
        site.divide(4).await;
        let list = "keyfall:kinds";
        let listed: String = site.command(&["HGET", list, &site.kind()]).await;
        let epoch: u64 = listed.split(' ').nth(1).unwrap().parse().unwrap();
        let begun = format!("2 {} 4", epoch + 1);
        let _: u64 = site.command(&["HSET", list, &site.kind(), &begun]).await;
        let ledgers = site.ledgers("calls").await;
        for (_, calls) in ledgers.iter().filter(|it| told.contains(&it.0)) {
            let _: u64 = site.command(&["HSET", calls, "layout", &begun]).await;
        }
        // A client that does not know of the reshard can still put the job into its third ledger,
        // and a client that does into its first.
        let mut ids = (0..).map(|id: u32| id.to_string());
        let id = ids.find(|id| shard_of(id, 4) == 2).unwrap();
        assert!(site.is_held_back(&id).await);
        let newcomer = Client::connect(&site.url).await.unwrap();
        assert!(newcomer.get(site.key(&id)).await.unwrap().is_none());
        assert_eq!(site.placed(&id, &["x", "EX", "3600"]).await.0, "created");
        site.arrives(2, &BTreeSet::from([id])).await;
    }
}

#[tokio::test]
async fn what_is_on_its_way_is_refused_until_it_has_arrived() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let named = |name: &str, shard: u16| {
        let mut ids = (0..).map(|number| format!("{name}-{number}"));
        ids.find(|id| shard_of(id, 2) == shard).unwrap()
    };
    let [job, letter, new] = ["job", "letter", "new"].map(|name| named(name, 1));
    let stays = named("stays", 0);
    site.bring(&letter, "dead").await;
    for id in [&job, &stays] {
        site.placed(id, &["x", "EX", "3600"]).await;
    }
    let before = site.is_seen(&letter).await;
    let first = |part: &str| format!("keyfall:{{{}/0}}:{part}", site.kind());
    for (key, field) in [
        ("keyfall:kinds", &*site.kind()),
        (&first("calls"), "layout"),
    ] {
        let _: u64 = site.command(&["HSET", key, field, "2 1 1"]).await;
    }
    // A client notices this, and tells the other ledger.
    assert!(site.client.get(site.key(&stays)).await.unwrap().is_some());
    assert!(site.is_held_back(&job).await);
    site.is_taken_along(&job, FAR).await;
    assert!(site.is_held_back(&job).await);
    // A letter is yet to be moved. It holds up only calls that look for it.
    let is_refused = async |id: &str| {
        let answer = site.try_fcall("get", &site.key(id), &[]).await;
        answer.is_err_and(|error| error.code() == Some("RESHARDING"))
    };
    assert!(is_refused(&letter).await);
    assert_eq!(site.cancelled_twice(&letter).await, ["absent", "absent"]);
    // Letters of a job that is in no ledger may be on their way.
    assert!(is_refused(&new).await);
    assert_eq!(site.placed(&new, &["x", "EX", "3600"]).await.0, "created");
    assert!(!is_refused(&new).await && !is_refused(&stays).await);
    assert_eq!(site.cancelled_twice(&new).await, ["cancelled", "absent"]);
    assert!(site.client.get(site.key(&job)).await.unwrap().is_some());
    assert_eq!(site.is_seen(&new).await, None);
    assert_eq!(site.cancelled_twice(&job).await, ["cancelled", "absent"]);
    assert!(is_refused(&letter).await);
    site.client.get(site.key(&letter)).await.unwrap();
    assert_eq!(site.is_seen(&letter).await, before);
    // The job has died again, in the ledger where it ran.
    let grave = ["HSET", &first("grave"), &letter, "2"];
    let _: u64 = site.command(&grave).await;
    assert!(is_refused(&letter).await);
    let _: u64 = site.command(&["HDEL", &first("grave"), &letter]).await;
    site.arrives(2, &BTreeSet::from([stays])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_seen_succeeded_and_cancelled_in_its_old_ledger() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let ids: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    for id in &ids {
        site.placed(id, &["", "PX", "0"]).await;
    }
    runs.take(ids.len()).await;
    let (client, kind) = (site.client.clone(), site.kind());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let reshard = tokio::spawn(async move {
        let tell = move |it: keyfall::Resharding| {
            let _ = tell.send(it.running);
        };
        client.reshard(&kind, 4).on_progress(tell).await
    });
    let away = ids.iter().filter(|id| shard_of(id, 4) != 0).count();
    assert!(away > 3);
    while told.recv().await.expect("it waits") < away as u64 {}
    let mut followed = 0;
    for (number, id) in ids.iter().enumerate() {
        let seen = site.state_by_function(id).await;
        assert_eq!(seen.as_deref(), Some("running"), "{id}");
        if number % 2 == 0 {
            let word = site.placed(id, &["next", "EX", "3600"]).await.0;
            assert_eq!(word, "succeeds", "{id}");
            followed += 1;
        } else {
            assert_eq!(site.cancelled_twice(id).await, ["running", "running"]);
        }
    }
    gate.open();
    assert_eq!(reshard.await.unwrap().unwrap().to, 4);
    eventually("only what follows is there", async || {
        let stats = site.stats().await;
        (stats.leased == 0 && stats.successors == 0).then_some(())
    })
    .await;
    assert_eq!(site.stats().await.pending, followed);
    worker.stop().await;
    let there = ids.into_iter().step_by(2).collect();
    site.arrives(4, &there).await;
}
