//! Tests of calls on leases: in the shard that holds them, in batches, and beside hooks.

use futures_util::future::BoxFuture;

use super::*;
use crate::client::TellDead;
use crate::embedded::Embedded;
use crate::key::JobKey;
use crate::shards::shard_of;
use crate::store::{ClaimOrder, ClaimRequest, Lane};

const KIND: &str = "app1:trans:notice";

/// Schedules the job with this id, and claims it through this client.
async fn claimed(client: &Client, id: &str) -> Lease {
    let key: JobKey = format!("{KIND}:{id}").parse().unwrap();
    client.schedule(&key, "").await.unwrap();
    let place = client.store().layout_of(KIND).place_of(id);
    let ledger = client.store().ledger(&Kind::parse(KIND).unwrap(), place);
    let (length, until) = (Duration::from_secs(60), client.deadline());
    let mut lane = Lane::new();
    let claim = ledger
        .claim(
            &mut lane,
            ClaimRequest {
                ids: &[id],
                found: "e",
                fill: 0,
                order: ClaimOrder::Oldest,
            },
            length,
            until,
        )
        .await;
    Lease::new(key, claim.unwrap().jobs[0].token.clone())
}

#[tokio::test]
async fn a_lease_is_found_by_a_client_that_does_not_know_the_shards_of_its_kind() {
    let server = Embedded::start().await.unwrap();
    let builder = Client::builder(&server.url()).default_shards(4);
    let client = builder.connect().await.unwrap();
    let ids = (0..).map(|number| format!("job{number}"));
    let mut ids = ids.filter(|id| shard_of(id, 4) != 0);
    let leases = [
        claimed(&client, &ids.next().unwrap()).await,
        claimed(&client, &ids.next().unwrap()).await,
    ];
    let length = Duration::from_secs(90);
    let stranger = async || Client::connect(&server.url()).await.unwrap();
    let extended = stranger().await.extend(&leases[0], length).await;
    assert_eq!(extended.unwrap(), Extended::Extended);
    let both = leases.each_ref().map(|lease| (lease, length));
    let until = client.deadline();
    let (extended, fault) = stranger().await.extend_all(&both, until).await;
    assert_eq!(extended, [Some(Extended::Extended); 2], "{fault:?}");
    let settled = stranger().await.settle(&leases[0], Outcome::Done).await;
    assert_eq!(settled.unwrap(), Settled::Done);
    let (extended, fault) = stranger().await.extend_all(&both, until).await;
    let expected = [Extended::Gone, Extended::Extended].map(Some);
    assert_eq!(extended, expected, "{fault:?}");
}

/// A consumer has the jobs of many kinds in its hands.
#[tokio::test]
async fn a_damaged_ledger_keeps_no_lease_of_another_from_being_extended() {
    let server = Embedded::start().await.unwrap();
    let builder = Client::builder(&server.url()).default_shards(2);
    let client = builder.connect().await.unwrap();
    let ids = (0..).map(|number| format!("job{number}"));
    let mut first = ids.clone().filter(|id| shard_of(id, 2) == 0);
    let mut second = ids.filter(|id| shard_of(id, 2) == 1);
    let length = Duration::from_secs(90);
    let mut leases = Vec::new();
    for id in [first.next(), second.next(), first.next(), second.next()] {
        leases.push(claimed(&client, &id.unwrap()).await);
    }
    let damaged = client
        .store()
        .names()
        .ledger(&Kind::parse(KIND).unwrap(), 0);
    let redis = redis::Client::open(server.url()).unwrap();
    let mut link = redis.get_multiplexed_async_connection().await.unwrap();
    let mut set = redis::cmd("SET");
    set.arg(damaged.lease).arg("a text");
    let () = set.query_async(&mut link).await.unwrap();
    let all: Vec<_> = leases.iter().map(|lease| (lease, length)).collect();
    let (extended, fault) = client.extend_all(&all, client.deadline()).await;
    let there = Some(Extended::Extended);
    assert_eq!(extended, [None, there, None, there]);
    assert_eq!(fault.unwrap().kind(), ErrorKind::Damaged);
}

#[tokio::test]
async fn only_a_job_that_is_not_done_needs_its_record() {
    let server = Embedded::start().await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let [failed, done, damaged] = ["failed", "done", "damaged"];
    let settle = async |id: &str, outcome: Outcome| {
        let lease = claimed(&client, id).await;
        if id != failed {
            damage(&server, &client, id).await;
        }
        client.settle(&lease, outcome).await
    };
    let settled = settle(failed, Outcome::retry("no")).await.unwrap();
    assert!(matches!(settled, Settled::Pending(_)), "{settled:?}");
    assert_eq!(settle(done, Outcome::Done).await.unwrap(), Settled::Done);
    let error = settle(damaged, Outcome::retry("no")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

/// Makes the record of this job unreadable.
async fn damage(server: &Embedded, client: &Client, id: &str) {
    let names = client.store().names();
    let names = names.ledger(&Kind::parse(KIND).unwrap(), 0);
    let redis = redis::Client::open(server.url()).unwrap();
    let mut link = redis.get_multiplexed_async_connection().await.unwrap();
    let mut set = redis::cmd("HSET");
    set.arg(names.shadow).arg(id).arg("no record");
    let _: u64 = set.query_async(&mut link).await.unwrap();
}

#[test]
fn a_batch_has_leases_of_one_kind_one_shard_and_one_length() {
    let lease = |kind: &str| format!("{kind}:1@ab-1").parse::<Lease>().unwrap();
    let (one, other) = (lease("app1:trans:one"), lease("app1:trans:other"));
    let [short, long] = [10, 20].map(Duration::from_secs);
    let mut leases = vec![(&one, short), (&one, short), (&one, long), (&other, long)];
    leases.extend([(&other, short); BATCH + 1]);
    let mut lengths: Vec<usize> = batches(&leases, |_| Some(0)).iter().map(Vec::len).collect();
    lengths.sort();
    assert_eq!(lengths, [1, 1, 1, 2, BATCH]);
    let mut places = batches(&leases, |_| Some(0)).concat();
    places.sort();
    assert!(places.into_iter().eq(0..leases.len()), "each of them once");
    let two = [(&one, short), (&other, short), (&one, short)];
    let apart = batches(&two, |lease| Some(u16::from(lease.key() == other.key())));
    assert_eq!(apart, [vec![0, 2], vec![1]]);
}

#[test]
fn a_lease_outlasts_the_hooks_and_the_settlement() {
    let (hook, call) = (Duration::from_secs(30), Duration::from_secs(10));
    assert!(length_for_hooks(hook, call) >= hook + call);
    let moment = Duration::from_millis(1);
    for longest in [moment, 10 * *LEASES.end()] {
        assert!(LEASES.contains(&length_for_hooks(longest, moment)));
    }
}

/// A hook that takes a while.
struct SlowHook(Duration);

impl TellDead for SlowHook {
    fn wants_dead(&self) -> bool {
        true
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn tell<'a>(&'a self, _: DyingJob<'a>) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(self.0))
    }
}

#[tokio::test]
async fn the_time_of_a_hook_does_not_count_for_the_settlement() {
    let server = Embedded::start().await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lease = claimed(&client, "1").await;
    let hook = Arc::new(SlowHook(Duration::from_millis(300)));
    client.listeners().join(&hook);
    let letter = DyingJob {
        key: lease.key(),
        header: r#"{"v":1,"error":"no"}"#,
        due: UnixMs(1),
        lag: None,
        record: None,
    };
    let deadline = client.deadline();
    let mut until = deadline;
    let told = client.tell_dead(&lease, letter, &mut until).await;
    assert_eq!(told.unwrap(), Ok(()));
    assert!(until >= deadline + hook.0);
}
