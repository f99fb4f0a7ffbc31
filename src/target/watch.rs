//! The task that watches the entries of an acknowledged stream: it settles jobs whose entries are
//! acknowledged or were read too long ago, and extends the leases of all others.
//!
//! | status of the entry | action |
//! |---|---|
//! | acknowledged | settle the job as done |
//! | read, and idle for longer than the lease of its route | settle as a failed attempt, acknowledge |
//! | read, or not yet read | extend the lease when a third of it is over |
//! | unproven: trimmed or forgotten | let the lease lapse, so that the job is delivered again |
//!
//! Entries are not forgotten with the worker that wrote them: workers take turns to
//! [sweep](Watch::sweep) through the whole stream.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;

use super::pace::{Pace, in_time, patience};
use super::receipts::Receipts;
use super::stream::Stream;
use crate::client::Extended;
use crate::error::{Error, Result};
use crate::handler::RouteTaskContext;
use crate::lease::Lease;
use crate::moment::Moment;
use crate::outcome::Outcome;
use crate::store::{EntryId, EntryQuery, EntryStatus, TargetRedis};

/// How many entries one call asks Redis about. Redis serves nobody else during the call.
const PAGE: usize = 64;

/// Asks the group for the status of entries, and settles and extends their leases accordingly.
///
/// Two loops run side by side: one [follows](Self::follow) the entries of this worker; the other
/// [sweeps](Self::sweep) through all other entries, in turns with other workers, because the
/// workers that wrote them may be gone.
pub(super) struct Watch {
    stream: Stream,
    group: Arc<str>,
    context: RouteTaskContext,
}

/// An entry with a job that has not ended, as far as this worker knows.
struct TrackedEntry {
    id: EntryId,
    lease: Lease,
    /// Whether its lease has to be extended now.
    is_stale: bool,
}

impl TrackedEntry {
    /// The question about this entry, for Redis.
    fn asked(&self) -> EntryQuery {
        EntryQuery {
            id: self.id,
            lease: self.lease.to_string(),
            is_sought: self.is_stale,
        }
    }
}

/// A tracked entry that waits for its acknowledgement, and whether no consumer has read it yet.
/// Only a consumer that has read the entry has the job.
struct UnreadEntry<'a> {
    ward: &'a TrackedEntry,
    is_unread: bool,
}

impl Watch {
    pub(super) fn new(stream: Stream, group: Arc<str>, context: RouteTaskContext) -> Self {
        Watch {
            stream,
            group,
            context,
        }
    }

    /// Runs both loops until it is dropped.
    pub(super) async fn run(self) {
        tokio::join!(self.follow(), self.sweep());
    }

    /// The time between two sweeps of all workers together.
    fn sweeping(&self) -> Duration {
        renewal(self.context.lease)
    }

    /// How long a consumer may hold a job, by the route of the job: several routes can write to
    /// this stream.
    fn length(&self, lease: &Lease) -> Duration {
        self.context.lease(lease.key())
    }

    fn target_redis(&self) -> &TargetRedis {
        self.stream.way.target_redis()
    }

    /// Looks at the entries of this worker, again and again, while there are any.
    async fn follow(&self) -> Infallible {
        let mut pace = Pace::new(self.context.lease);
        let shared = &self.stream.shared;
        loop {
            while shared.open().is_empty() {
                shared.written.notified().await;
            }
            let round = self.follow_once().await;
            pace.rest(&self.stream.way, round, &shared.written).await;
        }
    }

    /// One look at all entries of this worker. Returns whether any has ended.
    async fn follow_once(&self) -> Result<bool> {
        let now = Moment::now();
        let wards: Vec<TrackedEntry> = (self.stream.shared.open().iter())
            .map(|(id, open)| TrackedEntry {
                id: *id,
                lease: open.lease.clone(),
                is_stale: now.longest_since(&open.fresh) >= renewal(self.length(&open.lease)),
            })
            .collect();
        // At the same time: a server of some jobs that is away delays no page of others.
        let (mut has_ended, mut fault) = (false, None);
        for ended in join_all(wards.chunks(PAGE).map(|page| self.tend(page))).await {
            match ended {
                Ok(ended) => has_ended |= !ended.is_empty(),
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or(Ok(has_ended), Err)
    }

    /// Sweeps each time that it is this worker's turn, and once at its start.
    async fn sweep(&self) -> Infallible {
        let mut pace = Pace::new(self.context.lease);
        // A worker may start in place of a dead one, whose short leases must be extended soon.
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

    /// Looks at all entries of other workers: first in the stream, then in the notes of entries
    /// that are no longer in the stream.
    async fn sweep_once(&self) -> Result<()> {
        let (key, group) = (&self.stream.way.key, &self.group);
        self.target_redis().make_group(key, group).await?;
        let (met, mut fault) = self.sweep_entries().await?;
        // An entry that was acknowledged and deleted is no longer in the stream, but in the notes.
        let notes = self.target_redis().written(key, group).await?.into_iter();
        let orphans: Vec<TrackedEntry> = self.orphans(
            notes
                .filter(|(id, _)| !met.contains(id))
                .map(|(id, lease)| (id, lease.parse().ok())),
        );
        for page in orphans.chunks(PAGE) {
            fault = self.tend(page).await.err().or(fault);
        }
        fault.map_or(Ok(()), Err)
    }

    /// Looks at all entries in the stream, from the mark up to which all have ended, and moves the
    /// mark forward. Returns the entries that it met, and the last error of a page: the entries
    /// behind it are looked at nevertheless.
    async fn sweep_entries(&self) -> Result<(HashSet<EntryId>, Option<Error>)> {
        let (key, group) = (&self.stream.way.key, &self.group);
        let mut after = self.target_redis().settled_to(key, group).await?;
        let mut all_settled = true;
        let (mut met, mut fault) = (HashSet::new(), None);
        loop {
            let page = self.target_redis().entries(key, group, after, PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok((met, fault));
            };
            after = *last;
            let read = |lease: &Option<String>| lease.as_deref()?.parse::<Lease>().ok();
            let leased = page.iter().map(|(id, lease)| (*id, read(lease)));
            let leased: Vec<(EntryId, Option<Lease>)> = leased.collect();
            met.extend(leased.iter().map(|(id, _)| *id));
            let ended = match self.tend(&self.orphans(leased.iter().cloned())).await {
                Ok(ended) => ended,
                Err(error) => {
                    fault = Some(error);
                    HashSet::new()
                }
            };
            if all_settled {
                // An entry without a lease needs no look, or no further one.
                let ends = leased
                    .iter()
                    .map(|(id, lease)| (*id, lease.is_none() || ended.contains(id)));
                let (mark, all) = settled_to(ends);
                if let Some(id) = mark {
                    self.target_redis().settle_to(key, group, id).await?;
                }
                all_settled = all;
            }
        }
    }

    /// The entries that have a lease and were not written by this worker.
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

    /// Asks for the status of these entries, ordered by id, and acts on it. Makes the group again
    /// if it is gone. Returns the entries that need no further look.
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

    /// Settles, extends or drops entries by their status. Returns the entries that need no further
    /// look, and an error, if an entry should have ended and could not.
    async fn act(
        &self,
        standing: Vec<(&TrackedEntry, EntryStatus)>,
    ) -> (Vec<EntryId>, Option<Error>) {
        let (mut ended, mut ends, mut late, mut waiting) = (vec![], vec![], vec![], vec![]);
        for (ward, standing) in standing {
            match step(standing, ward.is_stale, self.length(&ward.lease)) {
                Step::Done => ends.push((ward, Outcome::Done)),
                Step::Fail(reason) => {
                    ends.push((ward, Outcome::retry(reason)));
                    late.push(ward.id);
                }
                // A consumer may have read the entry before Redis forgot it. So the lease is left
                // to lapse; then the job is delivered again. Later entries need not wait for that.
                Step::LetGo => {
                    let (id, lease) = (ward.id, &ward.lease);
                    tracing::debug!(%lease, %id, "no consumer is known to have read its entry");
                    self.context.client.let_go(lease);
                    ended.push(ward.id);
                }
                Step::Extend { is_unread } => waiting.push(UnreadEntry { ward, is_unread }),
                Step::Wait => {}
            }
        }
        // At the same time: an end that takes long delays no lease.
        let ((settled, fault), extended) = tokio::join!(self.settle(ends), self.extend(waiting));
        late.retain(|id| settled.contains(id));
        let rest = async {
            let (key, group) = (&self.stream.way.key, &self.group);
            // Only after their jobs have ended: an entry without acknowledgement is found again.
            self.target_redis().acknowledge(key, group, &late).await?;
            self.target_redis()
                .forget_written(key, group, &settled)
                .await?;
            ended.extend(extended?);
            Ok(())
        };
        let rest: Result<()> = rest.await;
        ended.extend(settled);
        (ended, fault.or(rest.err()))
    }

    /// Settles the leases of these entries. Returns the entries that are settled, or never can be,
    /// and the last error of the others.
    async fn settle(&self, ends: Vec<(&TrackedEntry, Outcome)>) -> (Vec<EntryId>, Option<Error>) {
        let settles = ends.into_iter().map(|(ward, outcome)| async move {
            let lease = &ward.lease;
            let mut limit = patience(self.length(lease));
            if !matches!(outcome, Outcome::Done) {
                // It may become a dead letter.
                let hooks = self.context.client.listeners().of_dead();
                limit += hooks
                    .iter()
                    .map(|hooks| hooks.limit())
                    .max()
                    .unwrap_or_default();
            }
            let settled = self.context.client.settle(lease, outcome);
            let settled = settled.retry(self.context.retry(lease.key()));
            (ward.id, lease.clone(), in_time(settled, lease, limit).await)
        });
        Receipts::dealt_with(join_all(settles).await)
    }

    /// Extends leases. Entries of cancelled or lost jobs are withdrawn if no consumer has read
    /// them, and acknowledged otherwise if the lease is lost. Returns the entries that need no
    /// further look.
    async fn extend(&self, waiting: Vec<UnreadEntry<'_>>) -> Result<Vec<EntryId>> {
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let (key, group) = (&self.stream.way.key, &self.group);
        let leases = waiting.iter().map(|waiting| &waiting.ward.lease);
        let leases: Vec<(&Lease, Duration)> =
            leases.map(|lease| (lease, self.length(lease))).collect();
        let sent = Moment::now();
        let shortest = leases.iter().map(|(_, length)| *length).min();
        let until = Instant::now() + patience(shortest.unwrap_or_default());
        let (extended, fault) = self.context.client.extend_all(&leases, until).await;
        let (mut unwanted, mut withdrawn, mut cancelled) = (vec![], vec![], vec![]);
        for (UnreadEntry { ward, is_unread }, extended) in waiting.into_iter().zip(extended) {
            let Some(extended) = extended else {
                continue;
            };
            match fate(extended, is_unread) {
                Fate::Keep => {
                    if let Some(open) = self.stream.shared.open().get_mut(&ward.id) {
                        open.fresh = sent;
                    }
                }
                Fate::WithdrawCancelled => {
                    withdrawn.push(ward.id);
                    cancelled.push((ward, Outcome::retry("it was cancelled")));
                }
                Fate::Withdraw => withdrawn.push(ward.id),
                Fate::Acknowledge => unwanted.push(ward.id),
            }
        }
        self.target_redis()
            .acknowledge(key, group, &unwanted)
            .await?;
        self.target_redis()
            .forget_written(key, group, &unwanted)
            .await?;
        self.target_redis().withdraw(key, group, &withdrawn).await?;
        self.settle(cancelled)
            .await
            .1
            .or(fault)
            .map_or(Ok(()), Err)?;
        unwanted.extend(withdrawn);
        Ok(unwanted)
    }
}

/// The next step with an entry.
#[derive(Debug, PartialEq)]
enum Step {
    /// Settle its job as done.
    Done,
    /// Settle its job as a failed attempt, for this reason, and acknowledge it.
    Fail(String),
    /// Leave its lease to lapse.
    LetGo,
    /// Extend its lease. `is_unread` if no consumer has read the entry.
    Extend { is_unread: bool },
    /// Look again later.
    Wait,
}

/// The next step with an entry of this status. `is_stale` if its lease has to be extended now;
/// `lease` is the time for which a consumer may hold its job.
fn step(status: EntryStatus, is_stale: bool, lease: Duration) -> Step {
    match status {
        EntryStatus::Acknowledged => Step::Done,
        EntryStatus::Unproven => Step::LetGo,
        EntryStatus::Read { consumer, idle } if idle > lease => Step::Fail(format!(
            "{consumer} has not acknowledged it within {lease:?}"
        )),
        status if is_stale => Step::Extend {
            is_unread: status == EntryStatus::Unread,
        },
        _ => Step::Wait,
    }
}

/// What becomes of an entry after a try to extend its lease.
#[derive(Debug, PartialEq)]
enum Fate {
    /// It stays, for its consumer.
    Keep,
    /// It is withdrawn, and its job, which was cancelled, settled: no consumer will do that.
    WithdrawCancelled,
    /// It is withdrawn.
    Withdraw,
    /// It is acknowledged in place of the consumer that has read it.
    Acknowledge,
}

/// The fate of an entry by the answer to the extension. `is_unread` if no consumer has read it.
fn fate(extended: Extended, is_unread: bool) -> Fate {
    match (extended, is_unread) {
        (Extended::Cancelled, true) => Fate::WithdrawCancelled,
        (Extended::Extended | Extended::Cancelled, _) => Fate::Keep,
        // Another caller has ended the job, or another worker has it by now.
        (Extended::Gone | Extended::Taken, true) => Fate::Withdraw,
        (Extended::Gone | Extended::Taken, false) => Fate::Acknowledge,
    }
}

/// The age at which a lease of this length is extended: a third of its length, as for all workers.
fn renewal(length: Duration) -> Duration {
    length / 3
}

/// The last entry before the first one that needs further looks, and whether none needs any.
fn settled_to(entries: impl Iterator<Item = (EntryId, bool)>) -> (Option<EntryId>, bool) {
    let mut mark = None;
    for (id, is_settled) in entries {
        if !is_settled {
            return (mark, false);
        }
        mark = Some(id);
    }
    (mark, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_ends_only_if_it_is_acknowledged_or_held_for_too_long() {
        let lease = Duration::from_secs(30);
        let read = |idle| EntryStatus::Read {
            consumer: "someone".to_owned(),
            idle,
        };
        for is_stale in [false, true] {
            let step = |status| step(status, is_stale, lease);
            assert_eq!(step(EntryStatus::Acknowledged), Step::Done);
            assert_eq!(step(EntryStatus::Unproven), Step::LetGo);
            let late = step(read(lease + Duration::from_millis(1)));
            assert!(matches!(late, Step::Fail(_)), "{late:?}");
            for (status, is_unread) in [
                (EntryStatus::Unread, true),
                (read(Duration::ZERO), false),
                (read(lease), false),
            ] {
                // Without an extension in time, the job would be delivered twice.
                let expected = match is_stale {
                    true => Step::Extend { is_unread },
                    false => Step::Wait,
                };
                assert_eq!(step(status), expected, "stale: {is_stale}");
            }
        }
    }

    #[test]
    fn an_entry_is_taken_back_only_if_no_consumer_has_read_it() {
        use Extended::{Cancelled, Gone, Taken};
        for (extended, of_unread, of_read) in [
            (Extended::Extended, Fate::Keep, Fate::Keep),
            (Cancelled, Fate::WithdrawCancelled, Fate::Keep),
            (Gone, Fate::Withdraw, Fate::Acknowledge),
            (Taken, Fate::Withdraw, Fate::Acknowledge),
        ] {
            assert_eq!(fate(extended, true), of_unread, "{extended:?}");
            assert_eq!(fate(extended, false), of_read, "{extended:?}");
        }
    }

    #[test]
    fn the_mark_stays_before_the_first_open_entry() {
        let id = |ms: usize| format!("{ms}-0").parse::<EntryId>().unwrap();
        for (settled, mark, all) in [
            (&[true, true, false, true, true][..], Some(1), false),
            (&[false, true], None, false),
            (&[true, true, true], Some(2), true),
            (&[], None, true),
        ] {
            let entries = settled
                .iter()
                .enumerate()
                .map(|(at, is_settled)| (id(at), *is_settled));
            assert_eq!(settled_to(entries), (mark.map(id), all), "{settled:?}");
        }
    }
}
