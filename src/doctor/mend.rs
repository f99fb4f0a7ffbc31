//! Repairs on request. Only settings are repaired whose change does no harm to other users of the
//! server.

use super::checks::{NOTIFY_FLAGS, PUBSUB_BUFFER};
use super::diagnose::PATIENCE;
use super::events;
use super::finding::Finding;
use crate::error::Result;
use crate::store::{Announced, ServerReport, Store, WantedEvents};
use std::time::Instant;

/// Repairs the findings that can be repaired. Returns the id of each such check, with the change or
/// the error of Redis.
pub(super) async fn mend<'a>(
    store: &Store,
    vitals: &ServerReport,
    wanted: WantedEvents,
    found: impl Iterator<Item = &'a Finding>,
) -> Vec<(&'static str, Result<String>)> {
    let mut done = Vec::new();
    for finding in found.filter(|it| it.is_fixable()) {
        let id = finding.check.id;
        let what = if id == NOTIFY_FLAGS.id {
            flags(store, wanted).await
        } else {
            debug_assert_eq!(id, PUBSUB_BUFFER.id);
            buffer(store, vitals).await
        };
        done.push((id, what));
    }
    done
}

/// Adds the missing notification flags, as each worker does when it starts.
async fn flags(store: &Store, wanted: WantedEvents) -> Result<String> {
    match store.announce(wanted, Instant::now() + PATIENCE).await {
        Announced::Already => Ok("another process has just set these flags".to_owned()),
        Announced::FromNow { was, set } => Ok(format!(
            "merged {} into \"{was}\", which gives \"{set}\"; {}",
            wanted.flags(),
            lasting(&format!("notify-keyspace-events {set}"))
        )),
        Announced::Never { error, .. }
        | Announced::Unknown(error)
        | Announced::Unanswered(error) => Err(error),
    }
}

/// Raises the output buffer of subscribers with `CONFIG SET`, and leaves the buffers of other
/// clients alone.
async fn buffer(store: &Store, vitals: &ServerReport) -> Result<String> {
    let name = "client-output-buffer-limit";
    let was = vitals.setting(name).unwrap_or_default();
    let value = events::raised(was).unwrap_or_default();
    store.set(name, &value, Instant::now() + PATIENCE).await?;
    Ok(format!(
        "raised to {value}; {}",
        lasting(&format!("{name} {value}"))
    ))
}

/// The advice how to make a setting outlast a restart of Redis.
fn lasting(line: &str) -> String {
    format!("until Redis restarts: put `{line}` into redis.conf, or call CONFIG REWRITE")
}
