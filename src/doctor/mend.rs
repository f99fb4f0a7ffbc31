//! Repairs on request. Only settings are repaired whose change does no harm to other users of the
//! server.

use super::checks::{NOTIFY_FLAGS, PUBSUB_BUFFER};
use super::diagnose::PATIENCE;
use super::events;
use super::finding::Finding;
use crate::error::Result;
use crate::phrase::Phrase;
use crate::store::{Announced, ServerReport, Store, WantedEvents};
use std::time::Instant;

/// Repairs the findings that can be repaired. Returns the id of each such check, with the change or
/// the error of Redis.
pub(super) async fn mend<'a>(
    store: &Store,
    vitals: &ServerReport,
    wanted: WantedEvents,
    found: impl Iterator<Item = &'a Finding>,
) -> Vec<(&'static str, Result<Phrase>)> {
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
async fn flags(store: &Store, wanted: WantedEvents) -> Result<Phrase> {
    match store.announce(wanted, Instant::now() + PATIENCE).await {
        Announced::Already => Ok(Phrase::new(
            "fixed.already",
            "another process has just set these flags",
            [],
        )),
        Announced::FromNow { was, set } => Ok(Phrase::new(
            "fixed.flags",
            "merged {} into \"{}\", which gives \"{}\"; {}",
            [
                wanted.flags().into(),
                was.into(),
                (&set).into(),
                lasting(format!("notify-keyspace-events {set}")),
            ],
        )),
        Announced::Never { error, .. }
        | Announced::Unknown(error)
        | Announced::Unanswered(error) => Err(error),
    }
}

/// Raises the output buffer of subscribers with `CONFIG SET`, and leaves the buffers of other
/// clients alone.
async fn buffer(store: &Store, vitals: &ServerReport) -> Result<Phrase> {
    let name = "client-output-buffer-limit";
    let was = vitals.setting(name).unwrap_or_default();
    let value = events::raised(was).unwrap_or_default();
    store.set(name, &value, Instant::now() + PATIENCE).await?;
    Ok(Phrase::new(
        "fixed.buffer",
        "raised to {}; {}",
        [(&value).into(), lasting(format!("{name} {value}"))],
    ))
}

/// The advice how to make a setting outlast a restart of Redis.
fn lasting(line: String) -> Phrase {
    Phrase::new(
        "fixed.lasting",
        "until Redis restarts: put `{}` into redis.conf, or call CONFIG REWRITE",
        [line.into()],
    )
}
