//! Gauges with values that only Redis knows: the number of jobs in each state, and the live
//! instances.
//!
//! No process keeps them up to date; [`sample`] reads Redis and sets them.

#[cfg(feature = "worker")]
use std::collections::HashMap;

use ::metrics::{counter, gauge};
use futures_util::stream::{self, StreamExt};

#[cfg(feature = "worker")]
use super::described::show_those_of_a_kind;
use super::described::show_those_of_the_process;
use crate::client::{Client, Kinds, Stats, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;

/// How many kinds are read at the same time.
const AT_ONCE: usize = 32;

/// Sets the gauges from the present contents of Redis, with one or two calls for each kind that was
/// ever used.
///
/// Call it each time before the gauges are read, or every few seconds. Several processes may do so.
/// It needs the rights of a worker, which `acl.conf` lists.
///
/// # Errors
/// If Redis does not answer in time, if it refuses a ledger, or if one of several servers is away.
/// Gauges that could be read are set all the same; the others keep their values. The counter
/// `keyfall_samples_failed_total` grows by one.
pub async fn sample(client: &Client) -> Result<()> {
    let sampled = sample_all(client).await;
    show_those_of_the_process();
    counter!("keyfall_samples_failed_total").increment(sampled.is_err().into());
    sampled
}

/// Reads all kinds, then the instances. The first error is returned when all else is set.
async fn sample_all(client: &Client) -> Result<()> {
    let Kinds { kinds, unseen } = client.kinds().await?;
    #[cfg(feature = "worker")]
    kinds.iter().for_each(show_those_of_a_kind);
    let counted = stream::iter(kinds.clone()).map(async |kind| {
        let stats = client.stats(kind.as_str()).await?;
        // A sum over some of the servers would look as if jobs had gone.
        is_whole(&stats.unseen)?;
        set(&kind, &stats);
        Ok(())
    });
    // One ledger that cannot be read does not hide the others.
    let counted: Vec<Result<()>> = counted.buffer_unordered(AT_ONCE).collect().await;
    #[cfg(feature = "worker")]
    sample_instances(client, &kinds).await?;
    counted.into_iter().collect::<Result<()>>()?;
    is_whole(&unseen)
}

/// # Errors
/// [`ErrorKind::Unavailable`] if one of several servers was away, with its address and its error.
fn is_whole(unseen: &[Unseen]) -> Result<()> {
    let Some(Unseen { server, error, .. }) = unseen.first() else {
        return Ok(());
    };
    let what = format!("{server} was unavailable: {error}");
    Err(Error::new(ErrorKind::Unavailable, what))
}

/// Sets the gauges of one kind, and the two counters that Redis keeps.
fn set(kind: &Kind, stats: &Stats) {
    let unaccounted = stats.difference().unsigned_abs();
    let letters = stats.letters_difference().unsigned_abs();
    for (name, value) in [
        ("keyfall_pending", stats.pending as f64),
        ("keyfall_overdue", stats.overdue as f64),
        ("keyfall_held", stats.held as f64),
        ("keyfall_leased", stats.leased as f64),
        ("keyfall_dead_letters", stats.dead as f64),
        (
            "keyfall_oldest_overdue_seconds",
            stats.overdue_for.as_secs_f64(),
        ),
        ("keyfall_paused", f64::from(u8::from(stats.paused))),
        ("keyfall_unbalanced", (unaccounted + letters) as f64),
    ] {
        gauge!(name, "kind" => kind.to_string()).set(value);
    }
    for (name, value) in [
        ("keyfall_leases_lapsed_total", stats.lapsed),
        ("keyfall_dead_letters_trimmed_total", stats.trimmed),
    ] {
        counter!(name, "kind" => kind.to_string()).absolute(value);
    }
}

/// Sets the number of live instances, and for each kind the number of jobs that none of them has a
/// route for. Kinds with shards on a server that is away keep their values.
#[cfg(feature = "worker")]
async fn sample_instances(client: &Client, kinds: &[Kind]) -> Result<()> {
    let live = client.instances().await?;
    for hears in [true, false] {
        let number = live.iter().filter(|one| one.hears_events == hears).count();
        gauge!("keyfall_instances", "hears_events" => hears.to_string()).set(number as f64);
    }
    let unrouted = client.unrouted().await?;
    let unseen = unrouted.unseen.clone();
    let unrouted: HashMap<&str, u64> = unrouted
        .iter()
        .map(|it| (it.kind.as_str(), it.jobs))
        .collect();
    let is_seen = |kind: &&Kind| {
        let mut shards = unseen.iter().flat_map(|one| &one.shards);
        !shards.any(|(of, _)| of == *kind)
    };
    for kind in kinds.iter().filter(is_seen) {
        let jobs = unrouted.get(kind.as_str()).copied().unwrap_or_default();
        gauge!("keyfall_unrouted", "kind" => kind.to_string()).set(jobs as f64);
    }
    Ok(())
}
