//! Scheduling many jobs in one call.
//!
//! Jobs are sorted by ledger into batches, and several batches travel at a time. Jobs of a kind
//! that is being resharded travel one by one.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};

use futures_util::StreamExt;
use futures_util::stream;

use super::new_job::Placing;
use crate::client::asking::JobVerdict;
use crate::client::batcher::BatchOperation;
use crate::client::durably::send_durably;
use crate::client::{Client, KindShards, NewJob, Scheduled, ShardClient};
use crate::durable::{Durable, Reached};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::{BATCH, BATCH_BYTES, LANES};
use crate::store::{Answered, HeldLane, Placement, Word};

/// Jobs of one ledger that travel in one call.
#[derive(Default)]
struct ScheduleBatch {
    items: Vec<Placement>,
    /// The place of each item in the caller's list.
    places: Vec<usize>,
    /// The durability that each item waits for.
    durable: Vec<Option<Durable>>,
    /// About how many bytes the items add to the call.
    bytes: usize,
}

/// Batches of one ledger that are sent one after the other. Each holds at most [`BATCH`] items and
/// [`BATCH_BYTES`], or one item.
struct BatchSequence {
    shard_client: Arc<ShardClient>,
    batches: Vec<ScheduleBatch>,
}

/// The answers in the order of the caller's list.
type ScheduleReplies = Vec<Result<Option<Scheduled>>>;

/// The jobs of one call, sorted by the way they travel.
struct Sorted {
    answers: ScheduleReplies,
    sequences: Vec<BatchSequence>,
    singles: Vec<Single>,
}

/// A job that is sent alone, with its place in the caller's list.
struct Single {
    place: usize,
    item: Placement,
    durable: Option<Durable>,
}

/// The answer to one job, and the durability that was reached.
type PlacedItem = (Answered, Option<Result<Reached>>);

impl Client {
    /// Schedules many jobs, of any kinds, and returns one answer for each, in their order: the
    /// answer of [`schedule`](Self::schedule), or `None` if the job was not scheduled because of
    /// its condition, [if absent](NewJob::if_absent) or [if present](NewJob::if_present), or of
    /// its [quiet hours](NewJob::quiet).
    ///
    /// Invalid jobs are refused before anything is sent, and do not affect the others. The others
    /// travel in batches of some hundred jobs, several at a time; if a batch fails, each of its
    /// jobs gets the error. The same key twice counts as two calls in order; the jobs of such a
    /// kind are sent batch by batch, and so more slowly.
    ///
    /// The call may take as long as it makes progress. When a batch has had no answer for
    /// [`call_timeout`](crate::client::ClientBuilder::call_timeout), the remaining batches are not
    /// sent.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) {
    /// use keyfall::NewJob;
    /// use std::time::Duration;
    ///
    /// let jobs = (1..=10_000).map(|order| {
    ///     NewJob::new(format!("app1:order:expire:{order}"), &order).after(Duration::from_secs(1800))
    /// });
    /// for answer in client.schedule_many(jobs).await {
    ///     if let Err(error) = answer {
    ///         eprintln!("{error}");
    ///     }
    /// }
    /// # }
    /// ```
    pub fn schedule_many(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> impl Future<Output = Vec<Result<Option<Scheduled>>>> + Send {
        let Sorted {
            answers,
            sequences,
            singles,
        } = self.sort(jobs);
        self.send_all(answers, sequences, singles)
    }

    /// Sorts jobs into batches, ledger by ledger. Invalid jobs get their error; jobs of a kind that
    /// is being resharded are sent one by one.
    fn sort(&self, jobs: impl IntoIterator<Item = NewJob>) -> Sorted {
        let (limit, now) = (self.settings().payload_limit, self.now());
        let jobs = jobs.into_iter();
        let mut answers: ScheduleReplies = Vec::with_capacity(jobs.size_hint().0);
        let mut by_kind: BTreeMap<String, Vec<Single>> = BTreeMap::new();
        for (place, job) in jobs.enumerate() {
            let durable = job.durable;
            // Until the batch is answered.
            let mut answer = Ok(None);
            match job.into_placing(limit, now) {
                // Quiet hours leave it out: nothing is sent.
                Ok(Placing::LeftOut(_)) => {}
                Ok(Placing::Send(item)) => {
                    let kind = item.key.kind().to_owned();
                    let single = Single {
                        place,
                        item,
                        durable,
                    };
                    by_kind.entry(kind).or_default().push(single);
                }
                Err(error) => answer = Err(error),
            }
            answers.push(answer);
        }
        let mut sorted = Sorted {
            answers,
            sequences: Vec::new(),
            singles: Vec::new(),
        };
        for (kind, singles) in by_kind {
            #[cfg(feature = "worker")]
            if self.memory().is_some() {
                sorted.singles.extend(singles);
                continue;
            }
            let creates = singles.iter().any(|single| single.item.creates());
            let kind_shards = match creates {
                true => self.kind_shards(&kind),
                false => self.kind_shards_to_look(&kind),
            };
            match kind_shards.expect("the kind of a job key") {
                moving if moving.is_moving() => sorted.singles.extend(singles),
                kind_shards => sorted.sequences.extend(sequences(&kind_shards, singles)),
            }
        }
        sorted
    }

    /// Sends the batches, then the single jobs, among them the jobs of batches that were refused
    /// because of a new layout.
    async fn send_all(
        &self,
        mut answers: ScheduleReplies,
        sequences: Vec<BatchSequence>,
        mut singles: Vec<Single>,
    ) -> ScheduleReplies {
        let gave_up = &OnceLock::new();
        let mut sent = stream::iter(sequences)
            .map(|batches| self.send_batches(batches, gave_up))
            .buffer_unordered(LANES);
        while let Some(batches) = sent.next().await {
            for (batch, answered) in batches {
                let places = batch.places;
                match answered {
                    // The kind has another layout: no job of the batch was scheduled.
                    Ok(answered) if answered.iter().any(|(it, _)| it.answer == Word::Stale) => {
                        let jobs = batch.items.into_iter().zip(batch.durable);
                        let jobs = places.into_iter().zip(jobs);
                        singles.extend(jobs.map(|(place, (item, durable))| Single {
                            place,
                            item,
                            durable,
                        }));
                    }
                    Ok(answered) => {
                        for (place, (answered, reached)) in places.into_iter().zip(answered) {
                            answers[place] = read(answered, reached);
                        }
                    }
                    Err(error) => {
                        for place in places {
                            answers[place] = Err(error.duplicate());
                        }
                    }
                }
            }
        }
        // The same key twice counts as two calls in order.
        let mut by_key: BTreeMap<String, Vec<Single>> = BTreeMap::new();
        for single in singles {
            let key = single.item.key.as_str().to_owned();
            by_key.entry(key).or_default().push(single);
        }
        let mut sent = stream::iter(by_key.into_values())
            .map(|items| self.send_in_order(items))
            .buffer_unordered(BATCH);
        while let Some(answered) = sent.next().await {
            for (place, answered) in answered {
                answers[place] =
                    answered.and_then(|(answered, reached)| read(answered, reached.map(Ok)));
            }
        }
        answers
    }

    /// Sends jobs of one key one after the other.
    async fn send_in_order(
        &self,
        singles: Vec<Single>,
    ) -> Vec<(usize, Result<(Answered, Option<Reached>)>)> {
        let mut answered = Vec::with_capacity(singles.len());
        for single in singles {
            let until = self.deadline_for(single.durable);
            let placed = self.place_job(single.item, single.durable, until);
            answered.push((single.place, placed.await));
        }
        answered
    }

    /// Sends the batches of one sequence in order. After an error of the connection, `gave_up`
    /// keeps all later batches from being sent.
    async fn send_batches(
        &self,
        batches: BatchSequence,
        gave_up: &OnceLock<Error>,
    ) -> Vec<(ScheduleBatch, Result<Vec<PlacedItem>>)> {
        let BatchSequence {
            shard_client,
            batches,
        } = batches;
        let mut lane = None;
        let mut sent = Vec::with_capacity(batches.len());
        for batch in batches {
            let answered = match gave_up.get() {
                Some(error) => Err(error.duplicate()),
                None => self.send_batch(&shard_client, &mut lane, &batch).await,
            };
            if let Err(error) = &answered
                && matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
                )
            {
                // Several may fail at the same time; the first error is enough.
                gave_up.get_or_init(|| {
                    let why = format!("not sent, since a batch before it failed: {error}");
                    Error::new(ErrorKind::Unavailable, why)
                });
            }
            sent.push((batch, answered));
        }
        sent
    }

    /// Sends one batch on the lane of its sequence.
    async fn send_batch(
        &self,
        shard_client: &ShardClient,
        lane: &mut Option<HeldLane>,
        batch: &ScheduleBatch,
    ) -> Result<Vec<PlacedItem>> {
        let within = batch.durable.iter().flatten().map(|it| it.within).max();
        let until = self.deadline() + within.unwrap_or_default();
        let ScheduleBatch { items, durable, .. } = batch;
        let kind = shard_client.ledger.kind();
        let creates = items.iter().any(Placement::creates);
        let found = self.kind_shards_for(kind.as_str(), creates, until).await?;
        let Some(kind_shards) = &found else {
            let absent = durable
                .iter()
                .map(|it| (Answered::absent(), it.map(|_| Ok(Reached::NOTHING))));
            return Ok(absent.collect());
        };
        let lane = match lane {
            Some(lane) => lane,
            None => lane.insert(shard_client.lanes.take_in_time(until).await?),
        };
        let placed = send_durably(&shard_client.ledger, lane, &(), items, durable, until).await?;
        if placed.iter().any(|(it, _)| it.answer != Word::Absent) {
            let unlisted = placed.iter().find_map(|(it, _)| it.unlisted);
            self.register_again(kind_shards, unlisted, until).await?;
        }
        let unarmed = placed.iter().filter(|(it, _)| it.unarmed).count();
        if unarmed > 0 {
            tracing::warn!(
                %kind,
                unarmed,
                "jobs run without triggers: their names hold foreign values, which are left \
                 alone, or this user may not write them"
            );
        }
        Ok(placed)
    }
}

impl BatchSequence {
    /// Splits the sequence, so that its batches can overtake each other, unless a key occurs twice.
    fn split(self) -> Vec<BatchSequence> {
        if has_a_key_twice(&self.batches) {
            return vec![self];
        }
        let alone = |batch| BatchSequence {
            shard_client: self.shard_client.clone(),
            batches: vec![batch],
        };
        self.batches.into_iter().map(alone).collect()
    }
}

/// The batches of the jobs of one kind, ledger by ledger.
fn sequences(kind_shards: &KindShards, singles: Vec<Single>) -> Vec<BatchSequence> {
    let mut by_shard: BTreeMap<u16, BatchSequence> = BTreeMap::new();
    for single in singles {
        let shard_client = kind_shards.shard_client(single.item.key.id());
        let shard = shard_client.ledger.place().shard;
        let sequence = by_shard.entry(shard).or_insert_with(|| BatchSequence {
            shard_client: shard_client.clone(),
            batches: Vec::new(),
        });
        add(&mut sequence.batches, single);
    }
    let sequences = by_shard.into_values();
    sequences.flat_map(BatchSequence::split).collect()
}

/// Adds a job to the last batch, or to a new one if that is full.
fn add(batches: &mut Vec<ScheduleBatch>, single: Single) {
    let bytes = single.item.bytes();
    let full =
        |batch: &ScheduleBatch| batch.items.len() == BATCH || batch.bytes + bytes > BATCH_BYTES;
    if batches.last().is_none_or(full) {
        batches.push(ScheduleBatch::default());
    }
    let batch = batches.last_mut().expect("just made");
    batch.bytes += bytes;
    batch.items.push(single.item);
    batch.places.push(single.place);
    batch.durable.push(single.durable);
}

/// Whether two items have the same key.
fn has_a_key_twice(batches: &[ScheduleBatch]) -> bool {
    let mut ids = HashSet::new();
    let mut items = batches.iter().flat_map(|batch| &batch.items);
    items.any(|item| !ids.insert(item.key.id()))
}

/// The answer to one job; `None` if its condition kept it from being scheduled.
fn read(answered: Answered, reached: Option<Result<Reached>>) -> Result<Option<Scheduled>> {
    match answered.answer {
        Word::Exists | Word::Absent => Ok(None),
        _ => Scheduled::from_answer(answered, reached.transpose()?).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(jobs: impl Iterator<Item = (usize, usize)>) -> Vec<ScheduleBatch> {
        let mut batches = Vec::new();
        for (place, (id, bytes)) in jobs.enumerate() {
            let job = NewJob::from_bytes(format!("a:b:c:{id}"), vec![0; bytes]);
            let placing = job.into_placing(usize::MAX, crate::time::UnixMs::now());
            let Ok(Placing::Send(item)) = placing else {
                panic!("a plain job is sent");
            };
            let durable = None;
            let single = Single {
                place,
                item,
                durable,
            };
            add(&mut batches, single);
        }
        batches
    }

    fn sizes(batches: &[ScheduleBatch]) -> Vec<usize> {
        batches.iter().map(|batch| batch.items.len()).collect()
    }

    #[test]
    fn batches_are_bounded_in_items_and_bytes_and_keep_the_order() {
        let many = batches((0..2 * BATCH + 1).map(|id| (id, 1)));
        assert_eq!(sizes(&many), [BATCH, BATCH, 1]);
        let places: Vec<usize> = many.iter().flat_map(|batch| batch.places.clone()).collect();
        assert!(places.into_iter().eq(0..2 * BATCH + 1));
        let third = BATCH_BYTES / 3;
        let large = [third, third, third, 2 * BATCH_BYTES, 1, BATCH_BYTES];
        let large = batches(large.into_iter().enumerate());
        assert_eq!(sizes(&large), [2, 1, 1, 1, 1], "headers count, too");
    }

    /// Callers see a difference only when a connection breaks.
    #[test]
    fn batches_with_a_common_key_stay_in_order() {
        let far_apart = (0..BATCH).chain([0]).map(|id| (id, 1));
        assert!(has_a_key_twice(&batches(far_apart)));
        assert!(!has_a_key_twice(&batches((0..=BATCH).map(|id| (id, 1)))));
    }
}
