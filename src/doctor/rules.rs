//! The check of recurring jobs whose next time no worker could compute so far.

use std::time::Duration;

use super::checks::RULES_COMPUTED;
use super::finding::{Finding, Thing, named, things};
use crate::client::{Client, JobState, JobView, Page};
use crate::phrase::Phrase;
use crate::recurrence::Recurring;
use crate::store::Observed;

/// The workers try such a job again within this time, so it is due soon or overdue.
const SOON: Duration = Duration::from_secs(60);

/// The most recurring jobs that are read.
const JOBS: usize = 1000;

/// The most jobs that the finding names.
const NAMED: usize = 3;

/// Reads recurring jobs that are due soon, within the bounds of one search. A kind with an incomplete
/// ledger, which another check reports, does not answer, and would end the search.
pub(super) async fn look(client: &Client, is_torn: bool) -> Finding {
    if is_torn {
        let why = "a ledger is incomplete: see the check slots-whole";
        let why = Phrase::new("found.torn", why, []);
        return Finding::unseen(&RULES_COMPUTED, why);
    }
    let soon = client
        .everything()
        .list(JobState::Pending)
        .recurring()
        .due_within(SOON)
        .limit(JOBS);
    let page: Observed<Page> = soon.await.map_err(|error| error.to_string());
    Finding::of(
        &RULES_COMPUTED,
        page.as_ref().map_err(Clone::clone),
        |check, page| {
            let open: Vec<&JobView> = page.jobs.iter().filter(|job| waits(job)).collect();
            if open.is_empty() {
                let read = things(page.jobs.len() as u64, Thing::RecurringJob);
                let none = "none of the {} that are due soon";
                return Finding::fine(check, Phrase::new("found.rules-fine", none, [read]));
            }
            let first = open.iter().take(NAMED).map(|job| {
                let occurrence = job.occurrence();
                let zone = occurrence.as_ref().and_then(|it| it.rule["zone"].as_str());
                let zone = zone.map_or(String::new(), |zone| format!(" ({zone})"));
                format!("{}{zone}", job.key())
            });
            let first = first.collect::<Vec<_>>().join(", ");
            let shown = named(&first, open.len().saturating_sub(NAMED));
            let remedy = Phrase::new(
                "remedy.rules",
                "update the time zone database of the machines of the workers, or the workers \
                 themselves if a newer version wrote the rule; or give the job another rule: \
                 keyfall recur change",
                [],
            );
            Finding::warning(check, shown, remedy)
        },
    )
}

/// Whether its due time is still to be computed.
fn waits(job: &JobView) -> bool {
    job.recur().is_some_and(Recurring::is_open)
}
