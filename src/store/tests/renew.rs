//! `renew.lua`: a lease runs on as long as its token holds.

use super::support::{Bench, HOUR, NEVER, State, foreign_tokens, soon, words};
use crate::store::{Answered, Extent};

use State::*;

async fn renew_all(bench: &Bench, jobs: &[(String, String)]) -> Vec<Answered> {
    let leases = jobs.iter().map(|(id, token)| (id.as_str(), token.as_str()));
    bench.renew(&leases.collect::<Vec<_>>()).await
}

#[tokio::test]
async fn it_revives_a_lapsed_lease_without_another_claim() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let answers = renew_all(&bench, &jobs).await;
    let table = [
        (Absent, "gone", Absent),
        (Pending, "gone", Pending),
        (Due, "gone", Due),
        // The job waits for a retry, and its token is from the lease that has ended.
        (Retrying, "gone", Retrying),
        (Leased, "renewed", Leased),
        (LeasedNext, "renewed", LeasedNext),
        (CancelledRun, "cancelled", CancelledRun),
        (CancelledRunNext, "cancelled", CancelledRunNext),
        (Lapsed, "renewed", Leased),
        (LapsedNext, "renewed", LeasedNext),
        (LapsedCancelled, "cancelled", CancelledRun),
        (LapsedCancelledNext, "cancelled", CancelledRunNext),
        (Dead, "gone", Dead),
    ];
    bench.hold_against(table, &answers).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_foreign_token_renews_nothing() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let stored = bench.snapshot().await;
    let table = State::ALL.map(|state| match state {
        Absent | Pending | Due | Retrying | Dead => (state, "gone", state),
        held => (held, "foreign", held),
    });
    for kind in 0..3 {
        let foreign =
            |(id, token): &(String, String)| (id.clone(), foreign_tokens(token)[kind].clone());
        let jobs: Vec<_> = jobs.iter().map(foreign).collect();
        let answers = renew_all(&bench, &jobs).await;
        bench.hold_against(table, &answers).await;
        assert_eq!(bench.snapshot().await, stored);
        bench.balanced().await;
    }
}

#[tokio::test]
async fn renew_writes_only_the_deadline() {
    let bench = Bench::new().await;
    let job = bench.lapse("job").await;
    let mut stored = bench.snapshot().await;
    let before = bench.now().await;
    let leases = [
        ("job", &*job.token),
        ("job", &*job.token),
        ("missing", NEVER),
    ];
    assert_eq!(
        words(&bench.renew(&leases).await),
        ["renewed", "renewed", "gone"]
    );
    let until = bench.now().await;
    let hour = u64::try_from(HOUR.as_millis()).unwrap();
    let deadline = bench.deadline("job").await;
    assert!((before + hour..=until + 1 + hour).contains(&deadline));
    let mut left = bench.snapshot().await;
    for all in [&mut stored, &mut left] {
        all.retain(|name, _| !name.contains(":leased "));
    }
    assert_eq!(left, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn a_late_shorter_renewal_does_not_shorten_a_lease_in_mode_longer() {
    let bench = Bench::new().await;
    let job = bench.run("job", HOUR).await;
    let renew = async |extent| {
        let leases = [("job".to_owned(), job.token.clone())];
        let answers = bench.ledger.renew(&leases, extent, soon()).await.unwrap().0;
        assert_eq!(words(&answers), ["renewed"]);
        bench.deadline("job").await
    };
    let long = renew(Extent::AtLeast(2 * HOUR)).await;
    assert_eq!(renew(Extent::AtLeast(HOUR)).await, long);
    assert!(renew(Extent::Exactly(HOUR)).await < long);
    assert!(renew(Extent::AtLeast(3 * HOUR)).await > long);
    bench.balanced().await;
}
