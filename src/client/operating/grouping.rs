//! [`DeadGroups`]: dead letters by kind and reason, for people who look for the cause of many.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::SystemTime;

use super::folding::fold_reason;
use super::listing::{JobTaker, ListJobs};
use crate::client::{Cursor, DamagedJob, JobState, JobView, Pending, Selection, Unseen};
use crate::error::Result;
use crate::key::{JobKey, Kind};

/// A call to [`Selection::dead_groups`]; sent when it is awaited. Answers [`DeadGroups`].
#[must_use = "nothing is read until it is awaited"]
pub struct GroupDead<'a>(ListJobs<'a>);

/// Dead letters by kind and reason; from [`Selection::dead_groups`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DeadGroups {
    /// The groups of the letters that were read, the largest first.
    pub groups: Vec<DeadGroup>,
    /// Letters whose record cannot be read; they are in no group.
    pub damaged: u64,
    /// The number of letters that were read.
    pub scanned: u64,
    /// The shards that were not read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
    /// The place where the next call goes on; `None` if all letters were read.
    pub next: Option<Cursor>,
}

/// The dead letters of one kind that have the same reason, if numbers and ids are
/// [folded](crate::fold_reason).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadGroup {
    /// The kind.
    pub kind: Kind,
    /// The folded reason.
    pub reason: String,
    /// The number of letters.
    pub count: u64,
    /// The time of the first death.
    pub first: SystemTime,
    /// The time of the last death.
    pub last: SystemTime,
    /// The job that died last.
    pub example: JobKey,
    /// The number of its letter.
    pub letter: u64,
}

impl<'a> Selection<'a> {
    /// Sorts the dead letters into groups of the same kind and [reason](crate::fold_reason).
    ///
    /// One call reads some 10,000 letters, or reads for 50 milliseconds, and returns their groups.
    /// [`merge`](DeadGroups::merge) adds the groups of the [next](DeadGroups::next) call.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// let mut all = client.prefix("app1:").dead_groups().await?;
    /// while let Some(next) = all.next.take() {
    ///     all.merge(client.prefix("app1:").dead_groups().after(next).await?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: if the prefix or the [cursor](GroupDead::after) is not valid, or Redis
    /// does not answer in time.
    pub fn dead_groups(self) -> GroupDead<'a> {
        let mut list = self.list(JobState::Dead);
        list.limit = usize::MAX;
        list.filter.is_survey = true;
        GroupDead(list)
    }
}

impl GroupDead<'_> {
    /// Goes on at this cursor. It must come from a call with the same prefix.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.0 = self.0.after(cursor);
        self
    }
}

impl DeadGroups {
    /// Adds the groups of the next call.
    pub fn merge(&mut self, more: DeadGroups) {
        let mut all = Groups::default();
        for group in self.groups.drain(..).chain(more.groups) {
            all.add(group);
        }
        self.groups = all.sorted();
        self.damaged += more.damaged;
        self.scanned += more.scanned;
        Unseen::merge(&mut self.unseen, &more.unseen);
        self.next = more.next;
    }
}

/// Groups that grow letter by letter.
#[derive(Default)]
struct Groups {
    groups: BTreeMap<(Kind, String), DeadGroup>,
    damaged: u64,
}

impl Groups {
    fn add(&mut self, group: DeadGroup) {
        let name = (group.kind.clone(), group.reason.clone());
        let Some(known) = self.groups.get_mut(&name) else {
            self.groups.insert(name, group);
            return;
        };
        known.count += group.count;
        known.first = known.first.min(group.first);
        if group.last >= known.last {
            known.last = group.last;
            known.example = group.example;
            known.letter = group.letter;
        }
    }

    /// The largest first; of the same size, in the order of kinds and reasons.
    fn sorted(self) -> Vec<DeadGroup> {
        let mut groups: Vec<DeadGroup> = self.groups.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups
    }
}

impl JobTaker for Groups {
    /// Groups are not limited, the letters of a call are.
    fn taken(&self) -> usize {
        0
    }

    fn take(&mut self, kind: &Kind, letter: std::result::Result<JobView, DamagedJob>) {
        let Ok(letter) = letter else {
            self.damaged += 1;
            return;
        };
        self.add(DeadGroup {
            kind: kind.clone(),
            reason: fold_reason(letter.last_error().unwrap_or_default()),
            count: 1,
            first: letter.due(),
            last: letter.due(),
            example: letter.key().clone(),
            letter: letter.letter().unwrap_or_default(),
        });
    }
}

impl<'a> IntoFuture for GroupDead<'a> {
    type Output = Result<DeadGroups>;
    type IntoFuture = Pending<'a, DeadGroups>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut groups = Groups::default();
            let walked = self.0.walk(&mut groups).await?;
            Ok(DeadGroups {
                damaged: groups.damaged,
                groups: groups.sorted(),
                scanned: walked.scanned,
                unseen: walked.unseen,
                next: walked.next,
            })
        })
    }
}
