//! Reads the data of the screen by calls of the HTTP API, a bounded number in each round.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use keyfall::{Kind, Stats};
use tokio::time::sleep_until;

use super::board::{Looked, Seen};
use super::story::Story;
use crate::jobs::Jobs;
use keyfall_daemon::shapes::{OverviewIn, OverviewKindOut};

/// The most kinds on the screen that are read beside the page: as many as one call takes.
const NAMED: usize = 256;

pub(super) struct Watch {
    jobs: Jobs,
    prefix: Option<String>,
    story: Story,
    /// The kinds that were seen, and still exist as far as is known.
    kinds: BTreeSet<Kind>,
    /// The last kind of the page before, unless the next page is the first.
    behind: Option<Kind>,
}

impl Watch {
    /// # Errors
    /// If no key can have this prefix, or neither Redis nor the daemon answers.
    pub(super) async fn new(jobs: Jobs, prefix: &str) -> anyhow::Result<Self> {
        let prefix = Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty());
        Ok(Watch {
            story: Story::new(&jobs, prefix.clone()).await?,
            jobs,
            prefix,
            kinds: BTreeSet::new(),
            behind: None,
        })
    }

    /// Reads one round, not before this time. Cancel safe.
    pub(super) async fn look(&mut self, at: tokio::time::Instant, shown: Vec<Kind>) -> Seen {
        sleep_until(at).await;
        match self.round(shown).await {
            Ok(seen) => seen,
            Err(error) => Seen {
                trouble: Some(format!("{error:#}")),
                now: Some(SystemTime::now()),
                ..Seen::default()
            },
        }
    }

    async fn round(&mut self, shown: Vec<Kind>) -> anyhow::Result<Seen> {
        let named: Vec<Kind> = shown.into_iter().take(NAMED).collect();
        let wanted = OverviewIn {
            prefix: self.prefix.clone(),
            kind: named.iter().map(Kind::to_string).collect(),
            limit: None,
            cursor: self.behind.as_ref().map(Kind::to_string),
        };
        let seen = self.jobs.overview(&wanted).await?;
        let next = seen.next.map(|last| Kind::parse(&last)).transpose()?;
        let (mut looked, mut next_due) = (Vec::new(), Vec::new());
        for one in seen.kinds {
            let due = one.next_due.map(|due| due.0);
            let one = looked_at(one)?;
            next_due.push((one.kind.clone(), due));
            looked.push(one);
        }
        let there: BTreeSet<Kind> = looked.iter().map(|one| one.kind.clone()).collect();
        let is_on_page = |kind: &Kind| {
            self.behind.as_ref().is_none_or(|last| kind > last)
                && next.as_ref().is_none_or(|last| kind <= last)
        };
        let is_gone =
            |kind: &&Kind| !there.contains(*kind) && (is_on_page(kind) || named.contains(*kind));
        let gone: Vec<Kind> = self.kinds.iter().filter(is_gone).cloned().collect();
        for kind in &gone {
            self.kinds.remove(kind);
        }
        self.kinds.extend(there);
        self.behind = next;
        let told = self.story.told();
        let hides_instances = seen.instances.is_none();
        let instances = seen.instances.unwrap_or_default().into_iter();
        let unseen = seen.unseen.into_iter().next();
        Ok(Seen {
            kinds: usize::try_from(seen.total)?,
            looked,
            gone,
            next_due,
            instances: instances.map(Into::into).collect(),
            hides_instances,
            starts: told.starts,
            failures: told.failures,
            closed: told.closed,
            trouble: None,
            unseen: unseen.map(|it| format!("{} is not seen: {}", it.server, it.error)),
            now: Some(seen.at.0),
        })
    }
}

fn looked_at(one: OverviewKindOut) -> anyhow::Result<Looked> {
    let (counts, counters) = (one.kind.counts, one.kind.counters);
    let mut stats = Stats::default();
    stats.pending = counts.pending;
    stats.overdue = counts.overdue;
    stats.overdue_for = one.overdue_for.map_or(Duration::ZERO, |time| time.0);
    stats.leased = counts.leased;
    stats.dead = counts.dead;
    stats.paused = counts.paused;
    stats.accepted = counters.accepted;
    stats.done = counters.done;
    stats.failed = counters.failed;
    stats.again = counters.again;
    stats.snoozed = counters.snoozed;
    stats.returned = counters.returned;
    stats.buried = counters.buried;
    stats.lapsed = counters.lapsed;
    Ok(Looked {
        kind: Kind::parse(&counts.kind)?,
        stats,
        at: one.at.0,
    })
}
