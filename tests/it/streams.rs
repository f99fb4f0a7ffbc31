//! Streams as targets: handed over, and acknowledged in a group.

use std::collections::HashMap;
use std::time::Duration;

use keyfall::target::{Stream, stream};
use keyfall::{ErrorKind, Handler, JobState, Outcome, RetryPolicy, Router};
use redis::aio::MultiplexedConnection;

use crate::runs::eventually;
use crate::site::{HOUR, Site, command, ms};
use crate::workers::STEADY;

/// As short as a lease can be.
const SHORT: Duration = Duration::from_secs(1);
const GROUP: &str = "closers";

type Fields = HashMap<String, String>;
type Entries = Vec<(String, Fields)>;

/// An entry that a consumer read.
struct Read {
    id: String,
    fields: Fields,
}

impl Site {
    fn stream(&self) -> String {
        format!("{}-stream", self.app)
    }

    fn in_group(&self) -> Stream {
        stream(&self.url, &self.stream()).acknowledged(GROUP)
    }

    /// As if its consumer had been silent for an hour.
    async fn falls_silent(&self, read: &Read) {
        let stream = self.stream();
        let claim = ["XCLAIM", &stream, GROUP, "one", "0", &read.id];
        let idle = ["IDLE", "3600000", "JUSTID"];
        let _: Vec<String> = self.command(&[&claim[..], &idle].concat()).await;
    }

    /// Reads the next entry as a consumer of the group.
    async fn read(&self) -> Read {
        let stream = self.stream();
        let read = [
            "XREADGROUP",
            "GROUP",
            GROUP,
            "one",
            "COUNT",
            "1",
            "STREAMS",
            &stream,
            ">",
        ];
        eventually("an entry", async || {
            let mut redis = self.redis();
            let cmd = redis::Cmd::new().arg(&read).to_owned();
            // The call fails until the group exists.
            let answer: redis::RedisResult<Option<Vec<(String, Entries)>>> =
                cmd.query_async(&mut redis).await;
            let (id, fields) = answer.ok()??.remove(0).1.remove(0);
            Some(Read { id, fields })
        })
        .await
    }

    async fn ack(&self, read: &Read) -> u64 {
        self.command(&["XACK", &self.stream(), GROUP, &read.id])
            .await
    }

    async fn schedule(&self, id: &str) {
        self.client.schedule(self.key(id), &1).await.unwrap();
    }

    async fn pending(&self) -> Vec<redis::Value> {
        self.command(&["XPENDING", &self.stream(), GROUP, "-", "+", "10"])
            .await
    }
}

async fn entries(redis: &mut MultiplexedConnection, stream: &str) -> Entries {
    command(redis, &["XRANGE", stream, "-", "+"]).await
}

#[tokio::test]
async fn a_job_is_done_when_it_is_written_and_old_entries_go() {
    let site = Site::new("stream-over").await;
    let target = stream(&site.url, &site.stream()).keep(10);
    let worker = site.serve(Router::new().route(&site.pattern(), target));
    let schedule = site.client.schedule(site.key("1"), &[1, 2]);
    schedule.header("tenant", "7").await.unwrap();
    assert_eq!(site.all_ended().await.done, 1);
    let (_, fields) = entries(&mut site.redis(), &site.stream()).await.remove(0);
    assert_eq!(fields["key"], site.key("1"));
    assert_eq!(fields["payload"], "[1,2]");
    assert_eq!(fields["headers"], r#"{"tenant":"7"}"#);
    assert!(fields["idempotency_key"].starts_with(&site.key("1")));
    assert!(!fields.contains_key("lease"));
    for key in site.keys(500) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    assert_eq!(site.all_ended().await.done, 501);
    let length: u64 = site.command(&["XLEN", &site.stream()]).await;
    assert!((10..400).contains(&length), "{length}");
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_target_is_refused_by_the_router() {
    for (target, fault) in [
        (
            stream("http://localhost", "s"),
            "stream `s` cannot be reached: the Redis URL",
        ),
        (
            stream("redis://localhost", "s").keep(0),
            "stream `s` keeps no entry",
        ),
        (
            stream("redis://localhost", "s").acknowledged(""),
            "stream `s` has a group without",
        ),
    ] {
        let error = Router::<()>::new()
            .try_route("a:b:c:*", target)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert!(error.to_string().contains(fault), "{error}");
    }
}

#[tokio::test]
async fn an_acknowledged_entry_ends_its_job() {
    let site = Site::new("stream-ack").await;
    let worker = site.serve(Router::new().route(&site.pattern(), site.in_group().lease(HOUR)));
    for id in ["1", "2", "3"] {
        site.schedule(id).await;
    }
    let (first, second, third) = (site.read().await, site.read().await, site.read().await);
    assert_eq!(site.ack(&first).await, 1);
    // Consumers may delete acknowledged entries.
    assert_eq!(site.ack(&second).await, 1);
    let _: u64 = site.command(&["XDEL", &site.stream(), &second.id]).await;
    eventually("two are done", async || {
        (site.stats().await.done == 2).then_some(())
    })
    .await;
    let lease = third.fields["lease"].parse().unwrap();
    site.client.settle(&lease, Outcome::Done).await.unwrap();
    assert_eq!(site.all_ended().await.done, 3);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_entry_read_and_not_acknowledged_is_a_failed_attempt() {
    let site = Site::new("stream-late").await;
    let policy = RetryPolicy::fixed(ms(10)).unwrap().attempts(2);
    let route = site.in_group().lease(STEADY).retry(policy);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.schedule("1").await;
    let first = site.read().await;
    site.falls_silent(&first).await;
    let second = site.read().await;
    site.falls_silent(&second).await;
    assert_eq!(first.fields["attempt"], "1");
    assert_eq!(second.fields["attempt"], "2");
    assert_eq!(
        first.fields["idempotency_key"],
        second.fields["idempotency_key"]
    );
    let view = site.reaches(&site.key("1"), JobState::Dead).await;
    let error = view.last_error().unwrap();
    assert_eq!(error, "one has not acknowledged it within 12s");
    let stats = site.stats().await;
    assert_eq!((stats.failed, stats.lapsed, stats.buried), (1, 0, 1));
    eventually("nothing is left to the consumer", async || {
        site.pending().await.is_empty().then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_consumer_can_extend_its_lease() {
    let site = Site::new("stream-longer").await;
    let once = RetryPolicy::fixed(ms(10)).unwrap().attempts(1);
    let route = site.in_group().lease(STEADY).retry(once);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.schedule("1").await;
    let read = site.read().await;
    let stream = site.stream();
    let says_so = async {
        let mut often = tokio::time::interval(SHORT / 3);
        loop {
            let claim = ["XCLAIM", &stream, GROUP, "one", "0", &read.id];
            let _: Entries = site.command(&claim).await;
            often.tick().await;
        }
    };
    tokio::select! {
        () = says_so => {}
        () = site.passes(STEADY + SHORT) => {}
    }
    assert_eq!(site.view(&site.key("1")).await.state(), JobState::Running);
    assert_eq!(site.ack(&read).await, 1);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.failed, stats.lapsed), (1, 0, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_destroyed_group_is_created_again_and_no_job_is_lost() {
    let site = Site::new("stream-destroyed").await;
    let route = site.in_group().lease(STEADY);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.schedule("1").await;
    site.read().await;
    let gone: u64 = site
        .command(&["XGROUP", "DESTROY", &site.stream(), GROUP])
        .await;
    assert_eq!(gone, 1);
    let read = site.read().await;
    assert_eq!(read.fields["key"], site.key("1"));
    assert_eq!(site.ack(&read).await, 1);
    assert_eq!(site.all_ended().await.done, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn absent_consumers_cost_no_attempt() {
    let site = Site::new("stream-away").await;
    let route = site.in_group().lease(STEADY);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.schedule("1").await;
    let mut redis = site.redis();
    eventually("it is there", async || {
        (entries(&mut redis, &site.stream()).await.len() == 1).then_some(())
    })
    .await;
    site.passes(STEADY).await;
    assert_eq!(entries(&mut redis, &site.stream()).await.len(), 1);
    let read = site.read().await;
    assert_eq!(read.fields["attempt"], "1");
    assert_eq!(site.ack(&read).await, 1);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_entry_cancelled_before_it_is_read_is_withdrawn() {
    let site = Site::new("stream-cancel").await;
    let route = site.in_group().lease(STEADY);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.schedule("1").await;
    let mut redis = site.redis();
    eventually("it is there", async || {
        (entries(&mut redis, &site.stream()).await.len() == 1).then_some(())
    })
    .await;
    site.client.cancel(site.key("1")).await.unwrap();
    site.all_ended().await;
    assert_eq!(entries(&mut redis, &site.stream()).await.len(), 0);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_entry_trimmed_or_deleted_unread_comes_again() {
    let site = Site::new("stream-trimmed").await;
    let route = site.in_group().lease(STEADY);
    let route = route.retry(RetryPolicy::fixed(ms(10)).unwrap().attempts(100));
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.schedule("1").await;
    let mut redis = site.redis();
    eventually("it is there", async || {
        (entries(&mut redis, &site.stream()).await.len() == 1).then_some(())
    })
    .await;
    let _: u64 = command(&mut redis, &["XTRIM", &site.stream(), "MAXLEN", "0"]).await;
    let read = site.read().await;
    assert_ne!(read.fields["attempt"], "1");
    assert_eq!(site.ack(&read).await, 1);
    site.all_ended().await;
    // The same happens if the whole stream and its group are deleted.
    site.schedule("2").await;
    eventually("it is there", async || {
        let entries = entries(&mut redis, &site.stream()).await;
        entries
            .iter()
            .any(|(_, fields)| fields["key"] == site.key("2"))
            .then_some(())
    })
    .await;
    let _: u64 = command(&mut redis, &["DEL", &site.stream()]).await;
    let read = site.read().await;
    assert_ne!(read.fields["attempt"], "1");
    assert_eq!(site.ack(&read).await, 1);
    assert_eq!(site.all_ended().await.done, 2);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn workers_take_over_the_entries_of_gone_workers() {
    let site = Site::new("stream-orphans").await;
    let router = || Router::new().route(&site.pattern(), site.in_group().lease(STEADY));
    let first = site.serve(router());
    for id in ["acked", "late", "unread"] {
        site.schedule(id).await;
    }
    let mut redis = site.redis();
    eventually("all are there", async || {
        (entries(&mut redis, &site.stream()).await.len() == 3).then_some(())
    })
    .await;
    let (one, two) = (site.read().await, site.read().await);
    first.drop_it().await;
    // No worker is running when the consumer is done.
    assert_eq!(site.ack(&one).await, 1);
    site.falls_silent(&two).await;
    let (second, third) = (site.serve(router()), site.serve(router()));
    eventually("one is done", async || {
        (site.stats().await.done == 1).then_some(())
    })
    .await;
    let key = two.fields["key"].clone();
    eventually("one has failed", async || {
        let view = site.client.get(&key).await.unwrap()?;
        view.last_error()?
            .contains("has not acknowledged it")
            .then_some(())
    })
    .await;
    let read = site.read().await;
    assert_eq!(read.fields["attempt"], "1");
    assert_eq!(site.ack(&read).await, 1);
    eventually("two are done", async || {
        (site.stats().await.done == 2).then_some(())
    })
    .await;
    assert_eq!(site.stats().await.lapsed, 0);
    let settled = format!("{}:{GROUP}:settled", site.stream());
    eventually("they need not be looked at again", async || {
        let id: Option<String> = site.command(&["GET", &settled]).await;
        (id? >= read.id).then_some(())
    })
    .await;
    second.stop().await;
    third.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn routes_that_share_a_stream_keep_their_own_leases_and_policies() {
    let site = Site::new("stream-shared").await;
    let once = RetryPolicy::fixed(ms(10)).unwrap().attempts(1);
    let router = Router::new()
        .route(
            &site.pattern(),
            site.in_group().lease(SHORT).retry(once.clone()),
        )
        .route(
            &format!("{}:it:long:*", site.app),
            site.in_group().lease(HOUR).retry(once),
        );
    let worker = site.serve(router);
    let long = format!("{}:it:long:1", site.app);
    site.client.schedule(&long, &1).await.unwrap();
    let read = site.read().await;
    site.schedule("1").await;
    site.read().await;
    site.reaches(&site.key("1"), JobState::Dead).await;
    // The long job was read before the other one, and all sweeps have met it.
    assert_eq!(site.view(&long).await.state(), JobState::Running);
    assert_eq!(site.ack(&read).await, 1);
    eventually("it is done", async || {
        let stats = site.client.stats(&format!("{}:it:long", site.app)).await;
        (stats.unwrap().done == 1).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_backlog_is_drained_by_two_workers_and_a_consumer() {
    let site = Site::new("stream-backlog").await;
    let router = || Router::new().route(&site.pattern(), site.in_group().concurrency(100));
    for key in site.keys(600) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    let workers = [site.serve(router()), site.serve(router())];
    for _ in 0..600 {
        let read = site.read().await;
        let out = site.stats().await.leased;
        assert!(out <= 200, "{out} are out");
        assert_eq!(site.ack(&read).await, 1);
    }
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.failed, stats.lapsed), (600, 0, 0));
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}
