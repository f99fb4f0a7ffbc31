//! Jobs that functions store run, are seen, cancelled and paused by clients and workers.

use std::time::Duration;

use futures_util::StreamExt;
use keyfall::{ArchiveTerms, Cancelled, CopyTerms, GroupBy, Limit, Outcome, Router};

use super::site;
use crate::monitor::{Monitor, beats_until_the_last_claim};
use crate::runs::{PATIENCE, Runs, recorder};
use crate::site::{HOUR, Site};

#[tokio::test]
async fn functions_and_clients_see_run_and_cancel_the_same_jobs() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (log, mut runs) = recorder();
    let handler = log.until_stopped(|| Outcome::retry("told to stop"));
    let worker = site.serve(
        Router::new()
            .route(&site.pattern(), log.done())
            .route("fcall:it:long:{id}", handler),
    );
    worker.ready().await;
    site.placed("runs", &["\u{0}\u{1}binary", "PX", "200"])
        .await;
    let job = runs.next().await;
    assert_eq!((job.key().id(), job.attempt()), ("runs", 1));
    assert_eq!(&job.payload()[..], b"\0\x01binary");
    site.placed("ours", &["", "EX", "3600"]).await;
    let cancelled = site.client.cancel(site.key("ours")).await.unwrap();
    assert_eq!(cancelled, Cancelled::Cancelled);
    let call = site.client.schedule(site.key("theirs"), "").after(HOUR);
    call.await.unwrap();
    let word: String = site.fcall("cancel", "theirs", &[]).await;
    assert_eq!(word, "cancelled");
    let word: String = site.fcall("cancel", "theirs", &[]).await;
    assert_eq!(word, "absent");
    // A run is told to stop, and the job is not tried again.
    site.client.schedule("fcall:it:long:1", "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "1");
    let word = site.try_fcall("cancel", "fcall:it:long:1", &[]).await;
    let word: String = redis::from_redis_value(word.unwrap()).unwrap();
    assert_eq!(word, "running");
    crate::runs::eventually("it has stopped", async || {
        let stats = site.client.stats("fcall:it:long").await.unwrap();
        (stats.leased == 0).then(|| assert_eq!((stats.cancelled, stats.pending), (1, 0)))
    })
    .await;
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    let told = site.client.story(site.key("ours")).await.unwrap();
    assert!(format!("{told:?}").contains("fcall"), "{told:?}");
    site.assert_balanced().await;
}

impl Site {
    /// The placed job runs because its worker heard of it, and not because of a sweep, which comes
    /// every 20 or 30 seconds.
    pub(super) async fn is_heard(&self, commands: &mut Monitor, runs: &mut Runs, id: &str) {
        assert_eq!(runs.next().await.key().id(), id);
        let beats = beats_until_the_last_claim(&commands.so_far(self).await);
        assert!(beats < 12, "{beats} beats");
    }
}

#[tokio::test]
async fn functions_wake_a_waiting_worker() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route("fcall:*:*:{id}", log.done()));
    worker.ready().await;
    let mut wakes = wakes(&site.url).await;
    // A job of an unknown kind, due now: no event announces it.
    let mut commands = Monitor::of(&site.url).await;
    site.placed("new", &["", "PX", "0"]).await;
    site.is_heard(&mut commands, &mut runs, "new").await;
    site.placed("late", &["", "EX", "3600"]).await;
    site.placed("soon", &["", "PX", "300"]).await;
    site.is_heard(&mut commands, &mut runs, "soon").await;
    site.fcall::<String>("cancel", "late", &[]).await;
    for expected in [
        "kind fcall:it:job".to_owned(),
        "now fcall:it:job/0 new".to_owned(),
        "due fcall:it:job/0".to_owned(),
        "due fcall:it:job/0".to_owned(),
    ] {
        let heard = tokio::time::timeout(PATIENCE, async {
            loop {
                let message = wakes.on_message().next().await.unwrap();
                let text: String = message.get_payload().unwrap();
                // Other programs publish there, too.
                if ["kind", "now", "due"].contains(&text.split(' ').next().unwrap()) {
                    break text;
                }
            }
        });
        let heard = heard.await.unwrap_or_else(|_| panic!("never {expected}"));
        assert!(heard.starts_with(&expected), "{heard}, not {expected}");
    }
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

/// The messages on the wake channel from now on.
async fn wakes(url: &str) -> redis::aio::PubSub {
    let client = redis::Client::open(url).unwrap();
    let mut wakes = client.get_async_pubsub().await.unwrap();
    wakes.subscribe("keyfall:wake:0").await.unwrap();
    wakes
}

#[tokio::test]
async fn a_kind_that_functions_begin_obeys_the_pause_rules() {
    let Some((_server, site)) = site().await else {
        return;
    };
    site.client.prefix("fcall:it:").pause().await.unwrap();
    site.client.prefix("other:").pause().await.unwrap();
    site.placed("1", &["", "PX", "0"]).await;
    assert!(site.stats().await.paused);
    let free = "fcall:free:job:1";
    site.try_fcall("schedule", free, &["", "PX", "0"])
        .await
        .unwrap();
    assert!(!site.client.stats("fcall:free:job").await.unwrap().paused);
    // A kind that was resumed by name stays so.
    site.client.prefix("fcall:it:job:").resume().await.unwrap();
    site.placed("2", &["", "PX", "0"]).await;
    assert!(!site.stats().await.paused);
    site.assert_balanced().await;
}

/// The client that began the ledger has not listed its kind yet.
#[tokio::test]
async fn every_function_lists_an_unlisted_kind() {
    let Some((_server, site)) = site().await else {
        return;
    };
    site.placed("there", &["", "EX", "3600"]).await;
    let calls = format!("keyfall:{{{}/0}}:calls", site.kind());
    for words in [["", "EX", "7200", "XX"], ["", "EX", "7200", "NX"]] {
        let _: u64 = site.command(&["HDEL", "keyfall:kinds", &site.kind()]).await;
        let _: u64 = site.command(&["HSET", &calls, "unlisted", "1"]).await;
        let _: redis::Value = site.fcall("schedule", "there", &words).await;
        let kinds: Vec<String> = site.command(&["HKEYS", "keyfall:kinds"]).await;
        assert_eq!(kinds, [site.kind()], "{words:?}");
        let mark: Option<String> = site.command(&["HGET", &calls, "unlisted"]).await;
        assert_eq!(mark, None, "{words:?}");
    }
    site.client.cancel(site.key("there")).await.unwrap();
    site.assert_balanced().await;
}

/// The rules in the ledger of a kind; of its limit, without the time up to which starts are used, and
/// without all other times.
async fn rules(site: &Site, kind: &str) -> Vec<Option<String>> {
    let is_time = |word: &str| word.len() >= 13 && word.bytes().all(|it| it.is_ascii_digit());
    let calls = format!("keyfall:{{{kind}/0}}:calls");
    let fields = ["HMGET", &calls, "paused", "limit", "archive", "copy"];
    let mut rules: Vec<Option<String>> = site.command(&fields).await;
    if let Some(limit) = &mut rules[1] {
        let words = limit.split(' ').skip(1).filter(|word| !is_time(word));
        *limit = words.collect::<Vec<_>>().join(" ");
    }
    rules
}

/// The first job of a kind can come by a function as well as from a client.
#[tokio::test]
async fn the_rules_of_a_kind_hold_from_its_first_job_on() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let client = &site.client;
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let groups = Limit::new()
        .per(GroupBy::header("tenant of"))
        .rate(7, minute);
    let groups = groups
        .burst(3)
        .weight("acme & co", 2.5)
        .total_concurrency(9);
    for (scope, limit) in [
        ("fcall:rate:a", Limit::new().rate(3, second).burst(2)),
        ("fcall:rate:b", Limit::new().rate(3, second).burst(2)),
        ("fcall:groups:a", groups.clone()),
        ("fcall:groups:b", groups.clone()),
        ("fcall:all:", Limit::new().concurrency(4)),
        ("fcall:rate:", Limit::new().concurrency(8)),
        ("fcall:", groups),
    ] {
        client
            .limit(scope, limit)
            .by("anna of nights")
            .await
            .unwrap();
    }
    let terms = |months| ArchiveTerms::new().payload(100).keep_months(months);
    for (prefix, months) in [("fcall:", 9), ("fcall:rate:", 3), ("fcall:groups:", 3)] {
        client.prefix(prefix).archive(terms(months)).await.unwrap();
    }
    client.prefix("fcall:groups:").stop_archive().await.unwrap();
    let all = || client.prefix("fcall:all:");
    all().copy(CopyTerms::new()).await.unwrap();
    all().pause().await.unwrap();
    for module in ["rate", "groups", "all", "none"] {
        let [by_function, by_client] = ["a", "b"].map(|biz| format!("fcall:{module}:{biz}"));
        site.try_fcall("schedule", &format!("{by_function}:1"), &["", "EX", "900"])
            .await
            .unwrap();
        let call = client.schedule(format!("{by_client}:1"), "").after(HOUR);
        call.await.unwrap();
        let told = rules(&site, &by_function).await;
        assert_eq!(told, rules(&site, &by_client).await, "{module}");
        assert!(told[1].is_some() && told[2].is_some(), "{module}: {told:?}");
        assert_eq!(told[3].is_some(), module == "all", "{told:?}");
    }
}
