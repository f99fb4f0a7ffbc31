//! Calls on unknown kinds leave no key; and empty kinds are dropped, while producers use them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::future::join_all;
use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Dropped, Durable, Extended, IfPresent, JobState, KeptJob, Lease, NewJob, Outcome,
    Requeued, Rescheduled, Restored, Router, Settled, Updated,
};
use keyfall_testing::proxies::FreezingProxy;
use tokio::time::timeout;

use crate::log::Log;
use crate::runs::{PATIENCE, eventually, recorder};
use crate::site::{Site, patient};

const HOUR: Duration = Duration::from_secs(3600);

impl Site {
    /// The keys of all ledgers of this app, without the keys that expire.
    async fn keys_that_stay(&self) -> Vec<String> {
        let keys: Vec<String> = self.command(&["KEYS", &format!("*{}:*", self.app)]).await;
        let mut stay = Vec::new();
        for key in keys {
            if self.command::<i64>(&["PTTL", &key]).await == -1 {
                stay.push(key);
            }
        }
        stay
    }

    /// The fields of this app in the list of kinds.
    async fn kinds_listed(&self) -> Vec<String> {
        let mut kinds: Vec<String> = self.command(&["HKEYS", "keyfall:kinds"]).await;
        kinds.retain(|kind| kind.contains(&format!("{}:", self.app)));
        kinds
    }

    async fn drops(&self) -> Dropped {
        self.client.drop_kind(&self.kind()).await.unwrap()
    }
}

#[tokio::test]
async fn calls_on_unknown_kinds_leave_no_key() {
    let site = Site::new("drop-never").await;
    let client = &site.client;
    let key = |kind: usize| format!("{}:it:never{kind}:1", site.app);
    for _ in 0..2 {
        assert_eq!(client.cancel(key(0)).await.unwrap(), Cancelled::Absent);
        let durably = client.cancel(key(1)).durable(Durable::replicas(0)).await;
        assert_eq!(durably.unwrap().0, Cancelled::Absent);
        let moved = client.reschedule(key(2)).after(HOUR).await;
        assert_eq!(moved.unwrap(), Rescheduled::Absent);
        assert_eq!(client.fire_now(key(3)).await.unwrap(), Rescheduled::Absent);
        let updated = client.update_payload(key(4), &1).await;
        assert_eq!(updated.unwrap(), Updated::Absent);
        assert!(client.get(key(5)).await.unwrap().is_none());
        assert_eq!(client.requeue(key(6)).await.unwrap(), Requeued::Absent);
        let requeued = client.requeue(key(7)).letter(1).await;
        assert_eq!(requeued.unwrap(), Requeued::Absent);
        let deleted = client.delete_dead_letter(key(8)).letter(1).await;
        assert!(!deleted.unwrap());
        let placed = client.schedule(key(9), &1).if_present().await.unwrap();
        assert_eq!(placed, IfPresent::Absent);
        let many = (10..14).map(|kind| NewJob::new(key(kind), &1).if_present());
        for placed in client.schedule_many(many).await {
            assert!(placed.unwrap().is_none());
        }
        let stats = client.stats(&format!("{}:it:never14", site.app)).await;
        assert_eq!(stats.unwrap().accepted, 0);
        assert!(client.happenings(key(15)).await.unwrap().is_empty());
        let lease = format!("{}@0123456789abcdef01234567-1", key(16));
        let lease: Lease = lease.parse().unwrap();
        let settled = client.settle(&lease, Outcome::Done).await.unwrap();
        assert_eq!(settled, Settled::Gone);
        let extended = client.extend(&lease, HOUR).await.unwrap();
        assert_eq!(extended, Extended::Gone);
    }
    let all: Vec<String> = site.command(&["KEYS", "*drop-never*"]).await;
    assert!(all.is_empty(), "{all:?}");
    assert!(
        site.kinds_listed().await.is_empty(),
        "{:?}",
        site.kinds_listed().await
    );
}

#[tokio::test]
async fn a_kind_in_use_is_not_dropped() {
    let site = Site::new("drop-held").await;
    assert_eq!(site.drops().await, Dropped::Absent);
    let held = async |what: &str| match site.drops().await {
        Dropped::InUse(why) => assert!(why.contains(what), "{why}"),
        other => panic!("{other:?}, though {what}"),
    };
    let key = site.key("1");
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    held("1 pending").await;
    site.client.reschedule(&key).await.unwrap();
    let (note, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), note.then(|_| Outcome::bury("no")));
    let worker = site.serve(router);
    runs.next().await;
    site.reaches(&key, JobState::Dead).await;
    worker.stop().await;
    held("1 dead").await;
    site.client.delete_dead_letter(&key).await.unwrap();
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    site.begin_to_reshard_slowly(4).await;
    held("resharded").await;
    site.client.reshard(&site.kind(), 4).await.unwrap();
    held("1 pending").await;
    assert_eq!(site.client.shards(&site.kind()).await.unwrap(), (4, None));
    site.client.cancel(&key).await.unwrap();
    assert_eq!(site.drops().await, Dropped::Dropped);
    assert_eq!(site.drops().await, Dropped::Absent);
    let left = site.keys_that_stay().await;
    assert!(
        left.is_empty() && site.kinds_listed().await.is_empty(),
        "{left:?}"
    );
}

impl Site {
    /// Leaves the kind in the state after a client died at the start of a reshard.
    async fn begin_to_reshard_slowly(&self, shards: u16) {
        let moving = format!("{shards} 1 1");
        let kind = self.kind();
        let _: u64 = self
            .command(&["HSET", "keyfall:kinds", &kind, &moving])
            .await;
    }
}

#[tokio::test]
async fn a_kind_with_live_adopted_keys_is_not_dropped() {
    for shards in [1, 3] {
        let site = Site::new(&format!("drop-adopted-{shards}")).await;
        let (key, kind) = (site.key(1), site.kind());
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
        site.client.reshard(&kind, shards).await.unwrap();
        site.client.cancel(&key).await.unwrap();
        let adopted = format!("keyfall:{{{kind}/0}}:adopted");
        let _: u64 = site
            .command(&["ZADD", &adopted, "99999999999999", "2"])
            .await;
        match site.drops().await {
            Dropped::InUse(why) => assert!(why.contains("still to expire"), "{why}"),
            other => panic!("{other:?}"),
        }
        // The kind has no mark either.
        assert_eq!(site.kinds_listed().await, [&*kind]);
        let layout = site.client.shards(&kind).await.unwrap();
        assert_eq!(layout, (shards, None));
    }
}

#[tokio::test]
async fn an_unlisted_kind_is_dropped_with_its_keys() {
    let site = Site::new("drop-lost").await;
    let (key, kind) = (site.key(1), site.kind());
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let _: u64 = site.command(&["HDEL", "keyfall:kinds", &kind]).await;
    assert_eq!(site.drops().await, Dropped::Dropped);
    assert!(site.keys_that_stay().await.is_empty());
    assert!(site.kinds_listed().await.is_empty());
}

/// The client that schedules the first job of a kind lists the kind; this client dies before it.
#[tokio::test]
async fn a_job_scheduled_between_the_steps_of_a_drop_is_found() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "drop-between").await;
    let (key, kind) = (site.key(1), site.kind());
    // In the first round the server learns the scripts.
    for is_first in [true, false] {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
        site.client.cancel(&key).await.unwrap();
        if is_first {
            assert_eq!(site.drops().await, Dropped::Dropped);
        }
    }
    let client = patient(&proxy.url).await;
    // The first call on all keys of the ledger removes it.
    proxy.freeze_after("}:leaving");
    let comes = async {
        eventually("the ledger is removed", async || {
            let stats = format!("keyfall:{{{kind}/0}}:stats");
            let there: u64 = site.command(&["EXISTS", &stats]).await;
            (there == 0).then_some(())
        })
        .await;
        let field = format!("={kind}");
        let mark: String = site.command(&["HGET", "keyfall:kinds", &field]).await;
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
        let as_before = ["HSET", "keyfall:kinds", &field, &mark];
        let _: u64 = site.command(&as_before).await;
        proxy.thaw();
    };
    let (dropped, ()) = tokio::join!(client.drop_kind(&kind), comes);
    assert_eq!(dropped.unwrap(), Dropped::Dropped);
    assert_eq!(site.kinds_listed().await, [&*kind]);
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_dropped_kind_of_many_shards_leaves_no_key() {
    let site = Site::new("drop-shards").await;
    let stale = patient(&site.url).await;
    for shards in [8, 2, 5] {
        for key in site.keys(40) {
            site.client.schedule(&key, &1).after(HOUR).await.unwrap();
        }
        site.client.reshard(&site.kind(), shards).await.unwrap();
        for key in site.keys(40) {
            assert_eq!(stale.cancel(&key).await.unwrap(), Cancelled::Cancelled);
        }
    }
    assert_eq!(site.drops().await, Dropped::Dropped);
    let left = site.keys_that_stay().await;
    assert!(
        left.is_empty() && site.kinds_listed().await.is_empty(),
        "{left:?}"
    );
    // A client with the old shards finds the current one.
    let other = patient(&site.url).await;
    for (at, key) in site.keys(20).enumerate() {
        let (one, two) = match at % 2 {
            0 => (&stale, &other),
            _ => (&other, &stale),
        };
        one.schedule(&key, &1).after(HOUR).await.unwrap();
        assert_eq!(
            two.cancel(&key).await.unwrap(),
            Cancelled::Cancelled,
            "{key}"
        );
    }
    assert_eq!(site.client.shards(&site.kind()).await.unwrap(), (1, None));
    site.assert_balanced().await;
}

#[tokio::test]
async fn wildcard_routes_find_a_kind_that_returns() {
    let site = Site::new("drop-again").await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&format!("{}:*:*:*", site.app), note.done()));
    for round in 0..3 {
        let key = site.key(round);
        site.client.schedule(&key, &1).await.unwrap();
        assert_eq!(runs.next().await.key().as_str(), key);
        eventually("it is dropped", async || {
            (site.drops().await == Dropped::Dropped).then_some(())
        })
        .await;
        assert!(site.kinds_listed().await.is_empty());
    }
    // A worker that starts while the kind does not exist, and hears of it later.
    worker.stop().await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&format!("{}:*:*:*", site.app), note.done()));
    site.client.schedule(site.key("last"), &1).await.unwrap();
    runs.next().await;
    worker.stop().await;
}

#[tokio::test]
async fn a_pause_rule_holds_for_a_kind_that_returns() {
    let site = Site::new("drop-paused").await;
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    site.client.cancel(site.key(1)).await.unwrap();
    let prefix = format!("{}:", site.kind());
    site.client.prefix(&prefix).pause().await.unwrap();
    assert_eq!(site.drops().await, Dropped::Dropped);
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    site.client.schedule(site.key(2), &1).await.unwrap();
    assert!(site.stats().await.paused);
    let late = site.client.schedule(site.key(3), &1).await.unwrap();
    assert!(late.armed);
    assert_eq!(site.stats().await.pending, 2);
    site.client.prefix(&prefix).resume().await.unwrap();
    runs.take(2).await;
    worker.stop().await;
}

/// No worker serves the kind until the lists are read the next time.
#[tokio::test]
async fn a_drop_is_announced() {
    let site = Site::new("drop-told").await;
    let client = redis::Client::open(site.url.as_str()).unwrap();
    let mut told = client.get_async_pubsub().await.unwrap();
    told.subscribe("keyfall:wake:0").await.unwrap();
    site.client
        .schedule(site.key(1), &1)
        .after(HOUR)
        .await
        .unwrap();
    site.client.cancel(site.key(1)).await.unwrap();
    assert_eq!(site.drops().await, Dropped::Dropped);
    let gone = format!("gone {}", site.kind());
    let mut told = told.on_message();
    loop {
        let message = timeout(PATIENCE, told.next()).await.unwrap().unwrap();
        if message.get_payload::<String>().unwrap() == gone {
            break;
        }
    }
}

/// A client that dies before it unlists the kind leaves a mark, which does no harm.
#[tokio::test]
async fn an_interrupted_drop_can_be_repeated() {
    let site = Site::new("drop-broken").await;
    let (key, mark) = (site.key(1), format!("={}", site.kind()));
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let _: u64 = site.command(&["HSET", "keyfall:kinds", &mark, "1"]).await;
    let kinds = site.client.kinds().await.unwrap();
    assert!(!kinds.iter().any(|kind| kind.as_str().starts_with('=')));
    // The ledger is gone, and the kind is still on the list.
    let ledger = format!("keyfall:{{{}/0}}:", site.kind());
    let keys: Vec<String> = site.command(&["KEYS", &format!("{ledger}*")]).await;
    let _: u64 = site.command(&[vec!["DEL".to_owned()], keys].concat()).await;
    assert_eq!(site.drops().await, Dropped::Dropped);
    assert!(site.kinds_listed().await.is_empty());
    // The first client removes the mark.
    let _: u64 = site.command(&["HSET", "keyfall:kinds", &mark, "1"]).await;
    let other = patient(&site.url).await;
    other.schedule(&key, &1).after(HOUR).await.unwrap();
    assert_eq!(site.kinds_listed().await, [site.kind()]);
}

/// A client that took the kind for known also lists it again with a first dead letter.
#[tokio::test]
async fn a_letter_restored_into_a_dropped_kind_is_found() {
    let site = Site::new("drop-restored").await;
    let key = site.key(1);
    site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let other = patient(&site.url).await;
    let dropped = other.drop_kind(&site.kind()).await.unwrap();
    assert_eq!(dropped, Dropped::Dropped);
    let died = SystemTime::now() - HOUR;
    let letter = KeptJob::dead(&key, died, "1");
    let restored = site.client.restore(letter).await.unwrap();
    assert_eq!(restored, Restored::Dead(1));
    assert_eq!(site.kinds_listed().await, [site.kind()]);
    assert!(matches!(site.drops().await, Dropped::InUse(_)));
    let again = KeptJob::dead(&key, died, "1");
    let again = site.client.restore(again).await.unwrap();
    assert_eq!(again, Restored::Present);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_worker_forgets_a_dropped_kind_and_serves_it_when_it_returns() {
    let log = Log::read();
    let site = Site::new("drop-forgotten").await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&format!("{}:*:*:*", site.app), note.done()));
    worker.ready().await;
    for round in 1..=2 {
        site.client.schedule(site.key(round), &1).await.unwrap();
        runs.next().await;
        eventually("it is dropped", async || {
            (site.drops().await == Dropped::Dropped).then_some(())
        })
        .await;
        eventually("it is forgotten", async || {
            let told = log.with("the worker no longer serves them");
            (told.len() == round).then_some(())
        })
        .await;
    }
    worker.stop().await;
}

/// Producers schedule and cancel while another client keeps dropping the kind: acknowledged jobs
/// exist, and their kind is listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_acknowledged_during_drops_are_stored_and_found() {
    let site = Site::new("drop-race").await;
    race(&site, 400).await;
    site.assert_balanced().await;
}

/// Schedules jobs in this number of rounds, with clients that know the kind and clients that do
/// not, while others drop it.
async fn race(site: &Site, rounds: usize) {
    let (done, dropped) = (AtomicBool::new(false), AtomicU64::new(0));
    let kind = &site.kind();
    let drop_it = async || {
        let client = patient(&site.url).await;
        while !done.load(Ordering::Relaxed) {
            match client.drop_kind(kind).await {
                Ok(Dropped::Dropped) => drop(dropped.fetch_add(1, Ordering::Relaxed)),
                Ok(_) => {}
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    let produce = async |who: usize| {
        let mut client = patient(&site.url).await;
        for round in 0..rounds {
            if round % 16 == 15 {
                client = patient(&site.url).await;
            }
            let key = format!("{kind}:{who}-{round}");
            client.schedule(&key, &round).after(HOUR).await.unwrap();
            assert!(client.get(&key).await.unwrap().is_some(), "{key} is gone");
            let kinds = client.kinds().await.unwrap();
            assert!(
                kinds.iter().any(|it| it.as_str() == kind),
                "{key} is hidden"
            );
            let none = client.cancel(format!("{kind}:none-{who}")).await.unwrap();
            assert_eq!(none, Cancelled::Absent);
            let cancelled = client.cancel(&key).await.unwrap();
            assert_eq!(cancelled, Cancelled::Cancelled, "{key}");
        }
    };
    let producing = async {
        join_all((0..2).map(produce)).await;
        done.store(true, Ordering::Relaxed);
    };
    tokio::join!(drop_it(), drop_it(), producing);
    let dropped = dropped.load(Ordering::Relaxed);
    assert!(dropped > 0, "it was never empty for long enough");
    println!("dropped {dropped} times in {rounds} rounds");
}
