//! Scheduling in bulk, to fill ledgers with jobs.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use keyfall::NewJob;

use super::bar::Bar;
use super::ground::{self, Ground};

/// Jobs in one call; it bounds the memory of this process for jobs without an answer.
const CHUNK: usize = 10_000;

/// The delay of jobs that only wait.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// A payload of this length.
pub(super) fn payload(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

/// Schedules the jobs with these numbers; `due` gives the due time of each.
pub(super) async fn schedule(
    ground: &Ground,
    kind: &str,
    payload: &Bytes,
    numbers: Range<usize>,
    due: impl Fn(usize) -> SystemTime,
    bar: &Bar,
) -> anyhow::Result<()> {
    let job = |number| {
        let job = NewJob::from_bytes(ground::key(kind, number), payload.clone());
        job.at(due(number))
    };
    schedule_jobs(ground, numbers, job, bar).await
}

/// Schedules a job for each of these numbers.
pub(super) async fn schedule_jobs(
    ground: &Ground,
    numbers: Range<usize>,
    job: impl Fn(usize) -> NewJob,
    bar: &Bar,
) -> anyhow::Result<()> {
    let mut next = numbers.start;
    while next < numbers.end {
        let chunk = next..numbers.end.min(next + CHUNK);
        next = chunk.end;
        let size = chunk.len();
        for answer in ground.client.schedule_many(chunk.map(&job)).await {
            answer?;
        }
        bar.advance(size);
    }
    Ok(())
}

/// Schedules the jobs with these numbers for an hour from now, by the clock of Redis.
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
