//! A key of the ledger with a wrong type: the call reports it, and writes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use super::support::{Bench, HOUR, KEPT, PENDING, State, after, bury, soon, suspect, word, words};
use crate::ErrorKind;
use crate::activity::{Activity, Minutes};
use crate::error::{Error, Result};
use crate::keeping::{ArchiveTerms, CopyTerms};
use crate::limit::{Limit, Share};
use crate::shards::Layout;
use crate::store::JobAsIs;
use crate::store::kinds::layout::Expected;
use crate::store::kinds::moving::{Item, Late, MoveBatch};
use crate::store::ledger::limiting::{AllotReply, Look, ShareReply};
use crate::store::ledger::mending::{Mend, Wrong};
use crate::store::ledger::script::{self, Script};
use crate::store::{
    Amendment, Answered, EndsRead, Extent, Found, KeptAs, Lane, PARTS, Part, Razed, SeriesCall,
    Sought, Verb, Why,
};
use crate::time::UnixMs;

use State::*;

/// A ledger with the jobs and letters that make every script use every key that it takes.
struct Scene {
    bench: Bench,
    /// The token of the running job.
    token: String,
    amendments: Vec<Amendment>,
    series: SeriesCall,
}

impl Scene {
    async fn set() -> Self {
        let bench = Bench::new().await;
        for state in [Pending, Due, Lapsed, LapsedNext, Dead] {
            bench.bring(&state.id(), state).await;
        }
        bench.bring("Second", Dead).await;
        let token = bench.bring("LeasedNext", LeasedNext).await;
        bench.bring("Amended", Leased).await;
        let mut amendments = Vec::new();
        for id in ["Pending", "LeasedNext", "Amended"] {
            amendments.push(bench.amendment(id, after(HOUR)).await);
        }
        let mut jobs = vec![bench.of_series("Pending", Some(after(HOUR))).await];
        jobs.push(bench.of_series("Planned", Some(after(HOUR))).await);
        let key = bench.key("Pending");
        Scene {
            bench,
            token,
            amendments,
            series: SeriesCall { key, jobs },
        }
    }

    /// Calls a script so that it uses all of its keys. Returns its answers as words.
    async fn call(&self, script: &str) -> Result<Vec<&'static str>> {
        let (bench, ledger) = (&self.bench, &self.bench.ledger);
        let lane = &mut Lane::new();
        let said = |answers: Vec<Answered>| words(&answers);
        match script {
            "schedule" => {
                let ids = ["Pending", "LeasedNext", "Absent"];
                let items = ids.map(|id| bench.placement(id, after(HOUR)));
                ledger.schedule(lane, &items, soon()).await.map(said)
            }
            "reschedule" => {
                let ids = ["Pending", "LeasedNext"];
                let items = ids.map(|id| bench.change(id, after(HOUR), "postponed"));
                ledger.reschedule(lane, &items, soon()).await.map(said)
            }
            "update" => {
                let items = ["Pending", "LeasedNext"].map(|id| bench.update(id, b"new"));
                ledger.update(lane, &items, soon()).await.map(said)
            }
            "plan" => {
                let items = std::slice::from_ref(&self.series);
                ledger.plan(lane, items, soon()).await.map(said)
            }
            "amend" => ledger.amend(lane, &self.amendments, soon()).await.map(said),
            "cancel" => {
                let items = ["Pending", "LeasedNext"].map(|id| bench.key(id));
                ledger.cancel(lane, &items, soon()).await.map(said)
            }
            "claim" => {
                let reply = bench.try_claim(lane, &["Due"], 5, HOUR).await;
                reply.map(|reply| words(&reply.answers))
            }
            "reclaim" => {
                let reply = bench.try_reclaim(lane, &["Lapsed", "LapsedNext"]).await;
                reply.map(|reply| words(&reply.answers))
            }
            "renew" => {
                let leases = [("LeasedNext".to_owned(), self.token.as_str().into())];
                ledger
                    .renew(&leases, Extent::Exactly(HOUR), soon())
                    .await
                    .map(|(answers, _)| words(&answers))
            }
            "settle" => {
                let items = [bench.settlement("LeasedNext", &self.token, bury())];
                let settled = ledger.settle(lane, &items, KEPT, soon()).await;
                settled.map(|(answers, _)| said(answers))
            }
            "requeue" => {
                let items = [bench.revival("Dead", 1, after(HOUR))];
                ledger.requeue(lane, &items, soon()).await.map(said)
            }
            "restore" => {
                let items = [
                    bench.kept("Pending", PENDING, 1),
                    bench.kept("new", PENDING, 1),
                    bench.kept("Dead", KeptAs::Dead, 1),
                ];
                ledger.restore(lane, &items, soon()).await.map(said)
            }
            "discard" => {
                let items = [bench.discard("Second", 2)];
                ledger.discard(lane, &items, soon()).await.map(said)
            }
            "adopt" => {
                let key = bench.key("adopted");
                let _: String = bench.ask(&["SET", key.as_str(), "v", "EX", "3600"]).await;
                let items = [(key, Why::Seen), (bench.key("LeasedNext"), Why::Gone)];
                ledger.adopt(&items, |_| 9, soon()).await.map(said)
            }
            "trim" => {
                let fallen = ledger.trim(KEPT, 9, soon()).await?;
                Ok(vec![if fallen == 0 { "kept" } else { "trimmed" }])
            }
            "letters" => {
                let letters = ledger.letters("Dead", None, 9, soon()).await?;
                Ok(letters.iter().map(|_| "letter").collect())
            }
            "sweep" => {
                let sweep = ledger.sweep(Duration::ZERO, (0, 0), 9, soon()).await;
                sweep.map(|_| vec!["swept"])
            }
            "get" => {
                let mut found = Vec::new();
                for id in ["Pending", "LeasedNext", "Dead"] {
                    found.push(match ledger.get(id, soon()).await? {
                        Found::Absent => "absent",
                        Found::Elsewhere => "elsewhere",
                        Found::Pending { .. } => "pending",
                        Found::Leased { .. } => "leased",
                        Found::Dead { .. } => "dead",
                    });
                }
                Ok(found)
            }
            "list" => {
                let mut found = Vec::new();
                for state in ["pending", "leased", "dead"] {
                    let sought = Sought {
                        records: true,
                        ..Sought::all_of(state, "")
                    };
                    found.push(match ledger.list(&sought, soon()).await?.items.len() {
                        0 => "none",
                        _ => state,
                    });
                }
                Ok(found)
            }
            "scan" => {
                let mut suspects = Vec::new();
                for part in PARTS {
                    let scanned = ledger.scan(part, "0", soon()).await?;
                    suspects.extend(scanned.suspects);
                }
                Ok(suspects.iter().map(|_| "suspect").collect())
            }
            "audit" => {
                let items = ["Pending", "LeasedNext", "Dead:1"];
                let items = items.map(|name| (suspect(name), String::new()));
                let found = ledger.audit(&items, true, soon()).await?;
                Ok(found
                    .iter()
                    .map(|flaw| if flaw.is_some() { "flaw" } else { "sound" })
                    .collect())
            }
            "pause" => ledger
                .pause(lane, None, soon())
                .await
                .map(|()| vec!["paused"]),
            "resume" => ledger
                .resume(lane, None, soon())
                .await
                .map(|()| vec!["resumed"]),
            "limit" => {
                let limited = bench
                    .try_limit(lane, Some(Limit::new().concurrency(99)), 1)
                    .await?;
                Ok(vec![if limited { "limited" } else { "kept" }])
            }
            "hold" => {
                let held = ledger.hold(HOUR, soon()).await?;
                Ok(vec![if held { "held" } else { "absent" }])
            }
            "admit" => {
                let admission = ledger.admit(true, soon()).await?;
                Ok(vec![if admission.is_some() {
                    "limited"
                } else {
                    "free"
                }])
            }
            "share" => {
                let look = Look {
                    epoch: 1,
                    by: "me",
                    rule: UnixMs(7),
                };
                let change = Some((Share::default(), 0));
                let reply = ledger.share(&look, change, soon()).await?;
                Ok(vec![match reply {
                    ShareReply::Absent => "absent",
                    _ => "shared",
                }])
            }
            "allot" => {
                let look = Look {
                    epoch: 1,
                    by: "me",
                    rule: UnixMs(7),
                };
                let reply = ledger.allot(&look, 9, &[], soon()).await?;
                Ok(vec![match reply {
                    AllotReply::Absent => "absent",
                    _ => "shared",
                }])
            }
            "terms" => {
                bench.archive(ArchiveTerms::new()).await?;
                Ok(vec!["told"])
            }
            "copy" => {
                let step = ledger
                    .copy(CopyTerms::new(), (0, 0), 0, None, soon())
                    .await?;
                Ok(vec![if step.noted > 0 { "noted" } else { "nothing" }])
            }
            "changes" => {
                let page = ledger
                    .changes(9, &["Pending", "LeasedNext"], soon())
                    .await?;
                let word = |it: &JobAsIs| if it.job.is_some() { "there" } else { "ended" };
                Ok(page.jobs.iter().map(word).collect())
            }
            "copied" => {
                let read = [("Pending", 7)].into_iter();
                ledger.copied(1, read, soon()).await.map(|()| vec!["kept"])
            }
            "ended" => {
                let page = ledger.ended(9, soon()).await?;
                Ok(page.all().iter().map(|_| "record").collect())
            }
            "archived" => {
                let read = <[EndsRead; 2]>::default();
                ledger.archived(&read, soon()).await.map(|_| vec!["kept"])
            }
            "keep" => ledger.keep(lane, 9, soon()).await.map(|()| vec!["kept"]),
            "story" => {
                let page = ledger.story("Pending", "+", soon()).await?;
                Ok(vec![if page.lines.is_empty() {
                    "nothing"
                } else {
                    "told"
                }])
            }
            "touch" => {
                let reached = ledger.reached(lane, 0.into(), soon()).await?;
                Ok(vec![if reached.is_some() {
                    "present"
                } else {
                    "absent"
                }])
            }
            "stats" => ledger.tally(soon()).await.map(|_| vec!["counted"]),
            "upcoming" => {
                let now = UnixMs(bench.now().await);
                let counted = ledger.upcoming(now, now, HOUR, 3, soon()).await;
                counted.map(|_| vec!["counted"])
            }
            "activity" => {
                let minutes = Minutes::from([(1, Activity::default())]);
                let added = ledger.store.add_activity(ledger.kind(), &minutes, soon());
                added.await.map(|()| vec!["added"])
            }
            "layout" => {
                let (server, calls) = (&ledger.server, &bench.names().calls);
                let nothing = Default::default();
                let set = server.set_layout(
                    calls,
                    "layout",
                    Layout::FIRST,
                    Expected::Anything,
                    &nothing,
                    soon(),
                );
                set.await.map(|_| vec!["told"])
            }
            "start" => {
                let several = Layout::FIRST.to(2).settled();
                let start = ledger.server.start(ledger.kind(), several, soon());
                start.await.map(|layout| {
                    vec![if layout == Layout::FIRST {
                        "kept"
                    } else {
                        "set"
                    }]
                })
            }
            "names" => {
                for part in [Part::Jobs, Part::Letters, Part::Keys] {
                    ledger.names_in(part, "0", soon()).await?;
                }
                Ok(vec!["named"])
            }
            "take" => {
                let names = ["Pending", "Due", "LeasedNext", "Dead"].map(str::to_owned);
                let taken = ledger.take(&names, Late::default(), soon()).await?;
                let (mut reply, _) = taken.expect("it goes by this layout");
                Ok(words(&reply.answers()?))
            }
            "put" => {
                let item = |what: &str, id: &str, number: &str| Item {
                    what: what.to_owned(),
                    id: id.to_owned(),
                    number: number.to_owned(),
                    at: "1".to_owned(),
                    record: b"{}".to_vec(),
                };
                // The number 1 is taken in this ledger, and 7 is not.
                let items = vec![
                    item("job", "moved", ""),
                    item("letter", "Dead", "1"),
                    item("letter", "moved", "7"),
                    item("mark", "moved", ""),
                ];
                let batch = MoveBatch {
                    number: 1,
                    fence: 1,
                    items,
                };
                let items: Vec<&Item> = batch.items.iter().collect();
                let put = ledger.put("elsewhere", &batch, &items, soon());
                put.await.map(|_| vec!["put"])
            }
            "cure" => {
                let wrong = Wrong {
                    place: 0,
                    key: bench.names().calls.clone(),
                    field: Some(b"fence".to_vec()),
                    what: String::new(),
                    mend: Mend::Field {
                        found: b"no number".to_vec(),
                        new: None,
                    },
                };
                ledger.store.mend(&wrong, soon()).await?;
                Ok(vec!["left"])
            }
            "drop" => {
                ledger.drop_batch(1, soon()).await?;
                Ok(vec!["dropped"])
            }
            "idle" => {
                let there = ledger.store.has_any_of(ledger.kind(), soon()).await?;
                Ok(vec![if there { "there" } else { "gone" }])
            }
            "raze" => Ok(vec![match ledger.raze(soon()).await? {
                Razed::Held(_) => "held",
                Razed::Gone | Razed::Stale(_) => "gone",
            }]),
            other => {
                panic!("add a call of {other} to `Scene::call`, one that uses all of its keys")
            }
        }
    }
}

/// Puts a string in the place of a key while `call` runs.
async fn with_damaged<T>(bench: &Bench, key: &str, call: impl AsyncFnOnce() -> T) -> T {
    let aside = format!("{key}:aside");
    let exists = bench.ask::<u64>(&["EXISTS", key]).await == 1;
    if exists {
        let _: String = bench.ask(&["RENAME", key, &aside]).await;
    }
    let _: String = bench.ask(&["SET", key, "not ours"]).await;
    let result = call().await;
    let left: String = bench.ask(&["GET", key]).await;
    assert_eq!(left, "not ours", "{key} was written");
    let _: u64 = bench.ask(&["DEL", key]).await;
    if exists {
        let _: String = bench.ask(&["RENAME", &aside, key]).await;
    }
    result
}

/// The scripts that belong to a ledger, and need the data in its keys.
fn scripts() -> impl Iterator<Item = &'static Script> {
    let all = script::all().into_iter().map(|(script, _)| script);
    all.filter(|script| !["arm", "beat", "found", "aside", "unmark"].contains(&script.name))
}

/// Whether the key is a hint for this script: the history is one, unless the script reads it.
fn is_hint(bench: &Bench, script: &Script, key: &str) -> bool {
    key == bench.names().history && script.name != "story"
}

#[tokio::test]
async fn every_script_refuses_every_key_of_a_wrong_type_and_writes_nothing() {
    let scene = Scene::set().await;
    let bench = &scene.bench;
    let trigger = bench.key("Pending");
    for script in scripts() {
        for key in bench.keys_of(script) {
            // A damaged hint fails no call; other tests check that.
            if key == bench.names().lanes || is_hint(bench, script, key) {
                continue;
            }
            let stored = with_counts(bench).await;
            let error: Error = with_damaged(bench, key, async || scene.call(script.name).await)
                .await
                .expect_err(&format!("{} took {key}", script.name));
            assert_eq!(
                error.kind(),
                ErrorKind::Damaged,
                "{}, {key}: {error}",
                script.name
            );
            assert_eq!(with_counts(bench).await, stored, "{}, {key}", script.name);
            let triggers: u64 = bench.ask(&["EXISTS", trigger.as_str()]).await;
            assert_eq!(triggers, 1, "{}, {key}", script.name);
        }
    }
    // With sound keys, the calls succeed.
    let answers = [
        ("plan", &["planned"][..]),
        ("amend", &["changed", "successor", "succeeds"]),
        ("idle", &["there"]),
        ("raze", &["held"]),
        ("get", &["pending", "leased", "dead"]),
        ("letters", &["letter"]),
        ("sweep", &["swept"]),
        ("stats", &["counted"]),
        ("upcoming", &["counted"]),
        ("activity", &["added"]),
        ("touch", &["absent"]),
        ("list", &["pending", "leased", "dead"]),
        ("scan", &[]),
        ("audit", &["sound", "sound", "sound"]),
        ("pause", &["paused"]),
        ("resume", &["resumed"]),
        ("admit", &["free"]),
        ("hold", &["absent"]),
        ("limit", &["limited"]),
        ("share", &["absent"]),
        ("terms", &["told"]),
        ("copy", &["noted"]),
        ("changes", &["there", "there"]),
        ("copied", &["kept"]),
        ("allot", &["absent"]),
        ("ended", &[]),
        ("archived", &["kept"]),
        ("keep", &["kept"]),
        ("story", &["told"]),
        ("adopt", &["created", "absent"]),
        ("claim", &["claimed"]),
        ("reclaim", &["claimed", "replaced"]),
        ("renew", &["renewed"]),
        ("reschedule", &["moved", "successor"]),
        ("update", &["updated", "successor"]),
        ("schedule", &["replaced", "succeeds", "created"]),
        ("settle", &["buried"]),
        ("cancel", &["cancelled", "cancelled"]),
        ("requeue", &["requeued"]),
        ("discard", &["deleted"]),
        ("trim", &["kept"]),
        ("restore", &["created", "created", "buried"]),
        ("layout", &["told"]),
        ("start", &["kept"]),
        ("names", &["named"]),
        ("take", &["taken", "leased", "taken", "taken"]),
        ("put", &["put"]),
        ("cure", &["left"]),
        ("drop", &["dropped"]),
    ];
    let tried: BTreeSet<&str> = answers.iter().map(|(script, _)| *script).collect();
    let all: BTreeSet<&str> = scripts().map(|script| script.name).collect();
    let differing: Vec<_> = tried.symmetric_difference(&all).collect();
    assert!(
        differing.is_empty(),
        "`answers` has the answers of each script with sound keys: {differing:?}"
    );
    for (script, found) in answers {
        assert_eq!(scene.call(script).await.unwrap(), found, "{script}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn damaged_lanes_and_histories_stop_no_call() {
    for script in scripts() {
        let scene = Scene::set().await;
        let bench = &scene.bench;
        let names = bench.names();
        for hint in [names.lanes.clone(), names.history.clone()] {
            if script.name == "story" && hint == names.history {
                continue;
            }
            let found = with_damaged(bench, &hint, async || scene.call(script.name).await).await;
            assert!(found.is_ok(), "{}: {found:?}", script.name);
        }
        bench.balanced().await;
    }
}

#[tokio::test]
async fn a_damaged_counter_stops_the_call_before_it_writes() {
    let scene = Scene::set().await;
    let bench = &scene.bench;
    for (script, counter) in [
        ("schedule", "accepted"),
        ("plan", "accepted"),
        ("adopt", "accepted"),
        ("cancel", "cancelled"),
        ("reclaim", "lapsed"),
        ("reclaim", "replaced"),
        ("settle", "buried"),
        ("settle", "trimmed"),
        ("trim", "trimmed"),
        ("requeue", "requeued"),
        ("restore", "accepted"),
        ("restore", "buried"),
        ("discard", "deleted"),
        ("take", "moved_out"),
        ("take", "letters_out"),
        ("put", "moved_in"),
        ("put", "letters_in"),
        ("put", "skipped"),
    ] {
        let stats = bench.names().stats.clone();
        let before: Option<String> = bench.ask(&["HGET", &stats, counter]).await;
        let _: u64 = bench.ask(&["HSET", &stats, counter, "many"]).await;
        let stored = with_counts(bench).await;
        let error = scene.call(script).await.expect_err(script);
        assert_eq!(error.kind(), ErrorKind::Damaged, "{script}: {error}");
        // No other counter was raised, either.
        assert_eq!(with_counts(bench).await, stored, "{script}");
        let before = before.unwrap_or("0".into());
        let _: u64 = bench.ask(&["HSET", &stats, counter, &before]).await;
    }
    bench.balanced().await;
}

/// The stored data, without counters that are 0: a counter that was raised and lowered again stays
/// there as 0.
async fn with_counts(bench: &Bench) -> Vec<(String, String)> {
    let all = bench.snapshot().await.into_iter();
    let is_zero = |(name, value): &(String, String)| name.contains(":stats ") && value == "0";
    all.filter(|stored| !is_zero(stored)).collect()
}

#[tokio::test]
async fn a_settlement_without_a_burial_needs_no_graveyard() {
    let bench = Bench::new().await;
    let job = bench.run("job", HOUR).await;
    let grave = bench.names().grave.clone();
    let settle = async || bench.settle("job", &job.token, Verb::Done).await;
    let answer = with_damaged(&bench, &grave, settle).await;
    assert_eq!(word(answer), "done");
    bench.balanced().await;
}

#[tokio::test]
async fn calls_that_return_no_record_check_the_records_too() {
    let scene = Scene::set().await;
    let (bench, ledger) = (&scene.bench, &scene.bench.ledger);
    let shadow = bench.names().shadow.clone();
    let stored = bench.snapshot().await;
    let items = [bench.settlement("LeasedNext", &scene.token, Verb::Done)];
    let mut lane = Lane::new();
    let settle = async || ledger.settle(&mut lane, &items, KEPT, soon()).await;
    let settled = with_damaged(bench, &shadow, settle).await.unwrap_err();
    let reclaim = async || bench.try_reclaim(&mut Lane::new(), &["LapsedNext"]).await;
    let reclaimed = with_damaged(bench, &shadow, reclaim).await.unwrap_err();
    for error in [settled, reclaimed] {
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    }
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}
