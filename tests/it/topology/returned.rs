//! One of several servers was away: it learns the changes that it missed before it takes any call.

use keyfall::{Cancelled, Client, JobState, Router, server_of};
use keyfall_testing::proxies::FreezingProxy;
use redis::aio::MultiplexedConnection;

use super::several::Pair;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, command, connect, ms, redis_time};

/// The hash `calls` of the ledger that a server has of a kind with a ledger on each.
async fn calls_of(redis: &mut MultiplexedConnection, kind: &str) -> String {
    let pattern = format!("keyfall:{{{kind}/*}}:calls");
    let names: Vec<String> = command(redis, &["KEYS", &pattern]).await;
    let [name] = &names[..] else {
        panic!("one of them is here: {names:?}")
    };
    name.clone()
}

async fn is_paused(redis: &mut MultiplexedConnection, calls: &str) -> bool {
    let since: Option<u64> = command(redis, &["HGET", calls, "paused"]).await;
    since.is_some_and(|since| since > 0)
}

/// A kind with its only ledger on this server.
fn kind_on(server: u16, app: &str) -> String {
    let kinds = (0..).map(|number| format!("{app}:it:new{number}"));
    { kinds }
        .find(|kind| server_of(kind, 0, 2) == server)
        .unwrap()
}

/// Connects a client until it finds all servers. On a busy machine a server may be taken for away.
async fn client_of_all_servers<T>(pair: &Pair, found: impl AsyncFn() -> Option<T>) -> (Client, T) {
    eventually("it is told", async || {
        let client = Client::connect(&pair.url()).await.ok()?;
        let kinds = client.kinds().await.ok()?;
        let found = found().await?;
        kinds.unseen.is_empty().then_some((client, found))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_begun_in_an_outage_is_paused_before_its_first_job() {
    let mut pair = Pair::start("returned-new").await;
    let proxy = FreezingProxy::to(&pair.servers[1]).await;
    let url = format!("{} {}", pair.servers[0].url(), proxy.url);
    pair.client
        .prefix("returned-new:it:n")
        .pause()
        .await
        .unwrap();
    pair.servers[1].kill_server().await.unwrap();
    let kind = kind_on(1, "returned-new");
    let key = format!("{kind}:1");
    let client = Client::builder(&url).call_timeout(ms(4000));
    let client = client.connect().await.unwrap();
    let error = client.schedule(&key, "").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");

    pair.servers[1].restart().await.unwrap();
    // The client that stores the first job of a kind lists it on all servers, and is held up before
    // that.
    proxy.freeze_at("created:");
    let scheduling = eventually("it is scheduled", async || {
        client.schedule(&key, "").await.ok()
    });
    let looking = async {
        eventually("it is stored", async || proxy.is_frozen().then_some(())).await;
        let mut redis = connect(&pair.servers[1].url()).await;
        let calls = format!("keyfall:{{{kind}/0}}:calls");
        let is_paused = is_paused(&mut redis, &calls).await;
        proxy.thaw();
        is_paused
    };
    let (_, is_paused) = tokio::join!(scheduling, looking);
    assert!(is_paused, "before anybody could claim it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missed_pause_holds_on_the_server_before_the_first_claim() {
    let mut pair = Pair::start("returned-pause").await;
    let (log, mut runs) = recorder();
    let worker = pair.serve(Router::new().route(&pair.pattern(), log.done()));
    worker.ready().await;
    let ids = pair.ids_on(1, "job", 5);
    pair.schedule(&ids, HOUR).await;
    pair.servers[1].kill_server().await.unwrap();
    let error = pair.client.prefix(&pair.kind).pause().await.unwrap_err();
    assert!(
        error.to_string().contains("done on the other servers"),
        "{error}"
    );
    pair.servers[1].restart().await.unwrap();
    // The first client brings the rules to the server, and claims afterwards.
    let mut redis = connect(&pair.servers[1].url()).await;
    let calls = calls_of(&mut redis, &pair.kind).await;
    let looked = async || is_paused(&mut redis.clone(), &calls).await.then_some(());
    let (other, ()) = client_of_all_servers(&pair, looked).await;
    eventually("all are due", async || {
        let fired = other.prefix(&pair.kind).fire_now().await.ok()?;
        fired.unseen.is_empty().then_some(())
    })
    .await;
    let before = redis_time(&mut redis).await;
    eventually("all are resumed", async || {
        other.prefix(&pair.kind).resume().await.ok()
    })
    .await;
    for job in runs.take(ids.len()).await {
        // The fencing value is the time of the claim.
        assert!(u128::from(job.fence()) >= before, "{job:?}");
    }
    worker.stop().await;
    pair.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missed_resume_holds_on_the_server_too() {
    let mut pair = Pair::start("returned-resume").await;
    let (log, mut runs) = recorder();
    let worker = pair.serve(Router::new().route(&pair.pattern(), log.done()));
    worker.ready().await;
    let everything = pair.client.prefix("returned-resume:");
    everything.pause().await.unwrap();
    let ids = pair.ids_on(1, "job", 5);
    pair.schedule(&ids, ms(1)).await;
    pair.servers[1].kill_server().await.unwrap();
    let error = pair.client.prefix(&pair.kind).resume().await.unwrap_err();
    assert!(
        error.to_string().contains("done on the other servers"),
        "{error}"
    );
    pair.servers[1].restart().await.unwrap();
    runs.take(ids.len()).await;
    // The longer pause stays on both servers, for future kinds.
    let new = kind_on(1, "returned-resume");
    let key = format!("{new}:1");
    eventually("it is scheduled, and paused", async || {
        pair.client.schedule(&key, "").await.ok()?;
        pair.client.stats(&new).await.ok()?.paused.then_some(())
    })
    .await;
    let rules = pair.client.paused().await.unwrap().rules;
    assert_eq!(rules.len(), 1, "{rules:?}");
    // A pause that has ended has ended on all servers, although one of them hears of it late.
    pair.servers[1].kill_server().await.unwrap();
    pair.client.everything().resume().await.unwrap_err();
    pair.servers[1].restart().await.unwrap();
    let redis = connect(&pair.servers[1].url()).await;
    let looked = async || {
        let rules: Vec<String> = command(&mut redis.clone(), &["HKEYS", "keyfall:paused"]).await;
        (rules == ["="]).then_some(())
    };
    let (other, ()) = client_of_all_servers(&pair, looked).await;
    assert_eq!(other.paused().await.unwrap().rules, []);
    assert!(!other.stats(&new).await.unwrap().paused);
    worker.stop().await;
    pair.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_returned_server_learns_missed_kinds_and_layouts() {
    let pair = Pair::start("returned-layout").await;
    let mut redis = connect(&pair.servers[1].url()).await;
    let calls = calls_of(&mut redis, &pair.kind).await;
    // As if the changes had happened while the server was away.
    let _: u64 = command(&mut redis, &["HDEL", "keyfall:kinds", &pair.kind]).await;
    let _: u64 = command(&mut redis, &["DEL", &calls]).await;
    let looked = async || {
        let list = ["HGET", "keyfall:kinds", &pair.kind];
        command::<Option<String>>(&mut redis.clone(), &list).await
    };
    let (other, told) = client_of_all_servers(&pair, looked).await;
    assert!(told.starts_with("2 "), "{told}");
    let told: String = command(&mut redis, &["HGET", &calls, "layout"]).await;
    assert!(told.starts_with("2 "), "before it is listed: {told}");
    for id in pair.ids_on(1, "job", 2) {
        other.schedule(pair.key(&id), "").after(HOUR).await.unwrap();
        pair.client.cancel(pair.key(&id)).await.unwrap();
    }
    let listed = other.list(&pair.kind, JobState::Pending).await.unwrap();
    assert!(listed.jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_counts_though_it_has_the_earlier_time() {
    let pair = Pair::start("returned-clocks").await;
    let (client, prefix) = (&pair.client, format!("{}:", pair.kind));
    client.prefix(&prefix).pause().await.unwrap();
    // As if the pause had been numbered by a clock that is an hour ahead.
    for server in &pair.servers {
        let mut redis = connect(&server.url()).await;
        let ahead = redis_time(&mut redis).await / 1000 + HOUR.as_millis();
        let (calls, ahead) = (calls_of(&mut redis, &pair.kind).await, ahead.to_string());
        for (key, field) in [("keyfall:paused", &*prefix), (&calls, "turn")] {
            let told: u64 = command(&mut redis, &["HSET", key, field, &ahead]).await;
            assert_eq!(told, 0, "the pause has a number there");
        }
    }
    client.prefix(&prefix).resume().await.unwrap();
    assert!(!client.stats(&pair.kind).await.unwrap().paused);
    assert_eq!(client.paused().await.unwrap().rules, []);
    pair.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_told_a_layout_while_the_first_is_away_is_paused_as_its_kind_is() {
    for by_rule in [false, true] {
        let mut pair = Pair::start("returned-kept").await;
        pair.client.reshard(&pair.kind, 4).await.unwrap();
        pair.client.prefix(&pair.kind).pause().await.unwrap();
        let first = usize::from(server_of(&pair.kind, 0, 2));
        let mut redis = connect(&pair.servers[1 - first].url()).await;
        let ledger = async |redis: &mut MultiplexedConnection, shard: u16| {
            let pattern = format!("keyfall:{{{}/{shard}.*}}:calls", pair.kind);
            let names: Vec<String> = command(redis, &["KEYS", &pattern]).await;
            names[0].clone()
        };
        let (one, three) = (ledger(&mut redis, 1).await, ledger(&mut redis, 3).await);
        // The client that resharded it died before it told the last ledger.
        let _: u64 = command(&mut redis, &["DEL", &three]).await;
        if by_rule {
            // This ledger was not told either, so the available server knows only the rule.
            let _: u64 = command(&mut redis, &["DEL", &one]).await;
        } else {
            let _: u64 = command(&mut redis, &["HDEL", "keyfall:paused", &pair.kind]).await;
        }
        pair.servers[first].kill_server().await.unwrap();
        let mut ids = (0..).map(|id| id.to_string());
        let id = ids.find(|id| keyfall::shard_of(id, 4) == 3).unwrap();
        let cancelled = pair.client.cancel(pair.key(id)).await.unwrap();
        assert_eq!(cancelled, Cancelled::Absent);
        let told: String = command(&mut redis, &["HGET", &three, "layout"]).await;
        assert!(told.starts_with("4 "), "{told}");
        assert!(is_paused(&mut redis, &three).await, "{by_rule}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_begins_is_served_where_its_servers_are_there() {
    let mut pair = Pair::start("returned-way").await;
    let kind = format!("{}2", pair.kind);
    let first = usize::from(server_of(&kind, 0, 2));
    // The state after the founding client died once the lists were written.
    let calls = format!("keyfall:{{{kind}/0}}:calls");
    for (place, server) in pair.servers.iter().enumerate() {
        let mut redis = connect(&server.url()).await;
        let _: u64 = command(&mut redis, &["HSET", "keyfall:kinds", &kind, "2 1"]).await;
        if place == first {
            let _: u64 = command(&mut redis, &["HSET", &calls, "layout", "2 1"]).await;
        }
    }
    pair.servers[1 - first].kill_server().await.unwrap();
    let client = Client::builder(&pair.url()).default_shards(2);
    let client = client.call_timeout(HOUR / 180).connect().await.unwrap();
    let mut ids = (0..).map(|id| id.to_string());
    let id = ids.find(|id| keyfall::shard_of(id, 2) == 0).unwrap();
    let key = format!("{kind}:{id}");
    client.schedule(&key, "").after(HOUR).await.unwrap();
    assert!(client.get(&key).await.unwrap().is_some());
    pair.servers[1 - first].restart().await.unwrap();
    let client = Client::builder(&pair.url()).default_shards(2);
    let client = client.connect().await.unwrap();
    let id = ids.find(|id| keyfall::shard_of(id, 2) == 1).unwrap();
    let other = format!("{kind}:{id}");
    client.schedule(&other, "").after(HOUR).await.unwrap();
    assert!(client.get(&other).await.unwrap().is_some());
    assert!(client.get(&key).await.unwrap().is_some());
}
