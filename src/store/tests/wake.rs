//! The messages on the wake channel, and the changes without one.

use std::time::Duration;

use futures_util::StreamExt;

use super::support::{Bench, Ears, HOUR, State, after, at, due_of, later, soon, word};
use crate::embedded::Embedded;
use crate::names::Names;
use crate::store::{Lane, PaceRequest, Verb};

use State::*;

const NOTHING: [String; 0] = [];

/// The wake-up for a job that is due already.
fn now_due(bench: &Bench, id: &str) -> [String; 1] {
    [format!("now {} {id}", bench.ledger.subject())]
}

/// The wake-up for a job that falls due at `ms`.
fn due(bench: &Bench, ms: u64) -> [String; 1] {
    [format!("due {} {ms}", bench.ledger.subject())]
}

#[tokio::test]
async fn a_schedule_wakes_if_its_job_is_due_or_the_earliest() {
    let bench = Bench::new().await;
    let mut ears = Ears::of(&bench).await;
    let now = bench.now().await;
    for (id, delay, wakes) in [
        ("first", 3_600_000, true),
        ("later", 3_700_000, false),
        ("sooner", 3_500_000, true),
        ("as-soon", 3_500_000, false),
        ("soonest", 3_400_000, true),
        // These replace the job: first with a later due time, then with an earlier one.
        ("soonest", 3_600_000, false),
        ("soonest", 3_400_000, true),
    ] {
        let then = due_of(bench.schedule(id, at(now + delay)).await);
        let heard = ears.heard(&bench).await;
        let expected = due(&bench, then);
        assert_eq!(
            heard,
            if wakes { &expected[..] } else { &NOTHING },
            "{id} {delay}"
        );
    }
    // Each schedule of a job that is due already wakes the workers.
    for _ in 0..2 {
        bench.schedule("now", after(Duration::ZERO)).await;
        assert_eq!(ears.heard(&bench).await, now_due(&bench, "now"));
    }
    // A job that is due already is not an earlier due time for the pacer.
    let then = due_of(bench.schedule("next", at(now + 3_300_000)).await);
    assert_eq!(ears.heard(&bench).await, due(&bench, then));
    bench.balanced().await;
}

#[tokio::test]
async fn a_batch_wakes_once_for_due_jobs_and_once_for_the_next() {
    let bench = Bench::new().await;
    let mut ears = Ears::of(&bench).await;
    let now = bench.now().await;
    let items = [("a", 80_000), ("b", 70_000), ("c", 90_000)];
    let items = items.map(|(id, delay)| bench.placement(id, at(now + delay)));
    bench.place(&items).await;
    assert_eq!(ears.heard(&bench).await, due(&bench, now + 70_000));
    let items =
        [("d", 1), ("e", now + 60_000), ("f", 2)].map(|(id, due)| bench.placement(id, at(due)));
    bench.place(&items).await;
    let [due] = due(&bench, now + 60_000);
    let [now_due] = now_due(&bench, "d f");
    assert_eq!(ears.heard(&bench).await, [now_due, due]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_reschedule_wakes_if_it_brings_a_job_forward() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    bench.schedule("first", at(now + 3_600_000)).await;
    bench.schedule("second", at(now + 3_700_000)).await;
    let mut ears = Ears::of(&bench).await;
    for (id, delay, wakes) in [
        ("first", 3_650_000, false),
        ("second", 3_640_000, true),
        ("missing", 0, false),
        ("second", 0, true),
    ] {
        let when = if delay == 0 {
            after(Duration::ZERO)
        } else {
            at(now + delay)
        };
        bench.reschedule(id, when).await;
        let heard = ears.heard(&bench).await;
        match bench.due(id).await {
            Some(_) if wakes && delay == 0 => assert_eq!(heard, now_due(&bench, id)),
            Some(then) if wakes => assert_eq!(heard, due(&bench, then)),
            _ => assert_eq!(heard, NOTHING, "{id} {delay}"),
        }
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_settlement_wakes_for_the_jobs_that_it_makes_pending() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    bench.schedule("other", at(now + 3_600_000)).await;
    let mut tokens = Vec::new();
    for id in ["done", "late", "soon", "now", "followed"] {
        tokens.push(bench.run(id, HOUR).await.token);
    }
    let mut ears = Ears::of(&bench).await;
    bench.schedule("followed", at(now + 3_400_000)).await;
    bench.reschedule("followed", at(now + 3_300_000)).await;
    assert_eq!(
        ears.heard(&bench).await,
        NOTHING,
        "a successor waits for its run"
    );

    bench.settle("done", &tokens[0], Verb::Done).await;
    bench
        .settle("late", &tokens[1], later(at(now + 3_700_000), "failed"))
        .await;
    assert_eq!(ears.heard(&bench).await, NOTHING);
    bench
        .settle("soon", &tokens[2], later(at(now + 3_500_000), "failed"))
        .await;
    assert_eq!(ears.heard(&bench).await, due(&bench, now + 3_500_000));
    bench
        .settle("now", &tokens[3], later(at(1), "failed"))
        .await;
    assert_eq!(ears.heard(&bench).await, now_due(&bench, "now"));
    bench.settle("followed", &tokens[4], Verb::Done).await;
    assert_eq!(ears.heard(&bench).await, due(&bench, now + 3_300_000));
    bench.balanced().await;
}

#[tokio::test]
async fn a_successor_that_takes_its_place_in_reclaim_wakes_too() {
    let bench = Bench::new().await;
    bench.bring("lapsed", Lapsed).await;
    bench.bring("followed", LapsedNext).await;
    let mut ears = Ears::of(&bench).await;
    bench.reclaim(&["lapsed"]).await;
    assert_eq!(ears.heard(&bench).await, NOTHING);
    bench.reclaim(&["followed"]).await;
    let then = bench.due("followed").await.unwrap();
    assert_eq!(ears.heard(&bench).await, due(&bench, then));
    bench.balanced().await;
}

#[tokio::test]
async fn a_cancel_is_announced_to_the_running_worker() {
    let bench = Bench::new().await;
    bench.bring("pending", Pending).await;
    bench.bring("running", Leased).await;
    bench.bring("lapsed", Lapsed).await;
    let mut ears = Ears::of(&bench).await;
    let keys = ["missing", "pending", "running", "lapsed", "running"].map(|id| bench.key(id));
    bench
        .ledger
        .cancel(&mut Lane::new(), &keys, soon())
        .await
        .unwrap();
    let told = ["running", "lapsed"].map(|id| format!("cancel {} {id}", bench.ledger.kind()));
    assert_eq!(ears.heard(&bench).await, told);
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_is_silent() {
    let bench = Bench::new().await;
    let mut ears = Ears::of(&bench).await;
    let lane = Lane::new();
    let items = [bench.placement("job", after(Duration::ZERO))];
    for told in [1, 0] {
        bench
            .ledger
            .schedule(&mut lane.rewound(1), &items, soon())
            .await
            .unwrap();
        assert_eq!(ears.heard(&bench).await.len(), told);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_user_without_the_right_to_publish_can_do_everything_else() {
    let server = Embedded::start().await.unwrap();
    let admin = Bench::on(&server).await;
    let rights = [
        "ACL",
        "SETUSER",
        "mute",
        "on",
        ">secret",
        "~*",
        "+@all",
        "resetchannels",
    ];
    let _: String = admin.ask(&rights).await;
    let url = format!("{}?user=mute&pass=secret", server.url());
    let bench = Bench::of(&url, admin.ledger.kind().clone()).await;
    let mut ears = Ears::of(&admin).await;
    bench.every_state().await;
    assert_eq!(word(bench.cancel("Leased").await), "running");
    assert_eq!(ears.heard(&admin).await, NOTHING);
    bench.balanced().await;
    admin.balanced().await;
}

/// The round of a pacer that touches these jobs, with these messages between them.
fn round(bench: &Bench, ids: &[&str], messages: &[(usize, &str)]) -> PaceRequest<'static> {
    let message = |(place, message): &(usize, &str)| (*place, (*message).to_owned());
    PaceRequest {
        touch: ids.iter().map(|id| bench.key(id)).collect(),
        messages: messages.iter().map(message).collect(),
        ..PaceRequest::default()
    }
}

#[tokio::test]
async fn workers_hear_a_turn_before_the_events_of_its_jobs() {
    let (server, bench) = Bench::of_lazy_expiry().await;
    let ids = ["a", "b", "c", "d"];
    let due = bench.now().await + 20;
    let items = ids.map(|id| bench.placement(id, at(due)));
    bench.place(&items).await;
    bench.past(due + 1).await;
    let client = redis::Client::open(server.url().as_str()).unwrap();
    let mut pubsub = client.get_async_pubsub().await.unwrap();
    let channels = [Names::expired(0), bench.ledger.wake.clone()];
    pubsub.subscribe(&channels).await.unwrap();
    let turns = [(0, "turn of one"), (3, "turn of two"), (4, "turn of three")];
    let round = round(&bench, &ids, &turns);
    let paced = bench.ledger.pace(&round, soon()).await.unwrap();
    assert_eq!((paced.alive, paced.is_mute), (0, false));
    let heard = pubsub.on_message().take(7);
    let heard: Vec<String> = heard.map(|it| it.get_payload().unwrap()).collect().await;
    let [a, b, c, d] = ids.map(|id| bench.key(id).to_string());
    let [one, two, three] = turns.map(|(_, turn)| turn.to_owned());
    assert_eq!(heard, [one, a, b, c, two, d, three]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_user_without_the_right_to_publish_touches_without_turns() {
    let server = Embedded::start().await.unwrap();
    let admin = Bench::on(&server).await;
    let rights = ["on", ">secret", "~*", "+@all", "resetchannels"];
    let rights = [&["ACL", "SETUSER", "mute"][..], &rights].concat();
    let _: String = admin.ask(&rights).await;
    let url = format!("{}?user=mute&pass=secret", server.url());
    let bench = Bench::of(&url, admin.ledger.kind().clone()).await;
    bench.schedule("later", after(HOUR)).await;
    let round = round(&bench, &["later"], &[(0, "turn of one")]);
    let paced = bench.ledger.pace(&round, soon()).await.unwrap();
    assert_eq!((paced.alive, paced.is_mute), (1, true));
    bench.balanced().await;
    admin.balanced().await;
}
