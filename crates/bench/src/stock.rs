//! Jobs, scheduled in bulk.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use keyfall::NewJob;

use super::bar::Bar;
use super::ground::{self, Ground};

/// How many jobs one call schedules. What they take here until they are answered is bounded.
const CHUNK: usize = 10_000;

/// When those are due that are only to be there.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// What each job carries.
pub(super) fn payload(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

/// Schedules these, each due when `due` says.
pub(super) async fn schedule(
    ground: &Ground,
    kind: &str,
    payload: &Bytes,
    numbers: Range<usize>,
    due: impl Fn(usize) -> SystemTime,
    bar: &Bar,
) -> anyhow::Result<()> {
    let mut next = numbers.start;
    while next < numbers.end {
        let chunk = next..numbers.end.min(next + CHUNK);
        next = chunk.end;
        let size = chunk.len();
        let job = |number| {
            let job = NewJob::from_bytes(ground::key(kind, number), payload.clone());
            job.at(due(number))
        };
        for answer in ground.client.schedule_many(chunk.map(job)).await {
            answer?;
        }
        bar.advance(size);
    }
    Ok(())
}

/// Schedules these for an hour from now.
pub(super) async fn pend(
    ground: &Ground,
    kind: &str,
    payload: &Bytes,
    numbers: Range<usize>,
    bar: &Bar,
) -> anyhow::Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    bar.begin("filling", numbers.len());
    let due = ground.time().await?.server + HOUR;
    schedule(ground, kind, payload, numbers, |_| due, bar).await
}
