//! How many jobs there are, which only Redis knows.

use ::metrics::{counter, gauge};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::client::Client;
use crate::error::Result;

/// How many kinds are counted at the same time.
const AT_ONCE: usize = 32;

/// Sets the gauges from what Redis holds now, one call for each kind that was ever used. Call it
/// before each time that they are read, or every some seconds, in one process or in several.
///
/// # Errors
/// If Redis does not answer in time: the gauges that were not set stay what they were.
pub async fn sample(client: &Client) -> Result<()> {
    let sampled = sample_all(client).await;
    counter!("keyfall_samples_failed_total").increment(sampled.is_err().into());
    sampled
}

async fn sample_all(client: &Client) -> Result<()> {
    let kinds = client.kinds().await?;
    stream::iter(kinds)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, async |kind| {
            let stats = client.stats(kind.as_str()).await?;
            let kind = kind.to_string();
            let unaccounted = stats.difference().unsigned_abs();
            let letters = stats.letters_difference().unsigned_abs();
            for (name, value) in [
                ("keyfall_pending", stats.pending as f64),
                ("keyfall_overdue", stats.overdue as f64),
                ("keyfall_leased", stats.leased as f64),
                ("keyfall_dead", stats.dead as f64),
                (
                    "keyfall_oldest_overdue_seconds",
                    stats.overdue_for.as_secs_f64(),
                ),
                ("keyfall_unbalanced", (unaccounted + letters) as f64),
            ] {
                gauge!(name, "kind" => kind.clone()).set(value);
            }
            Ok(())
        })
        .await
}
