//! The rules for every numbered call.

use super::{Bench, soon};
use crate::ErrorKind;
use crate::error::Result;
use crate::store::{Answered, Lane};

/// Makes a call, and repeats it with the same number: the answer is the same, and nothing changes.
/// Then makes another call in the lane and sends the first call late: it is refused, and nothing
/// changes.
pub(in crate::store::tests) async fn same_when_repeated(
    bench: &Bench,
    call: impl AsyncFn(&mut Lane) -> Result<Vec<Answered>>,
) {
    let mut lane = Lane::new();
    let first = call(&mut lane).await.unwrap();
    let stored = bench.snapshot().await;
    let again = call(&mut lane.rewound(1)).await.unwrap();
    assert_eq!(again, first);
    assert_eq!(bench.snapshot().await, stored);

    let nobody = [bench.key("nobody")];
    bench
        .ledger
        .cancel(&mut lane, &nobody, soon())
        .await
        .unwrap();
    let stored = bench.snapshot().await;
    let late = call(&mut lane.rewound(1)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::OutcomeUnknown, "{late}");
    assert_eq!(bench.snapshot().await, stored);
}
