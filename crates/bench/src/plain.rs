//! The phase `plain`: the lateness workload in the plain form of tutorials, `SET` with a TTL and a
//! listener on `expired` events.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout_at;

use super::args::Options;
use super::bar::Bar;
use super::figures::Figures;
use super::ground::{self, Ground};
use super::histogram::Histogram;
use super::lateness::{due_after, lead, warn_if_late};
use super::stock::{self, HOUR};

/// An event that has not come this long after the window counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keys that one round trip sets.
const CHUNK: usize = 10_000;

/// The figures of the percentiles of lateness in the plain form.
const LATENESS: [&str; 5] = [
    "plain.lateness_ms.p50",
    "plain.lateness_ms.p90",
    "plain.lateness_ms.p99",
    "plain.lateness_ms.p999",
    "plain.lateness_ms.max",
];

/// Measures the lateness of events. It needs a private server, whose settings make it publish
/// `expired` events.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let mut events = ground.expired_events().await?;
    let in_an_hour = ground.time().await?.server + HOUR;
    let pending = (0..options.beside()).map(|number| (options.jobs + number, in_an_hour));
    bar.begin("filling", options.beside());
    set(ground, &payload, pending, bar).await?;

    let start = ground.time().await?.plus(lead(options.jobs));
    let jobs = (0..options.jobs).map(|job| (job, start.server + due_after(job, options)));
    bar.begin("setting", options.jobs);
    set(ground, &payload, jobs, bar).await?;
    warn_if_late(start, bar);

    bar.begin("listening", options.jobs);
    let end = (start.here + options.window + PATIENCE).into();
    let mut lags = Vec::with_capacity(options.jobs);
    while lags.len() < options.jobs {
        let Ok(event) = timeout_at(end, events.next()).await else {
            break;
        };
        let event = event.context("the server broke off the subscription")?;
        let heard = Instant::now();
        let key: String = event.get_payload()?;
        let number = ground::number(&key).context("an unknown key")?;
        let due = start.here + due_after(number, options);
        lags.push(heard.saturating_duration_since(due));
        bar.advance(1);
    }
    figures.note("plain.lost", (options.jobs - lags.len()) as f64);
    figures.note_lateness(LATENESS, &mut lags);
    figures.plain_lateness.merge(&Histogram::of(&lags));
    Ok(())
}

/// Sets these keys, each with its time of expiry.
async fn set(
    ground: &Ground,
    payload: &Bytes,
    keys: impl Iterator<Item = (usize, SystemTime)>,
    bar: &Bar,
) -> anyhow::Result<()> {
    let (kind, mut redis) = (ground.kind(), ground.redis());
    let mut keys = keys.peekable();
    while keys.peek().is_some() {
        let mut chunk = redis::pipe();
        for (number, expires) in keys.by_ref().take(CHUNK) {
            let at = expires.duration_since(UNIX_EPOCH)?.as_millis();
            let set = chunk.cmd("SET").arg(ground::key(&kind, number));
            set.arg(&**payload).arg("PXAT").arg(at.to_string()).ignore();
        }
        let () = chunk.query_async(&mut redis).await?;
        bar.advance(chunk.len());
    }
    Ok(())
}
