//! While a kind is given another number of shards, functions find its jobs wherever they are, and move
//! those that they change.

use std::collections::{BTreeSet, HashMap};

use keyfall::{NewJob, Router, shard_of};
use redis::Value;

use super::site;
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

    /// What cancelling says, once and again.
    async fn cancelled_twice(&self, id: &str) -> [String; 2] {
        [
            self.fcall("cancel", id, &[]).await,
            self.fcall("cancel", id, &[]).await,
        ]
    }

    /// Schedules so many jobs an hour ahead.
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

    /// The ids of all that is pending, in whatever ledger; one that is there twice comes twice.
    async fn pending_ids(&self) -> Vec<String> {
        let mut ids = Vec::new();
        for (_, due) in self.ledgers("due").await {
            let there: Vec<String> = self.command(&["ZRANGE", &due, "0", "-1"]).await;
            ids.extend(there);
        }
        ids.sort_unstable();
        ids
    }

    /// Ends what was begun: what is pending then is what is expected, and each job once.
    pub(super) async fn arrives(&self, shards: u16, expected: &BTreeSet<String>) {
        self.client.reshard(&self.kind(), shards).await.unwrap();
        let pending = self.pending_ids().await;
        assert!(pending.iter().eq(expected), "{pending:?}");
        let report = self.client.audit(&self.kind()).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        self.assert_balanced().await;
    }
}

/// Looks all jobs up, and replaces, cancels and creates some, a third each: the new ones are called so.
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
async fn half_way_each_job_is_found_and_none_is_there_twice() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let ids = site.has_many(600).await;
    site.begin_to_reshard(4).await;
    let there = goes_on(&site, &ids, "new").await;
    site.arrives(4, &there).await;
    let rest: Vec<String> = there.into_iter().collect();
    site.begin_to_reshard(2).await;
    let there = goes_on(&site, &rest, "newer").await;
    site.arrives(2, &there).await;
}

#[tokio::test]
async fn a_change_that_no_ledger_was_told_of_is_told_to_all() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let ids = site.has_many(60).await;
    // As whoever reshards leaves it who dies at once.
    let begun = ["HSET", "keyfall:kinds", &site.kind(), "4 1 1"];
    let _: u64 = site.command(&begun).await;
    let there = goes_on(&site, &ids, "new").await;
    assert_eq!(
        site.client.shards(&site.kind()).await.unwrap(),
        (4, Some(1))
    );
    for (_, calls) in site.ledgers("calls").await {
        let layout: String = site.command(&["HGET", &calls, "layout"]).await;
        assert_eq!(layout, "4 1 1");
    }
    site.arrives(4, &there).await;
    // The list was forgotten, and the ledgers know.
    let _: u64 = site.command(&["HDEL", "keyfall:kinds", &site.kind()]).await;
    let rest: Vec<String> = there.into_iter().collect();
    let there = goes_on(&site, &rest, "newer").await;
    site.arrives(4, &there).await;
}

#[tokio::test]
async fn what_was_taken_along_and_cannot_be_put_anywhere_is_seen_and_not_lost() {
    // Each of three, a job, a dead letter, and both, is the one that is taken.
    for taken in 0..3 {
        let Some((_server, site)) = site().await else {
            return;
        };
        is_kept_aside(&site, taken).await;
    }
}

async fn is_kept_aside(site: &Site, taken: usize) {
    let named = |name: &str, shard: u16| {
        let mut ids = (0..).map(|number| format!("{name}-{number}"));
        ids.find(|id| shard_of(id, 2) == shard).unwrap()
    };
    let all = ["job", "letter", "both"].map(|name| named(name, 1));
    let ([job, letter, both], stays) = (&all, named("stays", 0));
    for id in [letter, both] {
        site.bring(id, "dead").await;
    }
    for id in [job, both] {
        site.placed(id, &["x", "EX", "3600"]).await;
    }
    let mut before = Vec::new();
    for id in &all {
        before.push(site.is_seen(id).await);
    }
    assert!(before.iter().all(Option::is_some));
    let begun = ["HSET", "keyfall:kinds", &site.kind(), "2 1 1"];
    let _: u64 = site.command(&begun).await;
    site.placed(&stays, &["x", "EX", "3600"]).await;
    // Somebody has set a key of the ledger to which they go.
    let ledgers = site.ledgers("calls").await;
    let (_, calls) = ledgers.iter().find(|(shard, _)| *shard == 1).unwrap();
    let stats = calls.replace(":calls", ":stats");
    let () = site.command(&["SET", &stats, "mine"]).await;
    // Whoever comes next has to bring it where it belongs first.
    for id in [&all[taken], job, letter, both] {
        let answer = site.try_fcall("cancel", &site.key(id), &[]).await;
        assert_eq!(answer.unwrap_err().code(), Some("WRONGTYPE"), "{id}");
        for (id, before) in all.iter().zip(&before) {
            assert_eq!(site.is_seen(id).await, *before, "{id}");
        }
    }
    let _: u64 = site.command(&["DEL", &stats]).await;
    assert_eq!(site.cancelled_twice(letter).await, ["absent", "absent"]);
    for id in [job, both] {
        assert_eq!(site.cancelled_twice(id).await, ["cancelled", "absent"]);
    }
    assert_eq!(site.is_seen(job).await, None);
    assert_eq!(site.is_seen(letter).await, before[1]);
    for id in [letter, both] {
        let seen = site.state_by_function(id).await;
        assert_eq!(seen.as_deref(), Some("dead"), "{id}");
        let letters = site.client.dead_letters(site.key(id)).await.unwrap();
        assert_eq!(letters.len(), 1, "{id}");
    }
    site.arrives(2, &BTreeSet::from([stays])).await;
}

#[tokio::test]
async fn what_has_arrived_and_was_not_dropped_is_not_seen_a_second_time() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let mut ids = (0..).map(|id: u32| id.to_string());
    let id = ids.find(|id| shard_of(id, 2) == 1).unwrap();
    site.bring(&id, "dead").await;
    site.placed(&id, &["x", "EX", "3600"]).await;
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let record: String = site.command(&["HGET", &shadow, &id]).await;
    let begun = ["HSET", "keyfall:kinds", &site.kind(), "2 1 1"];
    let _: u64 = site.command(&begun).await;
    assert_eq!(site.cancelled_twice(&id).await, ["cancelled", "absent"]);
    let deleted = site.client.delete_dead_letter(site.key(&id)).await;
    assert!(deleted.unwrap());
    // As whoever has put it there and died leaves it: job and letter.
    let leaving = format!("keyfall:{{{}/0}}:leaving", site.kind());
    let kept = format!("1 {record}");
    let aside = ["HSET", &leaving, &id, &kept, &format!("{id}:1"), &kept];
    let _: u64 = site.command(&aside).await;
    assert_eq!(site.is_seen(&id).await, None);
    assert_eq!(site.cancelled_twice(&id).await, ["absent", "absent"]);
    let left: u64 = site.command(&["EXISTS", &leaving]).await;
    assert_eq!(left, 0);
    site.arrives(2, &BTreeSet::new()).await;
}

#[tokio::test]
async fn while_redis_is_full_jobs_that_have_to_be_moved_are_looked_up_and_cancelled() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let ids = site.has_many(12).await;
    let begun = ["HSET", "keyfall:kinds", &site.kind(), "4 1 1"];
    let _: u64 = site.command(&begun).await;
    let () = site.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for id in &ids {
        let key = site.key(id);
        let told = site.refused("schedule", &key, &["x", "EX", "1"]).await;
        assert!(told.starts_with("OOM"), "{told}");
        let seen = site.state_by_function(id).await;
        assert_eq!(seen.as_deref(), Some("pending"), "{id}");
        assert_eq!(site.cancelled_twice(id).await, ["cancelled", "absent"]);
    }
    let () = site.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    site.arrives(4, &BTreeSet::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_seen_followed_and_stopped_where_it_stays() {
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
