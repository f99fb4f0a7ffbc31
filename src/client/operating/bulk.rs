//! One operation on many jobs.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use super::listing::letter_name;
use super::partial::PartialView;
use super::scan::JobScan;
use crate::client::due::{NOW, after, at};
use crate::client::{CallTarget, Client, KindShards, Pending, Selection, Unseen, out_of_place};
use crate::error::{Error, Result};
use crate::key::{JobKey, Kind};
use crate::prefix::Prefix;
use crate::store::{
    Answered, Change, Discard, Lane, Ledger, Letter, Revival, Seen, Slice, Sought, When, Word,
};
use crate::time::UnixMs;

/// A call on all jobs of a [`Selection`]; sent when it is awaited.
///
/// It goes through the jobs in pages of some hundred, each a call of its own, and ends with the
/// last of those that were there at the beginning. Jobs that change their state meanwhile may
/// be missed; of a cancel, those whose whole run falls into the call, and that are to be
/// retried. To be sure of all, [pause](Selection::pause) first. Dropped or failed on the way,
/// it leaves done what is done, and can be made again.
#[must_use = "nothing is done until it is awaited"]
pub struct Bulk<'a> {
    selection: Selection<'a>,
    deed: Result<BulkAction>,
    dry_run: bool,
}

/// A call to [`Selection::postpone`]; sent when it is awaited. Due now, unless told otherwise.
#[must_use = "nothing is postponed until it is awaited"]
pub struct Postpone<'a>(Bulk<'a>);

/// What became of a call on many jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkReport {
    /// The jobs, or dead letters, that the call was about. `done`, `running` and `skipped` add
    /// up to it; after a dry run they are zero.
    pub matched: u64,
    /// Those that were changed.
    pub done: u64,
    /// Those that were running and were told to stop: of a cancel only.
    pub running: u64,
    /// Those left as they are: they had changed their state, or are damaged; or, of a requeue,
    /// a job of their name is there.
    pub skipped: u64,
    /// What the call did not come to, because one of several servers was away. Of one that went away
    /// meanwhile, jobs may be among the matched, and not among the others: whether they were changed
    /// is not known.
    pub unseen: Vec<Unseen>,
}

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
    /// Cancels the jobs: those that are pending never start, those that run are told to stop
    /// and are not retried. Dead letters stay.
    pub fn cancel(self) -> Bulk<'a> {
        Bulk::of(self, Ok(BulkAction::Cancel))
    }

    /// Gives the pending jobs another due time.
    pub fn postpone(self) -> Postpone<'a> {
        Postpone(Bulk::of(self, Ok(BulkAction::PostponeTo(NOW))))
    }

    /// Makes the pending jobs due now, those that wait to be retried included. What is due by
    /// now is not among them.
    pub fn fire_now(self) -> Bulk<'a> {
        Bulk::of(self, Ok(BulkAction::FireNow))
    }

    /// Makes the dead letters pending again, due now and with their attempts counted anew; of
    /// several letters of one name, the latest. A letter stays where a job of its name is there.
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
        }
    }

    /// Changes nothing, and counts what the call would be about, as
    /// [`matched`](BulkReport::matched).
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    async fn run(self) -> Result<BulkReport> {
        let Selection { client, prefix } = self.selection;
        let (prefix, deed) = (prefix?, self.deed?);
        let mut bulk_call = BulkCall::new(client, deed, self.dry_run).await?;
        let result = bulk_call.run(&prefix).await;
        let view = result.map_err(|error| bulk_call.report.in_the_middle(&error))?;
        bulk_call.report.unseen = view.unseen();
        Ok(bulk_call.report)
    }
}

impl Postpone<'_> {
    /// Due so long after Redis receives the call, all of them. 10 years is the limit.
    pub fn after(mut self, delay: Duration) -> Self {
        self.0.deed = after(delay).map(BulkAction::PostponeTo);
        self
    }

    /// Due at this time by Redis' clock, all of them. The past means now.
    pub fn at(mut self, due: SystemTime) -> Self {
        self.0.deed = at(due).map(BulkAction::PostponeTo);
        self
    }

    /// So much later than each is due; 10 years is the limit.
    ///
    /// A call that fails on the way has moved some of them, and would move those twice if it
    /// were made again; [`after`](Self::after) and [`at`](Self::at) can be repeated.
    pub fn by(mut self, delay: Duration) -> Self {
        // The limit is that of a delay from now.
        self.0.deed = after(delay).map(|_| BulkAction::PostponeBy(delay));
        self
    }

    /// Changes nothing, and counts the jobs that it would be about.
    pub fn dry_run(mut self) -> Self {
        self.0 = self.0.dry_run();
        self
    }
}

/// One call under way.
struct BulkCall<'a> {
    client: &'a Client,
    deed: BulkAction,
    dry_run: bool,
    /// When it began.
    began: UnixMs,
    lane: Lane,
    /// Whom not to meet again: runs that were told to stop, since a renewal moves them ahead of
    /// the walk; names of which a letter was requeued.
    told: HashSet<String>,
    report: BulkReport,
}

impl<'a> BulkCall<'a> {
    async fn new(client: &'a Client, deed: BulkAction, dry_run: bool) -> Result<Self> {
        let now = client.0.store.time(client.deadline()).await?;
        let began = now.floor_ms();
        // The same time for all of them, or the walk would meet again what it has moved.
        let deed = match deed {
            BulkAction::PostponeTo(When::After(delay)) => {
                let delay = u64::try_from(delay.as_nanos().div_ceil(1_000_000));
                let ahead = delay.expect("no more than ten years");
                BulkAction::PostponeTo(When::At(UnixMs(began.0 + ahead)))
            }
            other => other,
        };
        Ok(BulkCall {
            client,
            deed,
            dry_run,
            began,
            lane: Lane::new(),
            told: HashSet::new(),
            report: BulkReport::default(),
        })
    }

    async fn run(&mut self, prefix: &Prefix) -> Result<PartialView> {
        let states: &[&str] = match self.deed {
            // A run that is marked is not retried, so what runs at the beginning cannot slip
            // back behind the walk. What falls due meanwhile is met as running.
            BulkAction::Cancel => &["leased", "pending", "leased"],
            BulkAction::Requeue | BulkAction::Discard => &["dead"],
            _ => &["pending"],
        };
        let (kinds, mut view) = self
            .client
            .kinds_in_view(prefix, self.client.deadline())
            .await?;
        for kind in kinds {
            self.lane = Lane::new();
            self.told.clear();
            let kind_shards = self.client.kind_shards(kind.as_str())?;
            for state in states {
                self.walk_through(&kind_shards, state, prefix.of_id(), &mut view)
                    .await?;
            }
        }
        Ok(view)
    }

    /// Walks through the ledgers of a kind. While jobs are moved, through those that they leave
    /// first: what was under way by then has arrived before the others are walked through.
    async fn walk_through(
        &mut self,
        kind_shards: &KindShards,
        state: &'static str,
        of_id: &str,
        view: &mut PartialView,
    ) -> Result<()> {
        for shard_client in kind_shards.before() {
            // Where its jobs belong may be on any server, and each of them is needed.
            self.walk(&shard_client.ledger, state, of_id, true).await?;
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
            let walk = Box::pin(self.walk(&shard_client.ledger, state, of_id, is_moving));
            match is_moving {
                true => walk.await?,
                false => view.see(&shard_client.ledger, walk).await.map(drop)?,
            }
        }
        Ok(())
    }

    async fn walk(
        &mut self,
        ledger: &Arc<Ledger>,
        state: &'static str,
        of_id: &str,
        is_moving: bool,
    ) -> Result<()> {
        let sought = Sought {
            // What moves later, and what dies meanwhile, is left behind; and of several letters
            // of one name the latest comes first.
            down: matches!(self.deed, BulkAction::PostponeBy(_) | BulkAction::Requeue),
            records: matches!(self.deed, BulkAction::Requeue) && !self.dry_run,
            ..Sought::all_of(state, of_id)
        };
        let mut walk = JobScan::through(self.client, ledger, sought).await?;
        while let Some(slice) = walk.next().await? {
            let mut matched = self.matching(slice);
            if matches!(self.deed, BulkAction::Requeue) {
                // The latest letter of a name comes first; those before it stay.
                matched.retain(|seen| self.told.insert(id_of(&seen.member).to_owned()));
            } else if is_moving {
                // Whoever was met is not met again where it was moved to.
                matched.retain(|seen| self.told.insert(seen.member.clone()));
            }
            self.report.matched += matched.len() as u64;
            if self.dry_run && state == "leased" {
                self.told
                    .extend(matched.into_iter().map(|seen| seen.member));
            } else if !self.dry_run && is_moving {
                self.carry_out_each(ledger.kind(), matched).await?;
            } else if !self.dry_run && !matched.is_empty() {
                self.carry_out(&walk.ledger, matched).await?;
            }
        }
        Ok(())
    }

    /// Those of a page that the call is about.
    fn matching(&self, slice: Slice) -> Vec<Seen> {
        let now = slice.now.floor_ms();
        let fits = |seen: &Seen| match self.deed {
            BulkAction::FireNow => seen.score > self.began,
            // What stands there already, or was moved to a time that is past by now.
            BulkAction::PostponeTo(When::At(due)) => !(due..=due.max(now)).contains(&seen.score),
            BulkAction::Cancel => !self.told.contains(&seen.member),
            _ => true,
        };
        slice.items.into_iter().filter(fits).collect()
    }

    /// Sends a page of them job by job, to wherever each is by then, and counts the answers.
    async fn carry_out_each(&mut self, kind: &Kind, seen: Vec<Seen>) -> Result<()> {
        let (client, deed, until) = (self.client, self.deed, self.client.deadline());
        let change = async |id: &str, when, step| {
            let key = kind.key(id).ok()?;
            let change = Change {
                key: key.clone(),
                when,
                step,
            };
            let asked = client.ask(&key, CallTarget::Job, change, until, |shard_client| {
                &shard_client.changes
            });
            Some(asked.await)
        };
        let answers = seen.into_iter().map(async |seen| match deed {
            BulkAction::Cancel => {
                let key = kind.key(&seen.member).ok()?;
                let asked = client.ask(&key, CallTarget::Job, key.clone(), until, |shard_client| {
                    &shard_client.cancels
                });
                Some(asked.await)
            }
            BulkAction::FireNow => change(&seen.member, NOW, "fired").await,
            BulkAction::PostponeTo(when) => change(&seen.member, when, "postponed").await,
            BulkAction::PostponeBy(delay) => {
                change(&seen.member, When::By(delay), "postponed").await
            }
            BulkAction::Requeue => {
                let revival = revival(kind, seen)?;
                let key = revival.key.clone();
                let asked = client.ask(&key, CallTarget::Job, revival, until, |shard_client| {
                    &shard_client.requeues
                });
                Some(asked.await)
            }
            BulkAction::Discard => {
                let discard = discard(kind, &seen)?;
                let key = discard.key.clone();
                let asked = client.ask(&key, CallTarget::Letters, discard, until, |shard_client| {
                    &shard_client.discards
                });
                Some(asked.await)
            }
        });
        for answered in join_all(answers).await {
            match answered.transpose()? {
                Some(answered) => self.report.count(self.deed, answered.answer)?,
                None => self.report.skipped += 1,
            }
        }
        Ok(())
    }

    /// Sends a page of them as one numbered call, and counts the answers.
    async fn carry_out(&mut self, ledger: &Ledger, seen: Vec<Seen>) -> Result<()> {
        let count = seen.len() as u64;
        let until = self.client.deadline();
        let lane = &mut self.lane;
        let kind = ledger.kind();
        let change = |when, step| {
            let keys = seen.iter().filter_map(|seen| kind.key(&seen.member).ok());
            keys.map(|key| Change { key, when, step })
                .collect::<Vec<_>>()
        };
        let answers = match self.deed {
            BulkAction::Cancel => {
                let keys = seen.iter().filter_map(|seen| kind.key(&seen.member).ok());
                let keys: Vec<JobKey> = keys.collect();
                let answers = send(&keys, async |keys| ledger.cancel(lane, keys, until).await);
                let answers = answers.await?;
                for (key, answered) in keys.iter().zip(&answers) {
                    if answered.answer == Word::Running {
                        self.told.insert(key.id().to_owned());
                    }
                }
                answers
            }
            BulkAction::FireNow => {
                let items = change(NOW, "fired");
                send(&items, async |items| {
                    ledger.reschedule(lane, items, until).await
                })
                .await?
            }
            BulkAction::PostponeTo(when) => {
                let items = change(when, "postponed");
                send(&items, async |items| {
                    ledger.reschedule(lane, items, until).await
                })
                .await?
            }
            BulkAction::PostponeBy(delay) => {
                let items = change(When::By(delay), "postponed");
                send(&items, async |items| {
                    ledger.reschedule(lane, items, until).await
                })
                .await?
            }
            BulkAction::Requeue => {
                let items: Vec<_> = seen
                    .into_iter()
                    .filter_map(|seen| revival(kind, seen))
                    .collect();
                send(&items, async |items| {
                    ledger.requeue(lane, items, until).await
                })
                .await?
            }
            BulkAction::Discard => {
                let items: Vec<_> = seen.iter().filter_map(|seen| discard(kind, seen)).collect();
                send(&items, async |items| {
                    ledger.discard(lane, items, until).await
                })
                .await?
            }
        };
        self.report.skipped += count - answers.len() as u64;
        for answered in answers {
            self.report.count(self.deed, answered.answer)?;
        }
        Ok(())
    }
}

/// A page of which nothing can be sent needs no call.
/// The id in `id:number`, as a letter is called.
fn id_of(letter: &str) -> &str {
    letter.rsplit_once(':').map_or(letter, |(id, _)| id)
}

async fn send<T>(
    items: &[T],
    call: impl AsyncFnOnce(&[T]) -> Result<Vec<Answered>>,
) -> Result<Vec<Answered>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    call(items).await
}

fn revival(kind: &Kind, seen: Seen) -> Option<Revival> {
    let (id, number) = letter_name(&seen.member).ok()?;
    let letter = Letter {
        number,
        died: seen.score,
        record: seen.record,
    };
    Revival::of(kind.key(id).ok()?, &letter, NOW).ok()
}

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

    fn in_the_middle(&self, error: &Error) -> Error {
        if self.matched == 0 {
            return error.duplicate();
        }
        Error::new(
            error.kind(),
            format!(
                "{error}; by then {} jobs were done, {} told to stop and {} skipped",
                self.done, self.running, self.skipped
            ),
        )
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
