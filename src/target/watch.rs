//! Looks after the entries of a stream whose jobs have not ended.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::pace::Pace;
use super::stream::Stream;
use super::target_key::is_hopeless;
use crate::client::Extended;
use crate::error::{Error, Result};
use crate::handler::RouteTaskContext;
use crate::lease::Lease;
use crate::moment::Moment;
use crate::outcome::Outcome;
use crate::store::{EntryId, EntryQuery, EntryStatus, TargetRedis};

/// How many entries are looked at in one step of the server, which does nothing else meanwhile.
const PAGE: usize = 64;

/// Asks the group how the entries stand, and settles and extends leases by that. Two go on side by
/// side: what this worker wrote is [followed](Self::follow), and now and then one of all workers
/// [sweeps](Self::sweep) through the rest, for those who wrote it may be gone.
pub(super) struct Watch {
    stream: Stream,
    group: Arc<str>,
    attendance: RouteTaskContext,
}

/// An entry whose job has not ended, as far as is known.
struct TrackedEntry {
    id: EntryId,
    lease: Lease,
    /// Whether its lease has to be extended now.
    is_stale: bool,
}

impl TrackedEntry {
    fn asked(&self) -> EntryQuery {
        EntryQuery {
            id: self.id,
            lease: self.lease.to_string(),
            is_sought: self.is_stale,
        }
    }
}

/// Whoever reads an entry has the job; whoever does not, has not.
struct UnreadEntry<'a> {
    ward: &'a TrackedEntry,
    is_unread: bool,
}

impl Watch {
    pub(super) fn new(stream: Stream, group: Arc<str>, attendance: RouteTaskContext) -> Self {
        Watch {
            stream,
            group,
            attendance,
        }
    }

    pub(super) async fn run(self) {
        tokio::join!(self.follow(), self.sweep());
    }

    /// How often it is looked for what others have left.
    fn sweeping(&self) -> Duration {
        renewal(self.attendance.lease)
    }

    /// How long a consumer has a job, by its own route: several can write to this stream.
    fn length(&self, lease: &Lease) -> Duration {
        self.attendance.lease(lease.key())
    }

    fn target_redis(&self) -> &TargetRedis {
        self.stream.way.target_redis()
    }

    async fn follow(&self) -> Infallible {
        let mut pace = Pace::new(self.attendance.lease);
        let shared = &self.stream.shared;
        loop {
            while shared.open().is_empty() {
                shared.written.notified().await;
            }
            let round = self.follow_once().await;
            pace.rest(&self.stream.way, round, &shared.written).await;
        }
    }

    /// Whether something ended.
    async fn follow_once(&self) -> Result<bool> {
        let now = Moment::now();
        let wards: Vec<TrackedEntry> = (self.stream.shared.open().iter())
            .map(|(id, open)| TrackedEntry {
                id: *id,
                lease: open.lease.clone(),
                is_stale: now.longest_since(&open.fresh) >= renewal(self.length(&open.lease)),
            })
            .collect();
        let mut has_ended = false;
        for page in wards.chunks(PAGE) {
            has_ended |= !self.tend(page).await?.is_empty();
        }
        Ok(has_ended)
    }

    async fn sweep(&self) -> Infallible {
        let mut pace = Pace::new(self.attendance.lease);
        // A worker that starts may come after one that died, and leases are short.
        let mut is_first = true;
        loop {
            let (key, group) = (&self.stream.way.key, &self.group);
            let swept = async {
                let turn = self.target_redis().takes_turn(key, group, self.sweeping());
                if turn.await? || is_first {
                    self.sweep_once().await?;
                }
                Ok(())
            };
            let swept = swept.await;
            pace.note(&self.stream.way, &swept);
            is_first &= swept.is_err();
            sleep(self.sweeping() / 4).await;
        }
    }

    async fn sweep_once(&self) -> Result<()> {
        let (key, group) = (&self.stream.way.key, &self.group);
        self.target_redis().make_group(key, group).await?;
        let met = self.sweep_entries().await?;
        // What was acknowledged and deleted is in no stream any more.
        let notes = self.target_redis().written(key, group).await?.into_iter();
        let orphans: Vec<TrackedEntry> = self.orphans(
            notes
                .filter(|(id, _)| !met.contains(id))
                .map(|(id, lease)| (id, lease.parse().ok())),
        );
        for page in orphans.chunks(PAGE) {
            self.tend(page).await?;
        }
        Ok(())
    }

    /// Returns all entries that it met.
    async fn sweep_entries(&self) -> Result<HashSet<EntryId>> {
        let (key, group) = (&self.stream.way.key, &self.group);
        let mut after = self.target_redis().settled_to(key, group).await?;
        let mut all_settled = true;
        let mut met = HashSet::new();
        loop {
            let page = self.target_redis().entries(key, group, after, PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(met);
            };
            after = *last;
            let read = |lease: &Option<String>| lease.as_deref()?.parse::<Lease>().ok();
            let leased = page.iter().map(|(id, lease)| (*id, read(lease)));
            let leased: Vec<(EntryId, Option<Lease>)> = leased.collect();
            met.extend(leased.iter().map(|(id, _)| *id));
            let ended = self.tend(&self.orphans(leased.iter().cloned())).await?;
            // What has no lease is of no concern here, or not any more.
            let is_settled =
                |(id, lease): &&(EntryId, Option<Lease>)| lease.is_none() || ended.contains(id);
            if all_settled {
                if let Some((id, _)) = leased.iter().take_while(is_settled).last() {
                    self.target_redis().settle_to(key, group, *id).await?;
                }
                all_settled = leased.iter().all(|entry| is_settled(&entry));
            }
        }
    }

    /// Those of these entries that have a lease and are not followed here.
    fn orphans(
        &self,
        entries: impl Iterator<Item = (EntryId, Option<Lease>)>,
    ) -> Vec<TrackedEntry> {
        let ours: HashSet<EntryId> = self.stream.shared.open().keys().copied().collect();
        let others = entries.filter(|(id, _)| !ours.contains(id));
        let ward = |(id, lease): (EntryId, Option<Lease>)| {
            Some(TrackedEntry {
                id,
                lease: lease?,
                is_stale: true,
            })
        };
        others.filter_map(ward).collect()
    }

    /// Does what there is to do about entries, given in their order. Returns those that need not be
    /// looked after any more.
    async fn tend(&self, wards: &[TrackedEntry]) -> Result<HashSet<EntryId>> {
        let mut ended = HashSet::new();
        let mut rest = wards;
        while !rest.is_empty() {
            let (key, group) = (&self.stream.way.key, &self.group);
            let asked: Vec<EntryQuery> = rest.iter().map(TrackedEntry::asked).collect();
            let Some(standing) = self.target_redis().look(key, group, &asked).await? else {
                self.target_redis().make_group(key, group).await?;
                break;
            };
            let standing: Vec<(&TrackedEntry, EntryStatus)> = rest.iter().zip(standing).collect();
            rest = &rest[standing.len()..];
            let (done, fault) = self.act(standing).await;
            self.stream.shared.end(&done);
            ended.extend(done);
            fault.map_or(Ok(()), Err)?;
        }
        Ok(ended)
    }

    /// What has ended, and why something has not that could have.
    async fn act(
        &self,
        standing: Vec<(&TrackedEntry, EntryStatus)>,
    ) -> (Vec<EntryId>, Option<Error>) {
        let (mut ended, mut ends, mut late, mut waiting) = (vec![], vec![], vec![], vec![]);
        for (ward, standing) in standing {
            let lease = self.length(&ward.lease);
            match standing {
                EntryStatus::Acknowledged => ends.push((ward, Outcome::Done)),
                // Its lease lapses, since somebody may have read it before it was forgotten; then
                // its job is delivered again. What comes after it need not wait for that.
                EntryStatus::Unproven => {
                    let (id, lease) = (ward.id, &ward.lease);
                    tracing::debug!(%lease, %id, "nothing shows that anybody read its entry");
                    self.attendance.client.let_go(lease);
                    ended.push(ward.id);
                }
                EntryStatus::Read { consumer, idle } if idle > lease => {
                    let text = format!("{consumer} has not acknowledged it within {lease:?}");
                    ends.push((ward, Outcome::retry(text)));
                    late.push(ward.id);
                }
                _ if !ward.is_stale => {}
                standing => waiting.push(UnreadEntry {
                    ward,
                    is_unread: standing == EntryStatus::Unread,
                }),
            }
        }
        let (settled, fault) = self.settle(ends).await;
        late.retain(|id| settled.contains(id));
        let rest = async {
            let (key, group) = (&self.stream.way.key, &self.group);
            // After their jobs have ended: an entry that nobody has acknowledged is found again.
            self.target_redis().acknowledge(key, group, &late).await?;
            self.target_redis()
                .forget_written(key, group, &settled)
                .await?;
            ended.extend(self.extend(waiting).await?);
            Ok(())
        };
        let rest: Result<()> = rest.await;
        ended.extend(settled);
        (ended, fault.or(rest.err()))
    }

    /// The entries whose jobs have ended, and why others have not.
    async fn settle(&self, ends: Vec<(&TrackedEntry, Outcome)>) -> (Vec<EntryId>, Option<Error>) {
        let settles = ends.into_iter().map(|(ward, outcome)| async move {
            let settled = self.attendance.client.settle(&ward.lease, outcome);
            let policy = self.attendance.retry(ward.lease.key());
            (ward, settled.retry(policy).await)
        });
        let (mut ended, mut fault) = (Vec::new(), None);
        for (ward, settled) in join_all(settles).await {
            let (lease, id) = (&ward.lease, ward.id);
            match settled {
                Ok(settled) => tracing::debug!(%lease, %id, ?settled, "ended"),
                Err(error) if is_hopeless(&error) => {
                    tracing::warn!(%lease, %id, %error, "an entry is left alone");
                }
                Err(error) => {
                    fault = Some(error);
                    continue;
                }
            }
            ended.push(id);
        }
        (ended, fault)
    }

    /// Extends leases. Returns the entries that nobody has to look after any more.
    async fn extend(&self, waiting: Vec<UnreadEntry<'_>>) -> Result<Vec<EntryId>> {
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let (key, group) = (&self.stream.way.key, &self.group);
        let leases = waiting.iter().map(|waiting| &waiting.ward.lease);
        let leases: Vec<(&Lease, Duration)> =
            leases.map(|lease| (lease, self.length(lease))).collect();
        let sent = Moment::now();
        let extended = self.attendance.client.extend_all(&leases).await?;
        let (mut unwanted, mut withdrawn, mut cancelled) = (vec![], vec![], vec![]);
        for (UnreadEntry { ward, is_unread }, extended) in waiting.into_iter().zip(extended) {
            match extended {
                Extended::Cancelled if is_unread => {
                    withdrawn.push(ward.id);
                    cancelled.push((ward, Outcome::retry("it was cancelled")));
                }
                Extended::Extended | Extended::Cancelled => {
                    if let Some(open) = self.stream.shared.open().get_mut(&ward.id) {
                        open.fresh = sent;
                    }
                }
                // Somebody else has ended it, or has the job by now.
                Extended::Gone | Extended::Taken if is_unread => withdrawn.push(ward.id),
                Extended::Gone | Extended::Taken => unwanted.push(ward.id),
            }
        }
        self.target_redis()
            .acknowledge(key, group, &unwanted)
            .await?;
        self.target_redis()
            .forget_written(key, group, &unwanted)
            .await?;
        self.target_redis().withdraw(key, group, &withdrawn).await?;
        self.settle(cancelled).await.1.map_or(Ok(()), Err)?;
        unwanted.extend(withdrawn);
        Ok(unwanted)
    }
}

/// After how much of its length a lease is extended: a third, as workers renew theirs.
fn renewal(length: Duration) -> Duration {
    length / 3
}
