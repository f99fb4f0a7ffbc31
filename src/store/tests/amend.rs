//! `amend.lua`: another header, due time and payload, if the job is as it was seen.

use bytes::Bytes;

use super::support::{Bench, HOUR, State, after, soon, word};
use crate::store::{Answered, Found, JobVersion, Lane, VersionState, Word};
use crate::time::UnixMs;

#[tokio::test]
async fn each_state_is_amended_in_its_own_way() {
    for (state, answer) in [
        (State::Pending, "moved"),
        (State::Due, "moved"),
        (State::Retrying, "moved"),
        (State::Leased, "succeeds"),
        (State::Lapsed, "succeeds"),
        (State::LeasedNext, "successor"),
    ] {
        let bench = Bench::new().await;
        bench.bring("job", state).await;
        let mut item = bench.amendment("job", after(HOUR)).await;
        item.header = r#"{"v":1,"attempts":3}"#.into();
        let mut lane = Lane::new();
        let items = [item];
        let answered = bench.ledger.amend(&mut lane, &items, soon()).await.unwrap();
        assert_eq!(word(answered[0].answer), answer, "{state:?}");
        let record = match bench.ledger.get("job", soon()).await.unwrap() {
            Found::Pending { record, .. } => record,
            Found::Leased { successor, .. } => successor,
            other => panic!("{other:?}"),
        };
        let text = String::from_utf8(record).unwrap();
        assert!(text.contains(r#""attempts":3"#), "{state:?}: {text}");
        assert_eq!(text.contains("updated@"), answer != "succeeds", "{text}");
        bench.balanced().await;
    }
}

#[tokio::test]
async fn a_job_that_has_changed_since_it_was_seen_stays_as_it_is() {
    let bench = Bench::new().await;
    for state in [State::Pending, State::Leased, State::LeasedNext] {
        bench.bring(&state.id(), state).await;
    }
    let send = async |item: &_| {
        let mut lane = Lane::new();
        let items = std::slice::from_ref(item);
        bench.ledger.amend(&mut lane, items, soon()).await.unwrap()[0]
    };
    let changed = Answered::of(Word::Changed);
    for id in ["Pending", "Leased", "LeasedNext"] {
        let item = bench.amendment(id, after(HOUR)).await;
        for state in [
            VersionState::Pending,
            VersionState::Leased,
            VersionState::Successor,
        ] {
            if state != item.seen.state {
                let mut other = item.clone();
                other.seen.state = state;
                assert_eq!(send(&other).await, changed, "{id} seen as {state:?}");
            }
        }
        let mut other = item.clone();
        other.seen.opening = Bytes::from_static(b"{\"v\":1}\n7\n");
        assert_eq!(send(&other).await, changed, "{id} with another record");
        let now = bench.amendment(id, after(HOUR)).await;
        assert_eq!(now.seen.opening, item.seen.opening, "{id}");
    }
    // The job of a lease has the record that it had while it was pending.
    let pending = bench.amendment("Pending", after(HOUR)).await;
    bench
        .reschedule("Pending", after(std::time::Duration::ZERO))
        .await;
    assert_eq!(send(&pending).await, changed, "it was fired");
    // A payload that was changed counts, although the header is the same.
    let item = bench.amendment("Leased", after(HOUR)).await;
    let update = [bench.update("Leased", b"new")];
    let mut lane = Lane::new();
    bench
        .ledger
        .update(&mut lane, &update, soon())
        .await
        .unwrap();
    assert_eq!(send(&item).await, changed);
    bench.balanced().await;
}

#[tokio::test]
async fn a_cancelled_run_is_not_followed_by_an_amended_job() {
    let bench = Bench::new().await;
    bench.bring("job", State::Leased).await;
    let items = [bench.amendment("job", after(HOUR)).await];
    assert_eq!(bench.cancel("job").await, Word::Running);
    let mut lane = Lane::new();
    let answered = bench.ledger.amend(&mut lane, &items, soon()).await.unwrap();
    assert_eq!(answered[0], Answered::of(Word::Absent));
    assert_eq!(bench.field(&bench.names().next, "job").await, None);
    // A job that is scheduled after the cancel runs.
    assert!(matches!(
        bench.schedule("job", after(HOUR)).await,
        Word::Succeeds(_)
    ));
    let items = [bench.amendment("job", after(HOUR)).await];
    let answered = bench.ledger.amend(&mut lane, &items, soon()).await.unwrap();
    assert_eq!(word(answered[0].answer), "successor");
    bench.balanced().await;
}

#[test]
fn what_was_seen_is_the_record_up_to_its_payload() {
    let record = b"{\"v\":1}\n7 fired@8\nline\nline".to_vec();
    let seen = JobVersion::of(&Found::Pending {
        due: UnixMs(9),
        record,
    });
    let seen = seen.unwrap();
    assert_eq!(seen.state, VersionState::Pending);
    assert_eq!(&seen.opening[..], b"{\"v\":1}\n7 fired@8\n");
    assert!(JobVersion::of(&Found::Absent).is_none());
}
