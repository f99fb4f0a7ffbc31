//! Functions and clients put a job into the same, documented ledger.

use keyfall::{Cancelled, Placed, Router, shard_of};
use redis::Value;

use super::site;
use crate::runs::{ids, recorder};
use crate::site::{HOUR, Site};

/// Ids of every sort: with hints, in many alphabets, as long as possible.
fn all_sorts() -> Vec<String> {
    let plain = (0..400).map(|number| format!("1615{number}"));
    let hints = ["user", "ü", "東京", "a-", "😀"].into_iter().cycle();
    let hinted = hints.zip(0..400).map(|(hint, number)| {
        let user = number / 20;
        format!("{hint}{user}~{number}")
    });
    let tildes = ["~", "~~", "~a", "~a~b", "a~", "a~~b", "a~b~c", "~ü~"].map(str::to_owned);
    let letters = ('\u{100}'..'\u{17f}').chain('一'..'冀').chain('😀'..'🙏');
    let foreign = letters.map(|letter| format!("{letter}{}", u32::from(letter) % 10));
    let long = (0..50).map(|number| format!("{number:é>128}"));
    let longest = (0..50).map(|number| format!("{number:x>256}"));
    let all = plain.chain(hinted).chain(tildes).chain(foreign);
    all.chain(long).chain(longest).collect()
}

#[tokio::test]
async fn functions_put_each_job_into_the_published_ledger() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let all = all_sorts();
    let many = all.len() as u64;
    for shards in [1, 2, 4, 7, 256, 3] {
        if shards > 1 {
            // Before that, the kind is unknown.
            site.client.reshard(&site.kind(), shards).await.unwrap();
        }
        let mut calls = redis::pipe();
        for id in &all {
            let call = calls.cmd("FCALL").arg("keyfall_schedule").arg(1);
            call.arg(site.key(id)).arg("x").arg("EX").arg(3600);
        }
        let answers: Vec<(String, u64)> = calls.query_async(&mut site.redis()).await.unwrap();
        assert!(answers.iter().all(|(word, _)| word == "created"));
        let mut found = 0;
        for (shard, due) in site.ledgers("due").await {
            let there: Vec<String> = site.command(&["ZRANGE", &due, "0", "-1"]).await;
            found += there.len();
            for id in there {
                assert_eq!(shard_of(&id, shards), shard, "{id} of {shards}");
            }
        }
        assert_eq!(found, all.len());
        // The client computes the ledger itself.
        for id in all.iter().step_by(41) {
            assert!(
                site.client.get(site.key(id)).await.unwrap().is_some(),
                "{id}"
            );
        }
        let cancelled = site.client.prefix(&site.kind()).cancel().await.unwrap();
        assert_eq!(cancelled.done, many, "{shards}");
    }
    assert_eq!(
        site.ledgers("calls").await.len(),
        256,
        "and no ledger that is none"
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn functions_and_clients_meet_for_any_number_of_shards() {
    for shards in [1, 4, 7] {
        let Some((_server, site)) = site().await else {
            return;
        };
        site.divide(shards).await;
        meet(&site).await;
        site.assert_balanced().await;
    }
}

async fn meet(site: &Site) {
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    worker.ready().await;
    let names = |of: &'static str| (0..20).map(move |number| format!("{of}{number}"));
    for id in names("ours-") {
        assert_eq!(site.placed(&id, &["", "EX", "3600"]).await.0, "created");
        let again = site.client.schedule(site.key(&id), "").after(HOUR);
        assert_eq!(again.await.unwrap().placed, Placed::Replaced, "{id}");
        let cancelled = site.client.cancel(site.key(&id)).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled, "{id}");
        let answer: Value = site.fcall("get", &id, &[]).await;
        assert_eq!(answer, Value::Nil, "{id}");
    }
    for id in names("theirs-") {
        let call = site.client.schedule(site.key(&id), "").after(HOUR);
        assert_eq!(call.await.unwrap().placed, Placed::Created, "{id}");
        assert_eq!(site.placed(&id, &["", "EX", "3600"]).await.0, "replaced");
        for expected in ["cancelled", "absent"] {
            let word: String = site.fcall("cancel", &id, &[]).await;
            assert_eq!(word, expected, "{id}");
        }
        assert!(site.client.get(site.key(&id)).await.unwrap().is_none());
    }
    let mut placed: Vec<String> = names("runs-").collect();
    placed.sort_unstable();
    for id in &placed {
        site.placed(id, &["", "PX", "100"]).await;
    }
    assert_eq!(ids(&runs.take(placed.len()).await), placed);
    assert_eq!(site.all_ended().await.done, 20);
    worker.stop().await;
    runs.assert_no_more();
    let report = site.client.audit(&site.kind()).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// A client was killed while it founded the kind: only the first ledger knows the layout.
#[tokio::test]
async fn a_kind_that_is_half_founded_takes_jobs_in_all_of_its_shards() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let kind = site.kind();
    let first = format!("keyfall:{{{kind}/0}}:calls");
    let _: u64 = site
        .command(&["HSET", &first, "layout", "4 1", "founding", "1"])
        .await;
    let ids = [0, 1, 2, 3].map(|shard| {
        let mut ids = (0..).map(|id: u32| id.to_string());
        ids.find(|id| shard_of(id, 4) == shard).unwrap()
    });
    for id in &ids {
        let key = site.key(id);
        let nothing: Value = site.command(&["FCALL_RO", "keyfall_get", "1", &key]).await;
        assert_eq!(nothing, Value::Nil);
        let absent: String = site.command(&["FCALL", "keyfall_cancel", "1", &key]).await;
        assert_eq!(absent, "absent");
        assert_eq!(site.placed(id, &["x", "EX", "3600"]).await.0, "created");
    }
    // A client founds the kind, so that all its ledgers are told.
    for id in &ids {
        assert!(site.client.get(site.key(id)).await.unwrap().is_some());
    }
    assert_eq!(site.client.shards(&kind).await.unwrap(), (4, None));
    assert_eq!(site.client.kinds().await.unwrap().len(), 1);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_layout_of_a_newer_version_and_a_ledger_of_another_mind_are_refused() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let kind = site.kind();
    let first = format!("keyfall:{{{kind}/0}}:calls");
    for layout in ["257 1", "4 1 257", "0", "many", "4 1 1 1"] {
        let _: u64 = site.command(&["HSET", &first, "layout", layout]).await;
        for (name, args) in [("schedule", "x EX 1"), ("cancel", ""), ("get", "")] {
            let args: Vec<&str> = args.split_whitespace().collect();
            let told = site.refused(name, &site.key("1"), &args).await;
            assert!(told.starts_with("INCOMPATIBLE"), "{told}");
            assert!(told.contains(&format!("{layout:?}")), "{told}");
        }
    }
    let _: u64 = site.command(&["DEL", &first]).await;
    site.divide(8).await;
    // One ledger has another, newer layout.
    let mut ids = (0..).map(|id: u32| id.to_string());
    let id = ids.find(|id| shard_of(id, 8) == 3).unwrap();
    let ledgers = site.ledgers("calls").await;
    let (_, calls) = ledgers.iter().find(|it| it.0 == 3).unwrap();
    let listed: String = site.command(&["HGET", "keyfall:kinds", &kind]).await;
    let epoch: u64 = listed.split(' ').nth(1).unwrap().parse().unwrap();
    let layout = format!("4 {}", epoch + 1);
    let _: u64 = site.command(&["HSET", calls, "layout", &layout]).await;
    let key = site.key(&id);
    for (name, args) in [("get", &[][..]), ("schedule", &["x", "EX", "3600"])] {
        let told = site.refused(name, &key, args).await;
        assert!(told.starts_with("RESHARDING"), "{told}");
        assert!(told.contains("run `keyfall get`"), "{told}");
    }
    assert!(site.ledgers("due").await.is_empty(), "nothing was written");
    // The remedy of the error: a client looks at the kind, and then all ledgers have the newest
    // layout.
    assert!(site.client.get(&key).await.unwrap().is_none());
    assert_eq!(site.placed(&id, &["x", "EX", "3600"]).await.0, "created");
    assert_eq!(site.client.shards(&kind).await.unwrap(), (4, None));
    assert!(site.client.get(&key).await.unwrap().is_some());
    site.assert_balanced().await;
}
