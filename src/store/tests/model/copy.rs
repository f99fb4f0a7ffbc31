//! A copy of the jobs, kept by the changes that the ledger notes, as a database keeps one.

use std::collections::BTreeMap;

use super::operations::IDS;
use crate::keeping::CopyTerms;
use crate::store::JobAsIs;
use crate::store::tests::support::{Bench, soon};

/// The copied jobs. Claims and renewals note nothing, and change no copied job.
#[derive(Default)]
pub(super) struct Copy {
    jobs: BTreeMap<String, JobAsIs>,
    number: u64,
}

impl Copy {
    /// Copies what has changed, and returns how the copy differs from the ledger then.
    pub(super) async fn follow(&mut self, bench: &Bench) -> Vec<String> {
        let ledger = &bench.ledger;
        let page = ledger.changes(1000, &[], soon()).await.unwrap();
        if !page.noted.is_some_and(|noted| noted.is_on) {
            // It is a new ledger, or it was razed.
            self.jobs.clear();
            let terms = CopyTerms::new();
            let mut cursor = None;
            loop {
                let step = ledger
                    .copy(terms, (0, 0), 0, cursor.as_deref(), soon())
                    .await;
                cursor = step.unwrap().cursor;
                if cursor.is_none() {
                    break;
                }
            }
        }
        let page = ledger.changes(1000, &[], soon()).await.unwrap();
        self.number += 1;
        let read = page.jobs.iter().map(|job| (&*job.id, job.version));
        ledger.copied(self.number, read, soon()).await.unwrap();
        for job in page.jobs {
            self.jobs.insert(job.id.clone(), job);
        }
        let is = ledger.changes(0, &IDS, soon()).await.unwrap();
        let differs = |it: &JobAsIs| {
            let copied = self.jobs.get(&it.id).and_then(|job| job.job.as_ref());
            (copied != it.job.as_ref() || it.version != 0)
                .then(|| format!("the copy has {copied:?}, and the ledger has {it:?}"))
        };
        is.jobs.iter().filter_map(differs).collect()
    }
}
