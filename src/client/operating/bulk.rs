//! Bulk calls: one operation on all jobs of a selection.
//!
//! A bulk call scans the ledgers of each kind page by page, and sends one batch for each page.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use super::folding::fold_reason;
use super::listing::letter_name;
use super::partial::PartialView;
use super::scan::JobScan;
use crate::client::producing::new_job::{NOW, after, at};
use crate::client::{
    Client, JobCall, KindShards, Pending, Selection, ShardClient, Unseen, out_of_place,
};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{JobKey, Kind};
use crate::prefix::Prefix;
use crate::record::Record;
use crate::store::{Answered, Change, Discard, Letter, Revival, Seen, Slice, Sought, When, Word};
use crate::time::UnixMs;

/// A call on all jobs of a [`Selection`]; sent when it is awaited. Answers [`BulkReport`].
///
/// It reads the jobs in pages of some hundred, each a call of its own, and ends with the last job
/// that was there at the beginning. A job that changes its state meanwhile may be missed; a cancel
/// may miss a job whose run begins and ends during the call, and which is then retried. To reach
/// all jobs, [pause](Selection::pause) first. If the call is dropped or fails on the way, the
/// changes so far stay, and the call can be repeated.
///
/// # Errors
/// When it is awaited: if the prefix or the time is not valid, Redis does not answer in time, it
/// refuses the call because it is full, or the due times of a shard are lost. The message of an
/// error on the way tells how many jobs were changed before it. Damaged jobs are no error: they
/// count as `skipped`.
#[must_use = "nothing is done until it is awaited"]
pub struct Bulk<'a> {
    selection: Selection<'a>,
    deed: Result<BulkAction>,
    dry_run: bool,
    limits: BulkLimits,
}

/// Further conditions of a bulk call.
#[derive(Clone, Default)]
struct BulkLimits {
    /// The last error, folded.
    reason: Option<String>,
    /// The number of jobs after which the call ends.
    most: Option<u64>,
}

/// A call to [`Selection::postpone`]; sent when it is awaited. Answers [`BulkReport`]. Moves the
/// jobs to now, unless [`after`](Self::after), [`at`](Self::at) or [`by`](Self::by) set another
/// time.
#[must_use = "nothing is postponed until it is awaited"]
pub struct Postpone<'a>(Bulk<'a>);

/// The result of a call on many jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkReport {
    /// The jobs or dead letters that the call found. `done`, `running` and `skipped` add up to this
    /// number; after a dry run they are zero.
    pub matched: u64,
    /// Jobs or dead letters that were changed.
    pub done: u64,
    /// Running jobs that were told to stop; only a cancel counts any.
    pub running: u64,
    /// Jobs that were left unchanged: they had changed their state, or are damaged. For a requeue:
    /// dead letters whose key has a live job.
    pub skipped: u64,
    /// Whether the call ended at [the limit of its jobs](Bulk::at_most), so that more jobs may be
    /// left.
    pub is_cut: bool,
    /// The shards that the call did not reach, because one of several servers was away. If a server
    /// went away during the call, some of its jobs may count as matched only: it is unknown whether
    /// they were changed.
    pub unseen: Vec<Unseen>,
}

/// The operation of a bulk call.
#[derive(Clone, Copy)]
enum BulkAction {
    Cancel,
    FireNow,
    PostponeTo(When),
    PostponeBy(Duration),
    Requeue,
    Discard,
}

impl<'a> Selection<'a> {
    /// Cancels the jobs. Pending jobs never start; running jobs are told to stop and are not
    /// retried. Dead letters stay.
    pub fn cancel(self) -> Bulk<'a> {
        Bulk::of(self, Ok(BulkAction::Cancel))
    }

    /// Gives the pending jobs another due time: now, unless the [`Postpone`] sets another.
    pub fn postpone(self) -> Postpone<'a> {
        Postpone(Bulk::of(self, Ok(BulkAction::PostponeTo(NOW))))
    }

    /// Makes the pending jobs due now, including jobs that wait for a retry. Jobs that are overdue
    /// stay as they are.
    pub fn fire_now(self) -> Bulk<'a> {
        Bulk::of(self, Ok(BulkAction::FireNow))
    }

    /// Makes the dead letters pending again, due now, with their attempts counted anew. Of several
    /// letters of one key, only the latest is requeued. If a job with its key is pending or
    /// running, a letter stays.
    pub fn requeue(self) -> Bulk<'a> {
        Bulk::of(self, Ok(BulkAction::Requeue))
    }

    /// Deletes the dead letters for good.
    pub fn delete_dead_letters(self) -> Bulk<'a> {
        Bulk::of(self, Ok(BulkAction::Discard))
    }
}

impl<'a> Bulk<'a> {
    fn of(selection: Selection<'a>, deed: Result<BulkAction>) -> Self {
        Bulk {
            selection,
            deed,
            dry_run: false,
            limits: BulkLimits::default(),
        }
    }

    /// Changes only jobs whose last error, or reason of death, is this one if its numbers and ids
    /// are [folded](crate::fold_reason). Reads the record of each job. Of several dead letters of
    /// one key with this reason, only the latest is requeued.
    pub fn reason(mut self, folded: &str) -> Self {
        self.limits.reason = Some(folded.to_owned());
        self
    }

    /// Ends the call when it has changed about this number of jobs: it changes the page to its end.
    /// A caller that repeats the call until [`is_cut`](BulkReport::is_cut) is `false` can show its
    /// progress. A dry run counts all jobs.
    pub fn at_most(mut self, jobs: u64) -> Self {
        self.limits.most = Some(jobs);
        self
    }

    /// Changes nothing, and counts the jobs that the call would affect, as
    /// [`matched`](BulkReport::matched).
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    async fn run(self) -> Result<BulkReport> {
        let Selection { client, prefix } = self.selection;
        let (prefix, deed) = (prefix?, self.deed?);
        let mut bulk_call = BulkCall::new(client, deed, self.limits, self.dry_run).await?;
        let result = bulk_call.run(&prefix).await;
        let view = result.map_err(|error| bulk_call.in_the_middle(&error))?;
        bulk_call.report.unseen = view.unseen();
        Ok(bulk_call.report)
    }
}

impl Postpone<'_> {
    /// Makes all jobs due this long after Redis receives the call. 10 years is the limit.
    pub fn after(mut self, delay: Duration) -> Self {
        self.0.deed = after(delay).map(BulkAction::PostponeTo);
        self
    }

    /// Makes all jobs due at this time by Redis' clock. The past means now; 10 years ahead is the
    /// limit.
    pub fn at(mut self, due: SystemTime) -> Self {
        self.0.deed = at(due).map(BulkAction::PostponeTo);
        self
    }

    /// Moves each job by this delay from its own due time; 10 years is the limit.
    ///
    /// If this call fails on the way, some jobs have moved, and a repeat would move them twice: it ends
    /// with [`ErrorKind::OutcomeUnknown`].
    /// [`after`](Self::after) and [`at`](Self::at) can be repeated.
    pub fn by(mut self, delay: Duration) -> Self {
        // The same limit as a delay from now.
        self.0.deed = after(delay).map(|_| BulkAction::PostponeBy(delay));
        self
    }

    /// Changes nothing, and counts the jobs that the call would affect, as
    /// [`matched`](BulkReport::matched).
    pub fn dry_run(mut self) -> Self {
        self.0 = self.0.dry_run();
        self
    }
}

/// A bulk call in progress.
struct BulkCall<'a> {
    client: &'a Client,
    deed: BulkAction,
    limits: BulkLimits,
    dry_run: bool,
    /// Jobs to skip if the scan meets them again: runs that were told to stop, since a renewal
    /// moves them ahead of the scan, and keys with a requeued letter.
    told: HashSet<String>,
    report: BulkReport,
}

impl<'a> BulkCall<'a> {
    async fn new(
        client: &'a Client,
        deed: BulkAction,
        limits: BulkLimits,
        dry_run: bool,
    ) -> Result<Self> {
        // The same time for all jobs, or the scan would meet the moved jobs again.
        let deed = match deed {
            BulkAction::PostponeTo(When::After(delay)) => {
                let began = client.0.store.time(client.deadline()).await?.floor_ms();
                let delay = u64::try_from(delay.as_nanos().div_ceil(1_000_000));
                let ahead = delay.expect("no more than ten years");
                BulkAction::PostponeTo(When::At(UnixMs(began.0 + ahead)))
            }
            other => other,
        };
        Ok(BulkCall {
            client,
            deed,
            limits,
            dry_run,
            told: HashSet::new(),
            report: BulkReport::default(),
        })
    }

    async fn run(&mut self, prefix: &Prefix) -> Result<PartialView> {
        let states: &[&str] = match self.deed {
            // A marked run is not retried, so a job that runs at the beginning cannot slip back
            // behind the scan. A job that falls due meanwhile is met as running.
            BulkAction::Cancel => &["leased", "pending", "leased"],
            BulkAction::Requeue | BulkAction::Discard => &["dead"],
            _ => &["pending"],
        };
        let (kinds, mut view) = self
            .client
            .kinds_in_view(prefix, self.client.deadline())
            .await?;
        for kind in kinds {
            self.told.clear();
            loop {
                let matched = self.report.matched;
                let kind_shards = self.client.kind_shards(kind.as_str())?;
                for state in states {
                    self.walk_through(&kind_shards, state, prefix.of_id(), &mut view)
                        .await?;
                }
                let until = self.client.deadline();
                if !self.client.is_outdated(&kind_shards, until).await? {
                    break;
                }
                // A reshard began or ended meanwhile, and may have moved jobs past the scan.
                self.may_scan_again(&kind)?;
                if self.dry_run {
                    self.told.clear();
                    self.report.matched = matched;
                }
            }
        }
        Ok(view)
    }

    /// Whether a second scan would change the jobs that this one has changed once more.
    fn adds_up(&self) -> bool {
        !self.dry_run && matches!(self.deed, BulkAction::PostponeBy(_))
    }

    /// The error of a call that failed on the way, with the counts so far. A call whose repeat would
    /// change jobs twice has an unknown outcome, whichever error has stopped it.
    fn in_the_middle(&self, error: &Error) -> Error {
        let report = &self.report;
        if report.matched == 0 {
            return error.duplicate();
        }
        let kind = match self.adds_up() {
            true => ErrorKind::OutcomeUnknown,
            false => error.kind(),
        };
        Error::new(
            kind,
            format!(
                "{error}; by then {} jobs were done, {} told to stop and {} skipped",
                report.done, report.running, report.skipped
            ),
        )
    }

    /// Checks that jobs which were changed are not changed once more if the scan meets them again.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`] if they would be.
    fn may_scan_again(&self, kind: &Kind) -> Result<()> {
        if !self.adds_up() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            format!(
                "{kind} got another number of shards during the call, so some of its jobs may not \
                 have been moved, and a repeat would move the others twice: see their due times"
            ),
        ))
    }

    /// Scans the ledgers of a kind. During a reshard, the old shards come first: jobs that were on
    /// their way then have arrived before the new shards are scanned.
    async fn walk_through(
        &mut self,
        kind_shards: &KindShards,
        state: &'static str,
        of_id: &str,
        view: &mut PartialView,
    ) -> Result<()> {
        for shard_client in kind_shards.before() {
            // Its jobs may belong on any server, and each server is needed.
            self.walk(shard_client, state, of_id, true).await?;
        }
        for shard_client in kind_shards.before() {
            let until = self.client.deadline();
            shard_client
                .ledger
                .push_on(kind_shards.layout, until)
                .await?;
        }
        for shard_client in kind_shards.shard_clients() {
            let is_moving = kind_shards.is_moving();
            let walk = Box::pin(self.walk(shard_client, state, of_id, is_moving));
            match is_moving {
                true => walk.await?,
                false => view.see(&shard_client.ledger, walk).await.map(drop)?,
            }
        }
        Ok(())
    }

    /// Scans one ledger in one state, and changes the jobs page by page.
    async fn walk(
        &mut self,
        shard_client: &ShardClient,
        state: &'static str,
        of_id: &str,
        is_moving: bool,
    ) -> Result<()> {
        if self.has_enough() {
            self.report.is_cut = true;
            return Ok(());
        }
        let sought = Sought {
            // Downward, the scan leaves behind jobs that move later and jobs that die meanwhile;
            // and of several letters of one key, the latest comes first.
            down: matches!(self.deed, BulkAction::PostponeBy(_) | BulkAction::Requeue),
            records: self.limits.reason.is_some()
                || matches!(self.deed, BulkAction::Requeue) && !self.dry_run,
            ..Sought::all_of(state, of_id)
        };
        let mut walk = JobScan::through(self.client, &shard_client.ledger, sought).await?;
        while let Some(slice) = walk.next().await? {
            if self.has_enough() {
                self.report.is_cut = true;
                break;
            }
            let mut matched = self.matching(slice);
            if matches!(self.deed, BulkAction::Requeue) {
                // The latest letter of a key comes first; the older ones stay.
                matched.retain(|seen| self.told.insert(id_of(&seen.member).to_owned()));
            } else if is_moving {
                // A job that was met here is skipped in the shard that it moved to.
                matched.retain(|seen| self.told.insert(seen.member.clone()));
            }
            self.report.matched += matched.len() as u64;
            if self.dry_run && state == "leased" {
                self.told
                    .extend(matched.into_iter().map(|seen| seen.member));
            } else if !self.dry_run {
                let page = PageSender {
                    client: self.client,
                    shard_client,
                    is_moving,
                };
                self.carry_out(page, matched).await?;
            }
        }
        Ok(())
    }

    /// Whether as many jobs were changed as are wanted.
    fn has_enough(&self) -> bool {
        let changed = self.report.done + self.report.running;
        !self.dry_run && self.limits.most.is_some_and(|most| changed >= most)
    }

    /// The jobs of a page that the call affects.
    fn matching(&self, slice: Slice) -> Vec<Seen> {
        let now = slice.now.floor_ms();
        let reason = self.limits.reason.as_deref();
        let has_reason = |seen: &Seen| reason.is_none_or(|reason| ended_by(seen, reason));
        let fits = |seen: &Seen| match self.deed {
            BulkAction::FireNow => seen.score > now,
            // Skips jobs that are already there, or were moved to a time that is past by now.
            BulkAction::PostponeTo(When::At(due)) => !(due..=due.max(now)).contains(&seen.score),
            BulkAction::Cancel => !self.told.contains(&seen.member),
            _ => true,
        };
        let items = slice.items.into_iter().filter(has_reason);
        items.filter(fits).collect()
    }

    /// Carries out the call on a page, and counts the answers.
    async fn carry_out(&mut self, page: PageSender<'_>, seen: Vec<Seen>) -> Result<()> {
        let count = seen.len();
        let kind = page.shard_client.ledger.kind();
        let change = |when, step| {
            let keys = seen.iter().filter_map(|seen| kind.key(&seen.member).ok());
            keys.map(|key| Change { key, when, step }).collect()
        };
        let answers = match self.deed {
            BulkAction::Cancel => {
                let keys = seen.iter().filter_map(|seen| kind.key(&seen.member).ok());
                let keys: Vec<JobKey> = keys.collect();
                let answers = page.send(keys.clone()).await?;
                for (key, answered) in keys.iter().zip(&answers) {
                    if matches!(answered, Ok(it) if it.answer == Word::Running) {
                        self.told.insert(key.id().to_owned());
                    }
                }
                answers
            }
            BulkAction::FireNow => page.send::<Change>(change(NOW, "fired")).await?,
            BulkAction::PostponeTo(when) => page.send::<Change>(change(when, "postponed")).await?,
            BulkAction::PostponeBy(delay) => {
                let changes = change(When::By(delay), "postponed");
                page.send::<Change>(changes).await?
            }
            BulkAction::Requeue => {
                let letters = seen.into_iter().filter_map(|seen| revival(kind, seen));
                page.send::<Revival>(letters.collect()).await?
            }
            BulkAction::Discard => {
                let letters = seen.iter().filter_map(|seen| discard(kind, seen));
                page.send::<Discard>(letters.collect()).await?
            }
        };
        self.report.skipped += (count - answers.len()) as u64;
        for answered in answers {
            self.report.count(self.deed, answered?.answer)?;
        }
        Ok(())
    }
}

/// Sends the items of a page.
struct PageSender<'a> {
    client: &'a Client,
    /// The ledger of the page.
    shard_client: &'a ShardClient,
    /// Whether jobs are moved out of the ledger or into it.
    is_moving: bool,
}

impl PageSender<'_> {
    /// Sends the items of a page as one numbered call; if jobs are being moved, one by one, each to
    /// its present shard. Returns the answer to each item.
    async fn send<Call>(&self, items: Vec<Call>) -> Result<Vec<Result<Answered>>>
    where
        Call: JobCall<Terms = (), Answer = Answered>,
    {
        let until = self.client.deadline();
        if self.is_moving {
            let asked = items.into_iter().map(|item| self.client.ask(item, until));
            return Ok(join_all(asked).await);
        }
        // An empty page needs no call.
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let ShardClient {
            ledger, bulk_lanes, ..
        } = self.shard_client;
        let mut lane = bulk_lanes.take_in_time(until).await?;
        let answers = Call::send(ledger, &mut lane, &(), &items, until).await?;
        drop(lane);
        let mut all = Vec::with_capacity(answers.len());
        for (answered, item) in answers.into_iter().zip(items) {
            // A reshard has begun since the page was read.
            all.push(match answered.answer {
                Word::Stale | Word::Elsewhere => self.client.ask(item, until).await,
                _ => Ok(answered),
            });
        }
        Ok(all)
    }
}

/// Whether this was the last error of a job, if numbers and ids are folded. The error of a damaged
/// record is unknown.
fn ended_by(seen: &Seen, reason: &str) -> bool {
    Record::parse(seen.record.clone()).is_ok_and(|record| {
        let error = record.header.error.unwrap_or_default();
        fold_reason(&error) == reason
    })
}

/// The id in the name of a letter, `id:number`.
fn id_of(letter: &str) -> &str {
    letter.rsplit_once(':').map_or(letter, |(id, _)| id)
}

/// The item that requeues a letter, due now; `None` if its name or record is damaged.
fn revival(kind: &Kind, seen: Seen) -> Option<Revival> {
    let (id, number) = letter_name(&seen.member).ok()?;
    let letter = Letter {
        number,
        died: seen.score,
        record: seen.record,
    };
    Revival::of(kind.key(id).ok()?, &letter, NOW).ok()
}

/// The item that deletes a letter; `None` if its name is damaged.
fn discard(kind: &Kind, seen: &Seen) -> Option<Discard> {
    let (id, letter) = letter_name(&seen.member).ok()?;
    let key = kind.key(id).ok()?;
    Some(Discard { key, letter })
}

impl BulkReport {
    fn count(&mut self, deed: BulkAction, answer: Word) -> Result<()> {
        match answer {
            Word::Cancelled
            | Word::Moved(_)
            | Word::SuccessorMoved(_)
            | Word::Requeued(_)
            | Word::Deleted => self.done += 1,
            Word::Running if matches!(deed, BulkAction::Cancel) => self.running += 1,
            Word::Running | Word::Absent | Word::Present => self.skipped += 1,
            other => return Err(out_of_place(other)),
        }
        Ok(())
    }
}

impl<'a> IntoFuture for Bulk<'a> {
    type Output = Result<BulkReport>;
    type IntoFuture = Pending<'a, BulkReport>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<'a> IntoFuture for Postpone<'a> {
    type Output = Result<BulkReport>;
    type IntoFuture = Pending<'a, BulkReport>;

    fn into_future(self) -> Self::IntoFuture {
        self.0.into_future()
    }
}
