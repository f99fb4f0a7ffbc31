//! The flags by which Redis announces changes of keys: removed, set again, and refused.

use keyfall::embedded::Embedded;
use keyfall::{Handler, MissingKey, Router};

use super::Adopting;
use crate::log::Log;
use crate::runs::{eventually, recorder};
use crate::site::{Running, Site};

/// The flags that an adopting worker needs.
const WANTED: &str = "ExKg$";

async fn set_flags(site: &Site, flags: &str) {
    let args = ["CONFIG", "SET", "notify-keyspace-events", flags];
    let () = site.command(&args).await;
}

/// Waits until Redis announces all changes.
async fn announced(site: &Site) {
    eventually("flags are merged", async || {
        let args = ["CONFIG", "GET", "notify-keyspace-events"];
        let (_, flags): (String, String) = site.command(&args).await;
        WANTED
            .chars()
            .all(|flag| flags.contains(flag))
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn removed_flags_are_noticed_and_changes_meanwhile_count() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-taken").await;
    let it = Adopting::at(site, |log| log.done().into_route()).await;
    for (round, flags) in ["", "Ex", "ExK$", "ExKg"].into_iter().enumerate() {
        let (before, after) = (format!("before-{round}"), format!("after-{round}"));
        it.does(&before, "SET v EX 3600").await;
        it.becomes(&before, Some(("v", 3600))).await;
        // The worker does not hear these commands, whichever flag is missing: only the flags of
        // both announce them.
        set_flags(&it.site, flags).await;
        it.does(&before, "PERSIST").await;
        it.does(&after, "SET v EX 3600").await;
        it.becomes(&after, Some(("v", 3600))).await;
        it.becomes(&before, None).await;
        announced(&it.site).await;
    }
    it.ends().await;
}

/// A missing key cancels its job only if no worker heard of its end.
#[tokio::test]
async fn jobs_that_fall_due_without_flags_are_treated_as_in_a_gap() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-flags-gap").await;
    let mut it = Adopting::with(site, MissingKey::Cancel, |log| log.done().into_route()).await;
    it.does("lost", "SET v EX 3600").await;
    it.becomes("lost", Some(("v", 3600))).await;
    set_flags(&it.site, "Ex").await;
    it.does("lost", "DEL").await;
    announced(&it.site).await;
    it.becomes("lost", None).await;
    it.does("later", "SET v EX 900").await;
    it.expires("later", "v").await;
    assert_eq!(it.runs.next().await.key().id(), "later");
    let stats = it.site.all_ended().await;
    assert_eq!((stats.cancelled, stats.done), (1, 1), "{stats:?}");
    it.ends().await;
}

/// For some seconds no worker notices that flags are missing.
#[tokio::test]
async fn a_key_deleted_while_events_are_off_does_not_run() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-unannounced").await;
    let mut it = Adopting::with(site, MissingKey::Cancel, |log| log.done().into_route()).await;
    for id in ["deleted", "left"] {
        it.does(id, "SET v PX 3000").await;
        it.becomes(id, Some(("v", 3))).await;
    }
    set_flags(&it.site, "Ex").await;
    it.does("deleted", "DEL").await;
    it.does("left", "EXPIRE 3600").await;
    it.becomes("deleted", None).await;
    announced(&it.site).await;
    // The worker hears that this key expires.
    it.becomes("left", Some(("v", 3600))).await;
    it.does("left", "PEXPIRE 100").await;
    assert_eq!(it.runs.next().await.key().id(), "left");
    let stats = it.site.all_ended().await;
    assert_eq!((stats.cancelled, stats.done), (1, 1), "{stats:?}");
    it.ends().await;
}

/// The program that sets the flags last may have read them first.
#[tokio::test]
async fn flags_hold_in_any_order_of_merging() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-orders").await;
    // Another program has read "" before, and sets its own flags afterwards.
    set_flags(&site, "").await;
    let it = Adopting::at(site, |log| log.done().into_route()).await;
    set_flags(&it.site, "Ex").await;
    announced(&it.site).await;
    // Now many workers set their flags at once after another program.
    set_flags(&it.site, "").await;
    let mut others = Vec::new();
    for number in 0..4 {
        let (log, _) = recorder();
        let pattern = format!("{}:it:other{number}:{{id}}", it.site.app);
        let route = log.done().into_route();
        let route = match number % 2 {
            0 => route.adopt(MissingKey::Run),
            _ => route,
        };
        others.push(it.site.serve(Router::new().route(&pattern, route)));
    }
    announced(&it.site).await;
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    for other in others {
        other.stop().await;
    }
    it.ends().await;
}

#[tokio::test]
async fn a_user_without_config_set_searches_and_logs_the_remedy_once() {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), "adopt-refused").await;
    let rule = "on >word ~adopt-refused:* ~keyfall:* resetchannels &keyfall:* \
        &__keyevent@0__:expired &__keyspace@0__:adopt-refused:it:job:* +@all -config|set";
    // Before 7.0 a rule can only allow a part of a command.
    let old = rule.replace("-config|set", "-config +config|get");
    let mut set = false;
    for rule in [rule, &old] {
        let mut acl = redis::cmd("ACL");
        acl.arg("SETUSER").arg("worker").arg("reset");
        acl.arg(rule.split_whitespace().collect::<Vec<_>>());
        set = set || acl.exec_async(&mut admin.redis()).await.is_ok();
    }
    assert!(set);
    set_flags(&admin, "Ex").await;

    let log = Log::read();
    let url = format!("{}?user=worker&pass=word", server.url());
    let site = Site::at(&url, "adopt-refused").await;
    let (log_of_runs, runs) = recorder();
    let route = log_of_runs.done().into_route().adopt(MissingKey::Run);
    let worker = site.worker(Router::new().route(&site.pattern(), route));
    let worker = Running::start(worker.allow_unannounced(true));
    worker.ready().await;
    let mut it = Adopting { site, runs, worker };
    let cut: u32 = admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    // One subscription for expired keys, and one for changes of keys.
    assert_eq!(cut, 2);
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    it.does("k", "SET w EX 3600").await;
    // Only the search of a restarted worker finds it.
    it.becomes("k", Some(("w", 3600))).await;
    let warnings = log.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for said in ["changes of plain keys", "`notify-keyspace-events ExKg$`"] {
        assert!(warnings[0].contains(said), "{warnings:?}");
    }
    // The administrator sets the flags.
    set_flags(&admin, WANTED).await;
    eventually("it is told", async || {
        (!log.with("Redis announces changes of keys now").is_empty()).then_some(())
    })
    .await;
    it.does("k", "PEXPIRE 900").await;
    let job = it.runs.next().await;
    assert_eq!(&job.payload()[..], b"w");
    assert_eq!(log.warnings().len(), 1);
    it.ends().await;
}

#[tokio::test]
async fn a_user_without_config_get_is_told_the_flags_to_set() {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), "adopt-unseen").await;
    let rule = "on >word ~adopt-unseen:* ~keyfall:* resetchannels &keyfall:* \
        &__keyevent@0__:expired &__keyspace@0__:adopt-unseen:it:job:* +@all -config";
    let words = ["ACL", "SETUSER", "worker"].into_iter();
    let words: Vec<&str> = words.chain(rule.split_whitespace()).collect();
    let () = admin.command(&words).await;
    set_flags(&admin, WANTED).await;
    let log = Log::read();
    let url = format!("{}?user=worker&pass=word", server.url());
    let site = Site::at(&url, "adopt-unseen").await;
    let it = Adopting::at(site, |log| log.done().into_route()).await;
    it.does("k", "SET v EX 900").await;
    it.becomes("k", Some(("v", 900))).await;
    assert_eq!(log.warnings(), [""; 0]);
    assert_eq!(log.with("has `ExKg$`").len(), 1);
    it.ends().await;
}
