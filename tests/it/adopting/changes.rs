//! The effect of each change of a key on its job.

use keyfall::{Handler, Outcome, RetryPolicy};

use super::Adopting;
use crate::runs::{Gate, eventually};
use crate::site::{Site, ms};

#[tokio::test]
async fn a_key_with_an_expiry_runs_once_when_it_is_due() {
    let mut it = Adopting::new("adopt-set").await;
    for (id, command) in [
        ("ex", "SET v EX 5"),
        ("px", "SET v PX 5000"),
        ("setex", "SETEX 5 v"),
    ] {
        it.does(id, command).await;
    }
    let mut jobs = it.runs.take(3).await;
    jobs.sort_by_key(|job| job.key().id().to_owned());
    for (job, id) in jobs.iter().zip(["ex", "px", "setex"]) {
        assert_eq!((job.key().id(), &job.payload()[..]), (id, &b"v"[..]));
        assert_eq!(job.attempt(), 1);
    }
    it.site.all_ended().await;
    it.ends().await;
}

#[tokio::test]
async fn each_change_of_a_key_changes_its_job() {
    let it = Adopting::new("adopt-change").await;
    for (command, job) in [
        ("SET v EX 3600", Some(("v", 3600))),
        ("EXPIRE 7200", Some(("v", 7200))),
        ("PEXPIRE 1800000", Some(("v", 1800))),
        ("SET w KEEPTTL", Some(("w", 1800))),
        ("APPEND x", Some(("wx", 1800))),
        ("SET y EX 900", Some(("y", 900))),
        ("GETEX EX 600", Some(("y", 600))),
        ("PERSIST", None),
        ("EXPIRE 900", Some(("y", 900))),
        ("SET z", None),
        ("EXPIRE 900", Some(("z", 900))),
        ("DEL", None),
        ("SETEX 60 a", Some(("a", 60))),
        ("UNLINK", None),
    ] {
        it.does("k", command).await;
        it.becomes("k", job).await;
    }
    let stats = it.site.stats().await;
    assert_eq!((stats.cancelled, stats.done), (4, 0), "{stats:?}");
    it.ends().await;
}

#[tokio::test]
async fn a_renamed_copied_or_restored_key_counts_as_set() {
    let it = Adopting::new("adopt-moves").await;
    let key = |id: &str| it.site.key(id);
    let foreign = format!("{}-elsewhere", it.site.app);
    for (foreign_time, job) in [(Some("900"), Some(("new", 900))), (None, None)] {
        for (id, verb) in [
            ("renamed", "RENAME"),
            ("copied", "COPY"),
            ("dumped", "DUMP"),
        ] {
            it.does(id, "SET old EX 3600").await;
            it.becomes(id, Some(("old", 3600))).await;
            let () = it.site.command(&["SET", &foreign, "new"]).await;
            if let Some(seconds) = foreign_time {
                let _: u64 = it.site.command(&["EXPIRE", &foreign, seconds]).await;
            }
            if verb == "DUMP" {
                let dump: Vec<u8> = it.site.command(&["DUMP", &foreign]).await;
                let ms = foreign_time.map_or("0".to_owned(), |seconds| format!("{seconds}000"));
                let mut restore = redis::cmd("RESTORE");
                restore.arg(key(id)).arg(ms).arg(dump).arg("REPLACE");
                let () = restore.query_async(&mut it.site.redis()).await.unwrap();
            } else {
                let (key, replace) = (key(id), ["REPLACE"]);
                let rest = if verb == "COPY" { &replace[..] } else { &[] };
                let words = [&[verb, &foreign, &key], rest].concat();
                let _: redis::Value = it.site.command(&words).await;
            }
            it.becomes(id, job).await;
        }
    }
    // A rename from one adopted name to another moves the job.
    it.does("a", "SET v EX 900").await;
    it.becomes("a", Some(("v", 900))).await;
    let () = it.site.command(&["RENAME", &key("a"), &key("b")]).await;
    it.becomes("a", None).await;
    it.becomes("b", Some(("v", 900))).await;
    let _: u64 = it.site.command(&["MOVE", &key("b"), "1"]).await;
    it.becomes("b", None).await;
    it.ends().await;
}

#[tokio::test]
async fn a_past_expiry_ends_the_job() {
    let mut it = Adopting::new("adopt-past").await;
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    it.does("k", "PEXPIREAT 1000").await;
    let stats = it.site.all_ended().await;
    // Redis announces that the key was deleted, and Valkey that it expired.
    let ran = it.runs.rest().len() as u64;
    assert_eq!((stats.done, stats.cancelled), (ran, 1 - ran));
    it.ends().await;
}

#[tokio::test]
async fn a_retry_leaves_the_key_of_the_job_free() {
    let site = Site::new("adopt-retry").await;
    let mut it = Adopting::at(site, |log| {
        let handler = log.then(|job| match job.attempt() {
            1 | 2 => Outcome::retry("not yet"),
            _ => Outcome::Done,
        });
        handler.retry(RetryPolicy::fixed(ms(300)).unwrap())
    })
    .await;
    it.does("k", "SET v EX 900").await;
    it.expires("k", "v").await;
    for attempt in 1..=3 {
        let job = it.runs.next().await;
        assert_eq!((job.attempt(), &job.payload()[..]), (attempt, &b"v"[..]));
        let there: Option<String> = it.site.command(&["GET", &it.site.key("k")]).await;
        assert_eq!(there, None);
    }
    it.site.all_ended().await;
    it.ends().await;
}

#[tokio::test]
async fn a_key_without_a_string_becomes_a_dead_letter_with_the_reason() {
    let it = Adopting::new("adopt-unusable").await;
    it.does("k", "RPUSH v").await;
    it.does("k", "EXPIRE 900").await;
    it.expires("k", "").await;
    let letter = it
        .site
        .reaches(&it.site.key("k"), keyfall::JobState::Dead)
        .await;
    assert_eq!(letter.last_error(), Some("the key held no string: list"));
    it.ends().await;
}

#[tokio::test]
async fn a_heartbeat_runs_only_when_it_falls_silent() {
    let mut it = Adopting::new("adopt-heart").await;
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    for _ in 0..20 {
        it.does("k", "PEXPIRE 2000").await;
        tokio::time::sleep(ms(25)).await;
    }
    let job = it.runs.next().await;
    assert_eq!((job.attempt(), &job.payload()[..]), (1, &b"v"[..]));
    let stats = it.site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (1, 1));
    it.ends().await;
}

#[tokio::test]
async fn keys_without_an_adopting_route_stay_keys() {
    let mut it = Adopting::new("adopt-not").await;
    let other = format!("{}:it:other:1", it.site.app);
    let () = it.site.command(&["SET", &other, "v", "PX", "100"]).await;
    it.does("k", "SET v EX 900").await;
    it.expires("k", "v").await;
    assert_eq!(it.runs.next().await.key().id(), "k");
    it.site.all_ended().await;
    let kinds: Vec<String> = it.site.command(&["HKEYS", "keyfall:kinds"]).await;
    assert!(!kinds.contains(&format!("{}:it:other", it.site.app)));
    it.ends().await;
}

/// A claim would show that no job is due yet, but no worker claims.
#[tokio::test]
async fn a_key_brought_forward_unseen_runs_though_all_slots_are_taken() {
    let site = Site::new("adopt-forward").await;
    let gate = Gate::closed();
    let mut it = Adopting::at(site, |log| log.behind(&gate).concurrency(1)).await;
    it.does("first", "SET v EX 900").await;
    it.expires("first", "v").await;
    assert_eq!(it.runs.next().await.key().id(), "first");
    for id in 0..50 {
        it.does(&id.to_string(), "SET v EX 900").await;
    }
    for id in 0..50 {
        it.becomes(&id.to_string(), Some(("v", 900))).await;
    }
    for id in 0..50 {
        it.does(&id.to_string(), "PEXPIRE 1").await;
    }
    let stats = eventually("all are due", async || {
        let stats = it.site.stats().await;
        // A Redis that is interrupted in the middle of that command takes the time for past, and
        // announces that the key was deleted.
        (stats.overdue + stats.cancelled == 50).then_some(stats)
    })
    .await;
    assert!(stats.overdue > stats.cancelled, "{stats:?}");
    gate.open();
    it.runs.take(stats.overdue as usize).await;
    it.site.all_ended().await;
    it.ends().await;
}

#[tokio::test]
async fn a_value_above_the_limit_of_its_route_becomes_a_dead_letter() {
    let site = Site::new("adopt-limit").await;
    let mut it = Adopting::at(site, |log| log.done().into_route().payload_limit(4)).await;
    it.does("large", "SET 12345 EX 3600").await;
    it.does("small", "SET 1234 EX 3600").await;
    it.becomes("large", Some(("", 3600))).await;
    it.becomes("small", Some(("1234", 3600))).await;
    it.does("large", "PEXPIRE 100").await;
    it.does("small", "PEXPIRE 100").await;
    assert_eq!(it.runs.next().await.key().id(), "small");
    let letter = eventually("it is a dead letter", async || {
        it.site
            .client
            .get(&it.site.key("large"))
            .await
            .unwrap()
            .filter(|job| job.state() == keyfall::JobState::Dead)
    })
    .await;
    let reason = letter.last_error().unwrap();
    assert!(reason.contains("5 bytes, more than 4"), "{reason}");
    it.ends().await;
}
