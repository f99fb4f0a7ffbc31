//! Jobs, scheduled in bulk.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use keyfall::NewJob;

use super::bar::Bar;
use super::ground::Ground;

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
        let jobs = chunk
            .map(|number| NewJob::from_bytes(ground.key(number), payload.clone()).at(due(number)));
        for answer in ground.client.schedule_many(jobs).await {
            answer?;
        }
        bar.advance(size);
    }
    Ok(())
}

/// Schedules so many for an hour from now, beside those that are measured: their numbers begin
/// with `first`.
pub(super) async fn pend(
    ground: &Ground,
    payload: &Bytes,
    first: usize,
    count: usize,
    bar: &Bar,
) -> anyhow::Result<()> {
    if count == 0 {
        return Ok(());
    }
    bar.begin("filling", count);
    let due = ground.time().await?.server + HOUR;
    schedule(ground, payload, first..first + count, |_| due, bar).await
}
