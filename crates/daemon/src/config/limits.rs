//! The limits of a file: `[[limit]]`.

use std::num::NonZeroU32;

use keyfall::{Client, Kind, Limit};

use super::fault::{Faults, Wrong};
use super::file::{Entry, File};

/// All fields of a limit.
const FIELDS: [&str; 4] = ["kind", "rate", "burst", "concurrency"];

/// A limit of a kind, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitConfig {
    pub kind: Kind,
    pub limit: Limit,
}

/// Declares the limits of the file. A limit that somebody has set since its entry was declared stays
/// until the entry changes.
///
/// # Errors
/// If a kind has more shards than its limit can be split over, or Redis does not carry it out.
pub async fn declare_limits(client: &Client, limits: &[LimitConfig]) -> keyfall::Result<()> {
    for LimitConfig { kind, limit } in limits {
        client.limit(kind.as_str(), *limit).declared().await?;
    }
    Ok(())
}

/// The limits of the file, in its order.
pub(super) fn read(file: &File<'_>, faults: &mut Faults) -> Vec<LimitConfig> {
    let mut limits: Vec<LimitConfig> = Vec::new();
    for entry in file.limits() {
        let Some(one) = one(&entry, faults) else {
            continue;
        };
        if limits.iter().any(|other| other.kind == one.kind) {
            let wrong = Wrong::new("another entry has this kind", "leave one of them out");
            entry.fault("kind", wrong, faults);
            continue;
        }
        limits.push(one);
    }
    limits
}

fn one(entry: &Entry<'_>, faults: &mut Faults) -> Option<LimitConfig> {
    entry.find_strangers(&FIELDS, faults);
    let kind = match entry.value::<String>("kind", &[], faults) {
        None => {
            if entry.raw("kind").is_none() {
                let remedy = "write `kind = \"app:module:biz\"`";
                let wrong = Wrong::new("the kind is missing", remedy);
                entry.fault("kind", wrong, faults);
            }
            None
        }
        Some(text) => Kind::parse(&text)
            .map_err(|error| entry.fault("kind", Wrong(error.to_string()), faults))
            .ok(),
    };
    let mut limit = Some(Limit::new());
    if let Some(text) = entry.value::<String>("rate", &[], faults) {
        limit = Limit::new()
            .parse_rate(&text)
            .map_err(|error| entry.fault("rate", Wrong(error.to_string()), faults))
            .ok();
    }
    if let Some(burst) = entry.value::<NonZeroU32>("burst", &[], faults) {
        limit = limit.map(|limit| limit.burst(burst.get()));
    }
    if let Some(jobs) = entry.value::<NonZeroU32>("concurrency", &[], faults) {
        limit = limit.map(|limit| limit.concurrency(jobs.get()));
    }
    let limit = limit?;
    if let Err(error) = limit.check() {
        let field = FIELDS.into_iter().find(|field| {
            let named = format!("`{field}`");
            entry.raw(field).is_some() && error.to_string().contains(&named)
        });
        entry.fault(field.unwrap_or("rate"), Wrong(error.to_string()), faults);
        return None;
    }
    Some(LimitConfig { kind: kind?, limit })
}
