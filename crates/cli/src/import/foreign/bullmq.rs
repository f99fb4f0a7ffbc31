//! A job of BullMQ: a hash, with its payload as JSON.

use super::{Naming, Pending, utf8};
use crate::import::Fault;
use crate::import::entry::Entry;
use crate::import::layout::{Unit, due};

pub(super) const FIELDS: &[&str] = &["name", "data", "rjk", "parentKey"];

/// A score is the due time in milliseconds, times this, and a number that keeps jobs in order.
const STEPS: f64 = 4096.0;

pub(super) fn entry(
    naming: &Naming,
    member: &[u8],
    score: f64,
    fields: &[Option<Vec<u8>>],
) -> Option<Result<Entry, Fault>> {
    let [name, data, scheduler, parent] = fields else {
        return None;
    };
    // It ran between two reads.
    let (Some(name), Some(data)) = (name, data) else {
        return None;
    };
    if scheduler.is_some() {
        let reason = "belong to a job scheduler: make a recurring job in its place";
        return Some(Err(Fault::LeftOut(reason.to_owned())));
    }
    if parent.is_some() {
        let reason = "belong to a flow, whose parent waits for them";
        return Some(Err(Fault::LeftOut(reason.to_owned())));
    }
    let read = || {
        naming.entry(&Pending {
            id: utf8(member)?,
            name: utf8(name)?,
            due: due((score / STEPS).floor(), Unit::Ms)?,
            payload: data,
        })
    };
    Some(read())
}
