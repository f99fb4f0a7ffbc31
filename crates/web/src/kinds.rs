//! All kinds with a prefix with their counts, the most important first.

use std::cmp::Reverse;

use keyfall_daemon::shapes::{InstanceOut, OverviewIn, OverviewKindOut, OverviewOut, UnseenOut};

use crate::api::{Call, Caller};
use crate::fault::Fault;
use crate::troubles::late_for;

/// The kinds that one call of the API reads.
const AT_ONCE: usize = 256;

/// All kinds with a prefix.
pub(crate) struct Kinds {
    /// In the order of their names.
    pub(crate) all: Vec<OverviewKindOut>,
    /// The live instances, if the reader may know them.
    pub(crate) instances: Option<Vec<InstanceOut>>,
    pub(crate) unseen: Vec<UnseenOut>,
}

impl Kinds {
    /// Reads them page by page.
    pub(crate) async fn read(caller: Caller, prefix: String) -> Result<Self, Fault> {
        let mut wanted = OverviewIn {
            prefix: Some(prefix).filter(|prefix| !prefix.is_empty()),
            limit: Some(AT_ONCE),
            ..OverviewIn::default()
        };
        let mut read = Kinds {
            all: Vec::new(),
            instances: None,
            unseen: Vec::new(),
        };
        loop {
            let call = Call::get(&["overview"]).asking(&wanted);
            let part: OverviewOut = caller.ask(call).await?;
            read.all.extend(part.kinds);
            read.instances = part.instances;
            UnseenOut::merge(&mut read.unseen, part.unseen);
            let Some(next) = part
                .next
                .filter(|next| wanted.cursor.as_ref() != Some(next))
            else {
                return Ok(read);
            };
            wanted.cursor = Some(next);
        }
    }

    /// The kinds of a page, from 1. If they do not fit on one, those whose jobs are late come first,
    /// then those with dead letters, and then those with the most to do.
    pub(crate) fn page(&self, number: usize, size: usize) -> Vec<&OverviewKindOut> {
        let mut all: Vec<&OverviewKindOut> = self.all.iter().collect();
        if all.len() > size {
            all.sort_by_cached_key(|one| Reverse(weight(one)));
        }
        let pages = all.into_iter().skip(size * number.saturating_sub(1));
        pages.take(size).collect()
    }
}

/// How much a kind needs to be looked at.
fn weight(one: &OverviewKindOut) -> (u64, u64, u64, u64) {
    let counts = &one.kind.counts;
    let late = late_for(one).map_or(0, |_| counts.overdue);
    let busy = counts.leased + counts.overdue + one.due_within.hour;
    (late, counts.dead, busy, counts.pending)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kind(name: &str, counts: Value, overdue_for: Option<&str>) -> OverviewKindOut {
        let counters = [
            "accepted",
            "requeued",
            "done",
            "cancelled",
            "replaced",
            "buried",
            "skipped",
            "deleted",
            "trimmed",
            "failed",
            "again",
            "snoozed",
            "returned",
            "lapsed",
        ];
        let counters: Value = counters
            .iter()
            .map(|&it| (it.to_owned(), json!(0)))
            .collect();
        let mut all = json!({
            "kind": name, "pending": 0, "overdue": 0, "leased": 0, "successors": 0, "dead": 0,
            "paused": false, "counters": counters, "at": "2026-11-24T12:00:00Z"
        });
        for (name, value) in counts.as_object().unwrap() {
            all[name] = value.clone();
        }
        if let Some(span) = overdue_for {
            all["overdue_for"] = json!(span);
        }
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn the_kinds_that_need_a_look_come_first() {
        let kinds = Kinds {
            all: vec![
                kind("a:b:a", json!({"pending": 5}), None),
                kind("a:b:b", json!({"pending": 9, "leased": 1}), None),
                kind("a:b:c", json!({"dead": 1}), None),
                kind("a:b:d", json!({"overdue": 7}), Some("8s")),
                kind("a:b:e", json!({"overdue": 9, "paused": true}), Some("8s")),
                kind("a:b:f", json!({"pending": 5}), None),
            ],
            instances: None,
            unseen: Vec::new(),
        };
        let page = |number, size| {
            let page = kinds.page(number, size).into_iter();
            let last = page.map(|one| one.kind.counts.kind.rsplit(':').next().unwrap());
            last.collect::<String>()
        };
        assert_eq!((page(1, 6), page(2, 6)), ("abcdef".into(), String::new()));
        assert_eq!((page(1, 4), page(2, 4)), ("dceb".into(), "af".into()));
        assert_eq!(page(0, 4), "dceb");
    }
}
