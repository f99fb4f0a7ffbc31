//! A job of Sidekiq: a JSON object, which is the member itself.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Naming, Pending};
use crate::import::Fault;
use crate::import::entry::Entry;
use crate::import::layout::{Unit, due};

#[derive(Deserialize)]
struct Record<'a> {
    class: String,
    /// The class of a job of Active Job, whose own class is an adapter.
    wrapped: Option<String>,
    jid: String,
    #[serde(default)]
    queue: String,
    #[serde(borrow)]
    args: &'a RawValue,
}

pub(super) fn entry(
    naming: &Naming,
    queue: Option<&str>,
    member: &[u8],
    score: f64,
) -> Result<Entry, Fault> {
    let record: Record<'_> = serde_json::from_slice(member)
        .map_err(|error| format!("it is not a job of Sidekiq: {error}"))?;
    if queue.is_some_and(|queue| queue != record.queue) {
        return Err(Fault::LeftOut("are of other queues".to_owned()));
    }
    naming.entry(&Pending {
        id: &record.jid,
        name: record.wrapped.as_deref().unwrap_or(&record.class),
        due: due(score, Unit::S)?,
        payload: record.args.get().as_bytes(),
    })
}
