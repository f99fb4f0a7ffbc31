//! Kinds that start with several shards: all clients agree on the number.

use futures_util::future::join_all;
use keyfall::Client;
use keyfall::embedded::Embedded;
use keyfall_testing::proxies::FreezingProxy;

use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site};

/// A client of the same server that does not know any kind yet.
async fn newcomer(site: &Site, shards: u16) -> Client {
    let builder = Client::builder(&site.url).default_shards(shards);
    builder.connect().await.unwrap()
}

impl Site {
    /// The number of pending jobs of a kind in all its ledgers.
    async fn pending_anywhere(&self, kind: &str) -> u64 {
        let pattern = format!("keyfall:{{{kind}/*}}:due");
        let names: Vec<String> = self.command(&["KEYS", &pattern]).await;
        let mut count = 0;
        for name in names {
            count += self.command::<u64>(&["ZCARD", &name]).await;
        }
        count
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_users_of_a_new_kind_agree_on_its_shards() {
    let site = Site::new("founding-race").await;
    let mut numbers = std::collections::BTreeSet::new();
    for round in 0..30 {
        let kind = format!("{}:it:job{round}", site.app);
        let mut clients = Vec::new();
        for shards in [1, 2, 4, 4] {
            clients.push(newcomer(&site, shards).await);
        }
        // In each round another client is the first.
        clients.rotate_left(round % 4);
        let calls = clients.iter().flat_map(|client| {
            let kind = &kind;
            (0..6).map(move |id| client.schedule(format!("{kind}:{id}"), "").after(HOUR))
        });
        for placed in join_all(calls.map(IntoFuture::into_future)).await {
            placed.unwrap();
        }
        assert_eq!(site.pending_anywhere(&kind).await, 6, "{kind}");
        let (shards, from) = site.client.shards(&kind).await.unwrap();
        assert!([1, 2, 4].contains(&shards) && from.is_none(), "{shards}");
        numbers.insert(shards);
        let last = newcomer(&site, 8).await;
        for id in 0..6 {
            let found = last.get(format!("{kind}:{id}")).await.unwrap();
            assert!(found.is_some(), "{kind}:{id} of {shards}");
        }
        let stats = last.stats(&kind).await.unwrap();
        assert_eq!((stats.pending, stats.is_balanced()), (6, true), "{stats:?}");
    }
    println!("{numbers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_keeps_its_first_number_of_shards() {
    let site = Site::new("founding-keeps").await;
    let (four, two) = (newcomer(&site, 4).await, newcomer(&site, 2).await);
    let kind = site.kind();
    for id in 0..20 {
        four.schedule(site.key(id), "").after(HOUR).await.unwrap();
        two.schedule(site.key(id + 20), "")
            .after(HOUR)
            .await
            .unwrap();
    }
    assert_eq!(two.shards(&kind).await.unwrap(), (4, None));
    let one = format!("{}:it:one", site.app);
    for (client, id) in [(&site.client, 1), (&four, 2)] {
        let call = client.schedule(format!("{one}:{id}"), "").after(HOUR);
        call.await.unwrap();
    }
    assert_eq!(four.shards(&one).await.unwrap(), (1, None));

    // A fail-over loses the founder's entry and the first ledger; the other ledgers have the
    // layout.
    let first = format!("keyfall:{{{kind}/0}}:calls");
    let _: u64 = site.command(&["HDEL", "keyfall:kinds", &kind]).await;
    let _: u64 = site.command(&["DEL", &first]).await;
    let two = newcomer(&site, 2).await;
    two.schedule(site.key("late"), "")
        .after(HOUR)
        .await
        .unwrap();
    assert_eq!(two.shards(&kind).await.unwrap(), (4, None));
    for id in 0..40 {
        assert!(two.get(site.key(id)).await.unwrap().is_some(), "{id}");
    }

    // A client that knows the kind continues after a flush.
    let _: u64 = site.command(&["HDEL", "keyfall:kinds", &kind]).await;
    let pattern = format!("keyfall:{{{kind}/*}}:*");
    let names: Vec<String> = site.command(&["KEYS", &pattern]).await;
    for name in names {
        let _: u64 = site.command(&["DEL", &name]).await;
    }
    for id in 0..8 {
        four.schedule(site.key(id), "").after(HOUR).await.unwrap();
    }
    assert_eq!(two.shards(&kind).await.unwrap(), (4, None));
    assert_eq!(site.pending_anywhere(&kind).await, 8);
    for id in 0..8 {
        assert!(two.get(site.key(id)).await.unwrap().is_some(), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_stored_first_makes_it_a_kind_of_one() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "founding-second").await;
    let four = Client::builder(&proxy.url).default_shards(4);
    let four = four.call_timeout(PATIENCE / 3).connect().await.unwrap();
    // The client has looked at all ledgers by then, and is about to write that there are four.
    proxy.freeze_before("/0}:stats");
    let second = site.key("second");
    let scheduling = tokio::spawn(async move { four.schedule(second, "").after(HOUR).await });
    eventually("it founds", async || proxy.is_frozen().then_some(())).await;
    let first = site.client.schedule(site.key("first"), "").after(HOUR);
    first.await.unwrap();
    proxy.thaw();
    scheduling.await.unwrap().unwrap();
    assert_eq!(site.client.shards(&site.kind()).await.unwrap(), (1, None));
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.is_balanced()), (2, true), "{stats:?}");
}

#[tokio::test]
async fn what_the_first_ledger_says_holds_before_anybody_else_is_told() {
    let site = Site::new("founding-half").await;
    let kind = site.kind();
    // The state after the founding client died at once.
    let first = format!("keyfall:{{{kind}/0}}:calls");
    let _: u64 = site.command(&["HSET", &first, "layout", "4 7"]).await;
    for id in 0..8 {
        let call = site.client.schedule(site.key(id), "").after(HOUR);
        call.await.unwrap();
    }
    let listed: String = site.command(&["HGET", "keyfall:kinds", &kind]).await;
    assert_eq!(listed, "4 7");
    let newcomer = newcomer(&site, 2).await;
    for id in 0..8 {
        assert!(newcomer.get(site.key(id)).await.unwrap().is_some(), "{id}");
    }
    assert_eq!(site.pending_anywhere(&kind).await, 8);
    let stats = newcomer.stats(&kind).await.unwrap();
    assert_eq!((stats.pending, stats.is_balanced()), (8, true), "{stats:?}");
}

#[tokio::test]
async fn a_layout_that_only_later_ledgers_know_is_kept() {
    let site = Site::new("founding-rolled").await;
    let (four, kind) = (newcomer(&site, 4).await, site.kind());
    for id in 0..8 {
        four.schedule(site.key(id), "").after(HOUR).await.unwrap();
    }
    // A fail-over takes the list and the first ledger back, and not the others.
    let list = ["HSET", "keyfall:kinds", &kind, "1"];
    let _: u64 = site.command(&list).await;
    let first = format!("keyfall:{{{kind}/0}}:calls");
    let _: u64 = site.command(&["HDEL", &first, "layout"]).await;
    assert_eq!(four.shards(&kind).await.unwrap(), (4, None));
    for id in 0..8 {
        assert!(four.get(site.key(id)).await.unwrap().is_some(), "{id}");
    }
    // Clients with this layout bring the others up to date.
    four.cancel(site.key(0)).await.unwrap();
    let stats = four.stats(&kind).await.unwrap();
    assert_eq!((stats.pending, stats.is_balanced()), (7, true), "{stats:?}");
}
