//! The phase `heartbeats`: the cost of `EXPIRE` on keys that a route adopts, compared with the same
//! without listeners and with calls that reschedule a job; and the delay until a silent key is
//! noticed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::ensure;
use futures_util::{StreamExt, TryStreamExt, stream};
use keyfall::JobState;
use tokio::time::{interval, sleep};

use super::args::Options;
use super::bar::Bar;
use super::cost::{Cost, Meter};
use super::crew::{Crew, PATIENCE};
use super::figures::Figures;
use super::ground::{self, Ground, Moment};
use super::schedule::from_many_tasks;
use super::stock::{self, HOUR};

/// Heartbeats in one round trip, where they are sent as fast as possible.
const BATCH: usize = 256;
/// Simultaneous round trips, where heartbeats are sent as fast as possible.
const IN_FLIGHT: usize = 4;

/// The interval between sends of heartbeats at a fixed rate.
const TICK: Duration = Duration::from_millis(5);

/// One key in this many falls silent.
const SILENT: usize = 100;

/// The time from setting the silent keys to the first expiry.
const LEAD: Duration = Duration::from_secs(3);

/// Measures heartbeats without listeners, calls that reschedule, and heartbeats with workers, each
/// at full speed and at a fixed rate, and the silence of some keys.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let keys = 0..options.jobs;
    set(ground, options, keys.clone(), bar).await?;

    let meter = Meter::start(ground).await?;
    beat_at_once(ground, keys.clone(), bar).await?;
    let plain = meter.read(keys.len()).await?;
    let meter = Meter::start(ground).await?;
    beat_in_time(ground, options, bar).await?;
    let plain_paced = meter.read(keys.len()).await?;
    let rescheduled = reschedule(ground, options, bar).await?;

    let silent = keys.end..keys.end + keys.len().div_ceil(SILENT);
    let mut crew = Crew::adopting(ground, options, silent.len()).await?;
    adopted(ground, keys.len(), &mut crew).await?;

    let (began, meter) = (ground.time().await?, Meter::start(ground).await?);
    beat_in_time(ground, options, bar).await?;
    caught_up(ground, began, &mut crew).await?;
    let paced = meter.read(keys.len()).await?;

    set(ground, options, silent.clone(), bar).await?;
    adopted(ground, silent.end, &mut crew).await?;
    let start = ground.time().await?.plus(LEAD);
    fall_silent(ground, silent.clone(), start, options.window).await?;
    beat_in_time(ground, options, bar).await?;
    let last = start.here + options.window;
    crew.finish(ground, last, bar).await?;

    // At the end, because workers search for keys when too many beat at once.
    let (began, meter) = (ground.time().await?, Meter::start(ground).await?);
    beat_at_once(ground, keys.clone(), bar).await?;
    caught_up(ground, began, &mut crew).await?;
    let heard = meter.read(keys.len()).await?;
    let mut lags = crew.stop().await?.lags;
    let false_alarms = lags.len() - silent.len();

    figures.note("heartbeats.plain.per_s", plain.per_s);
    figures.note("heartbeats.plain.redis_cpu_us", plain.redis_us);
    figures.note("heartbeats.per_s", heard.per_s);
    figures.note("heartbeats.redis_cpu_us", heard.redis_us);
    figures.note("heartbeats.cpu_ratio", heard.redis_us / plain.redis_us);
    // The heartbeats come from the same process, so their own cost is subtracted.
    let worker = |heard: &Cost, plain: &Cost| (heard.here_us - plain.here_us).max(0.0);
    figures.note("heartbeats.worker_cpu_us", worker(&heard, &plain));
    figures.note("heartbeats.commands", heard.commands);
    figures.note("heartbeats.bytes", heard.bytes_in + heard.bytes_out);
    figures.note("heartbeats.reschedule.per_s", rescheduled.per_s);
    figures.note("heartbeats.reschedule.redis_cpu_us", rescheduled.redis_us);
    figures.note("heartbeats.plain.paced_redis_cpu_us", plain_paced.redis_us);
    figures.note("heartbeats.paced.redis_cpu_us", paced.redis_us);
    figures.note(
        "heartbeats.paced.worker_cpu_us",
        worker(&paced, &plain_paced),
    );
    figures.note("heartbeats.paced.commands", paced.commands);
    figures.note("heartbeats.paced.bytes", paced.bytes_in + paced.bytes_out);
    figures.note_lateness(SILENCE, &mut lags);
    figures.note("heartbeats.false_alarms", false_alarms as f64);
    Ok(())
}

/// The figures of the percentiles of silence.
const SILENCE: [&str; 5] = [
    "heartbeats.silent_ms.p50",
    "heartbeats.silent_ms.p90",
    "heartbeats.silent_ms.p99",
    "heartbeats.silent_ms.p999",
    "heartbeats.silent_ms.max",
];

/// Waits until the ledger knows all heartbeats since `began`: no job of it is due sooner than an
/// hour after that.
async fn caught_up(ground: &Ground, began: Moment, crew: &mut Crew) -> anyhow::Result<()> {
    let (kind, began) = (ground.kind(), began.server + HOUR);
    let until = Instant::now() + PATIENCE;
    loop {
        let soonest = ground.client.list(&kind, JobState::Pending).limit(1);
        let soonest = soonest.await?.jobs.pop().map(|job| job.due());
        // Due times are whole milliseconds.
        if soonest.is_some_and(|due| due + Duration::from_millis(1) > began) {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "beats are not heard within {PATIENCE:?}"
        );
        tokio::select! {
            error = crew.failed() => return Err(error),
            () = sleep(TICK) => {}
        }
    }
}

/// Sets these keys for the first time, as programs with heartbeats do.
async fn set(
    ground: &Ground,
    options: &Options,
    numbers: Range<usize>,
    bar: &Bar,
) -> anyhow::Result<()> {
    bar.begin("setting", numbers.len());
    let payload = &stock::payload(options.payload)[..];
    let write = |pipe: &mut redis::Pipeline, key: String| {
        let set = pipe.cmd("SET").arg(key).arg(payload);
        set.arg("EX").arg(HOUR.as_secs()).ignore();
    };
    for_each(ground, numbers, write, bar).await
}

/// Sends one heartbeat for each of these keys, as fast as the server answers.
async fn beat_at_once(ground: &Ground, numbers: Range<usize>, bar: &Bar) -> anyhow::Result<()> {
    bar.begin("beating", numbers.len());
    for_each(ground, numbers, beat, bar).await
}

/// Adds one heartbeat to a pipeline.
fn beat(pipe: &mut redis::Pipeline, key: String) {
    pipe.cmd("EXPIRE").arg(key).arg(HOUR.as_secs()).ignore();
}

/// Sends a command for each of these keys, a batch in each round trip.
async fn for_each(
    ground: &Ground,
    numbers: Range<usize>,
    command: impl Fn(&mut redis::Pipeline, String),
    bar: &Bar,
) -> anyhow::Result<()> {
    let batches = numbers.clone().step_by(BATCH).map(|first| {
        let batch = first..numbers.end.min(first + BATCH);
        let size = batch.len();
        let pipes = by_node(ground, batch, |pipe, key, _| command(pipe, key));
        async move {
            send(ground, pipes).await?;
            bar.advance(size);
            anyhow::Ok(())
        }
    });
    let sent = stream::iter(batches).buffer_unordered(IN_FLIGHT);
    sent.try_collect().await
}

/// The pipelines with a command for each of these keys, by the index of the server that has the
/// key. `command` also receives the position of the key in `numbers`.
fn by_node(
    ground: &Ground,
    numbers: Range<usize>,
    command: impl Fn(&mut redis::Pipeline, String, usize),
) -> BTreeMap<usize, redis::Pipeline> {
    let mut pipes = BTreeMap::new();
    for (place, number) in numbers.enumerate() {
        let key = ground.key(number);
        let node = ground.nodes.place_of(&key);
        command(pipes.entry(node).or_default(), key, place);
    }
    pipes
}

/// Sends each pipeline to its server.
async fn send(ground: &Ground, pipes: BTreeMap<usize, redis::Pipeline>) -> anyhow::Result<()> {
    for (node, pipe) in pipes {
        let () = pipe
            .query_async(&mut ground.nodes.all()[node].redis())
            .await?;
    }
    Ok(())
}

/// Sends one heartbeat for each key, evenly over the window.
async fn beat_in_time(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<()> {
    bar.begin("beating", options.jobs);
    let (began, mut sent) = (Instant::now(), 0);
    let mut ticks = interval(TICK);
    while sent < options.jobs {
        ticks.tick().await;
        let share = began.elapsed().as_secs_f64() / options.window.as_secs_f64();
        let now = (options.jobs as f64 * share).min(options.jobs as f64) as usize;
        if now > sent {
            for_each(ground, sent..now, beat, bar).await?;
            sent = now;
        }
    }
    Ok(())
}

/// Makes these keys expire one after the other, evenly over the window.
async fn fall_silent(
    ground: &Ground,
    numbers: Range<usize>,
    start: Moment,
    window: Duration,
) -> anyhow::Result<()> {
    let count = numbers.len() as f64;
    let start = start.server.duration_since(UNIX_EPOCH)?;
    let expire = |pipe: &mut redis::Pipeline, key: String, place: usize| {
        let at = start + window.mul_f64(place as f64 / count);
        let expire = pipe.cmd("PEXPIREAT").arg(key);
        expire.arg(at.as_millis() as u64).ignore();
    };
    send(ground, by_node(ground, numbers, expire)).await
}

/// Waits until `count` keys are jobs.
async fn adopted(ground: &Ground, count: usize, crew: &mut Crew) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while ground.client.stats(&ground.kind()).await?.pending < count as u64 {
        ensure!(
            Instant::now() < until,
            "keys are not adopted within {PATIENCE:?}"
        );
        tokio::select! {
            error = crew.failed() => return Err(error),
            () = sleep(TICK) => {}
        }
    }
    Ok(())
}

/// Schedules the same number of jobs of another kind, and measures calls that reschedule one job
/// each, from many tasks.
async fn reschedule(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<Cost> {
    let kind = format!("{}-by-call", ground.kind());
    let payload = stock::payload(options.payload);
    stock::pend(ground, &kind, &payload, 0..options.jobs, bar).await?;
    let client = ground.client.clone();
    let call = move |number| {
        let (client, key) = (client.clone(), ground::key(&kind, number));
        async move {
            client.reschedule(key).after(HOUR).await?;
            anyhow::Ok(())
        }
    };
    let meter = Meter::start(ground).await?;
    from_many_tasks(0..options.jobs, call, bar).await?;
    meter.read(options.jobs).await
}
