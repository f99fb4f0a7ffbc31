//! Jobs that functions store run, are seen, cancelled and paused by clients and workers.

use futures_util::StreamExt;
use keyfall::{Cancelled, Outcome, Router};

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
