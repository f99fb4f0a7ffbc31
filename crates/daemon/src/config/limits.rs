//! The limits of a file: `[[limit]]`.

use std::num::NonZeroU32;

use keyfall::{Client, Limit, LimitScope};

use super::fault::{Faults, Wrong};
use super::file::{Entry, File};

/// All fields of a limit.
const FIELDS: [&str; 9] = [
    "kind",
    "rate",
    "burst",
    "concurrency",
    "per",
    "total_rate",
    "total_burst",
    "total_concurrency",
    "weights",
];

/// A limit of a kind or of a prefix of kinds, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitConfig {
    pub scope: LimitScope,
    pub limit: Limit,
}

/// Declares the limits of the file. A limit that somebody has set since its entry was declared stays
/// until the entry changes.
///
/// # Errors
/// If Redis does not carry it out.
pub async fn declare_limits(client: &Client, limits: &[LimitConfig]) -> keyfall::Result<()> {
    for LimitConfig { scope, limit } in limits {
        client
            .limit(scope.as_str(), limit.clone())
            .declared()
            .await?;
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
        if limits.iter().any(|other| other.scope == one.scope) {
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
    let scope = match entry.value::<String>("kind", &[], faults) {
        None => {
            if entry.raw("kind").is_none() {
                let remedy =
                    "write `kind = \"app:module:biz\"`, or a prefix, `kind = \"app:module:\"`";
                let wrong = Wrong::new("the kind is missing", remedy);
                entry.fault("kind", wrong, faults);
            }
            None
        }
        Some(text) => LimitScope::parse(&text)
            .map_err(|error| entry.fault("kind", Wrong(error.to_string()), faults))
            .ok(),
    };
    let limit = limit(entry, faults)?;
    if let Err(error) = limit.check() {
        let field = FIELDS.into_iter().find(|field| {
            let named = format!("`{field}`");
            entry.raw(field).is_some() && error.to_string().contains(&named)
        });
        entry.fault(field.unwrap_or("rate"), Wrong(error.to_string()), faults);
        return None;
    }
    let scope = scope?;
    Some(LimitConfig { scope, limit })
}

/// The limit of an entry; `None` if one of its texts cannot be read.
fn limit(entry: &Entry<'_>, faults: &mut Faults) -> Option<Limit> {
    type Parse = fn(Limit, &str) -> keyfall::Result<Limit>;
    type Count = fn(Limit, u32) -> Limit;
    let counts: [(&str, Count); 4] = [
        ("burst", Limit::burst),
        ("concurrency", Limit::concurrency),
        ("total_burst", Limit::total_burst),
        ("total_concurrency", Limit::total_concurrency),
    ];
    let texts: [(&str, Parse); 3] = [
        ("rate", Limit::parse_rate),
        ("per", |limit, text| Ok(limit.per(text.parse()?))),
        ("total_rate", Limit::parse_total_rate),
    ];
    let mut limit = Limit::new();
    for (field, count) in counts {
        if let Some(jobs) = entry.value::<NonZeroU32>(field, &[], faults) {
            limit = count(limit, jobs.get());
        }
    }
    let mut written: Vec<(&str, Parse, String)> = Vec::new();
    for (field, parse) in texts {
        let text = entry.value::<String>(field, &[], faults);
        written.extend(text.map(|text| (field, parse, text)));
    }
    if entry.raw("weights").is_some() {
        let weights = entry.texts("weights", faults).unwrap_or_default();
        let weights = weights.into_iter();
        written.extend(weights.map(|text| ("weights", Limit::parse_weight as Parse, text)));
    }
    let mut is_whole = true;
    for (field, parse, text) in written {
        match parse(limit.clone(), &text) {
            Ok(parsed) => limit = parsed,
            Err(error) => {
                entry.fault(field, Wrong(error.to_string()), faults);
                is_whole = false;
            }
        }
    }
    is_whole.then_some(limit)
}
