//! Numbered batches: a program that stores a number beside its own data can send a batch again after
//! a crash, and Redis carries out nothing twice.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::new_job::{NOW, Placing, after, at};
use crate::client::batcher::BatchOperation;
use crate::client::{Client, KindShards, NewJob, ShardClient, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey};
use crate::store::{Answered, Change, Lane, Placement, When, Word, unique_id, was_carried_out};

/// The most calls of one batch.
pub const MAX_NUMBERED_CALLS: usize = 1000;

/// The highest number of a [numbered batch](Client::send_numbered): Redis computes with doubles, and
/// each batch takes some four million numbers of its lane.
pub const MAX_BATCH_NUMBER: u64 = (1 << 31) - 1;

/// Calls at neighbouring places in the caller's list travel together, this many at the most: while Redis
/// carries them out, due jobs wait. A call whose payload has more bytes than [`ALONE`] travels alone.
/// Parts of all kinds [wait for each other](crate::client::background).
///
/// So the part of a call and its number depend on its place alone, and not on the other calls: some
/// of them may be valid at one attempt and invalid at the next. After an upgrade a batch has to be
/// divided in the same way, so these stay as they are.
const PART: usize = 32;
const ALONE: usize = 8 << 10;

/// How many numbers there are for the parts of one sort of one round: for those of neighbours, and one
/// for each call that travels alone.
const SLOTS: u64 = NEIGHBOURS + MAX_NUMBERED_CALLS as u64;
const NEIGHBOURS: u64 = MAX_NUMBERED_CALLS.div_ceil(PART) as u64;

/// The numbers of a lane that each batch has on a ledger: enough for as many rounds as there are
/// calls.
const NUMBERS: u64 = 1 << 22;
const _: () = assert!(MAX_NUMBERED_CALLS as u64 * 3 * SLOTS <= NUMBERS);

/// How often a batch follows a kind to another layout.
const TRIES: usize = 3;

/// The name of a series of batches, one at a time, with rising numbers. The caller stores the name and
/// the last number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LaneId(String);

/// One call of a [numbered batch](Client::send_numbered).
#[must_use = "hand it to `send_numbered`"]
#[derive(Debug)]
pub enum NumberedCall {
    /// Schedules a job.
    Schedule(Box<NewJob>),
    /// Gives a pending job another due time.
    Reschedule(MoveTo),
    /// Cancels a job.
    Cancel(Result<JobKey>),
    /// A call that cannot be made, and why.
    Invalid(Error),
}

/// A job and its new due time.
#[derive(Debug)]
pub struct MoveTo(Result<Change>);

/// The answer to one call of a [numbered batch](Client::send_numbered).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumberedAnswer {
    /// The call had its effect.
    Done,
    /// There was nothing to do: no such job, or a condition of the schedule did not hold.
    Nothing,
    /// It was carried out before, by the same batch; its effect is not known any more.
    Repeated,
}

impl LaneId {
    /// A new name: 96 random bits.
    #[expect(clippy::new_without_default, reason = "each one is another one")]
    pub fn new() -> Self {
        LaneId(unique_id())
    }

    /// Reads a stored name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the text has not the form of a name: 24 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 24 && text.bytes().all(is_digit) {
            return Ok(LaneId(text.to_owned()));
        }
        Err(Error::new(
            ErrorKind::InvalidSetting,
            format!("{text:?} is no name of a lane: it has 24 hexadecimal digits, 0-9 and a-f"),
        ))
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NumberedCall {
    /// Schedules a job, as [`Client::schedule_many`] does. Quiet hours of the job and a rule are
    /// settled when the batch is sent.
    pub fn schedule(job: NewJob) -> Self {
        NumberedCall::Schedule(Box::new(job))
    }

    /// Makes a pending job due this long after Redis receives the batch.
    pub fn reschedule_after(key: impl IntoJobKey, delay: Duration) -> Self {
        NumberedCall::Reschedule(MoveTo::new(key, after(delay)))
    }

    /// Makes a pending job due at this time by Redis' clock.
    pub fn reschedule_at(key: impl IntoJobKey, due: SystemTime) -> Self {
        NumberedCall::Reschedule(MoveTo::new(key, at(due)))
    }

    /// Makes a pending job due now.
    pub fn reschedule_now(key: impl IntoJobKey) -> Self {
        NumberedCall::Reschedule(MoveTo::new(key, Ok(NOW)))
    }

    /// Keeps the place of a call that cannot be made; its answer is this reason. The places of the
    /// other calls must not change when the batch is sent again.
    pub fn invalid(reason: impl Into<String>) -> Self {
        NumberedCall::Invalid(Error::new(ErrorKind::InvalidSetting, reason))
    }

    /// Cancels a job, as [`Client::cancel`] does.
    pub fn cancel(key: impl IntoJobKey) -> Self {
        NumberedCall::Cancel(key.into_job_key())
    }
}

impl MoveTo {
    fn new(key: impl IntoJobKey, when: Result<When>) -> Self {
        let change = || {
            Ok(Change {
                key: key.into_job_key()?,
                when: when?,
                step: "postponed",
            })
        };
        MoveTo(change())
    }
}

/// A call that is to be sent, with its place in the caller's list.
struct Numbered<Op> {
    place: usize,
    item: Op,
}

/// A call whose values are valid.
#[derive(Clone)]
enum Checked {
    Schedule(Placement),
    Change(Change),
    Cancel(JobKey),
}

/// Calls of which none has the key of another one.
#[derive(Default)]
struct Round {
    schedules: Vec<Numbered<Placement>>,
    changes: Vec<Numbered<Change>>,
    cancels: Vec<Numbered<JobKey>>,
}

/// The calls of a batch on one ledger, and their answers so far.
struct Trip<'a> {
    client: &'a Client,
    kind_shards: &'a Arc<KindShards>,
    shard_client: &'a ShardClient,
    /// The name of the lane on this ledger, and the first number of the batch.
    lane: (String, u64),
    answers: Vec<(usize, Result<NumberedAnswer>)>,
    /// The calls that the ledger refused, because its kind has another layout.
    refused: Vec<Numbered<Checked>>,
    /// Why later parts are not sent.
    failed: Option<Error>,
}

impl Checked {
    fn key(&self) -> &JobKey {
        match self {
            Checked::Schedule(item) => &item.key,
            Checked::Change(item) => &item.key,
            Checked::Cancel(key) => key,
        }
    }

    fn creates(&self) -> bool {
        matches!(self, Checked::Schedule(item) if item.creates())
    }
}

/// An item of a part.
trait Item: BatchOperation<Terms = (), Answer = Answered> + Clone {
    /// The answer if a run of the job is in progress.
    const RUNNING: NumberedAnswer;

    /// The place of this sort among the sorts of a round.
    const SORT: u64;

    /// Whether the call travels alone.
    fn is_large(&self) -> bool {
        false
    }

    fn into_checked(self) -> Checked;
}

impl Item for Placement {
    const RUNNING: NumberedAnswer = NumberedAnswer::Done;
    const SORT: u64 = 0;

    fn is_large(&self) -> bool {
        self.payload.len() > ALONE
    }

    fn into_checked(self) -> Checked {
        Checked::Schedule(self)
    }
}

impl Item for Change {
    const RUNNING: NumberedAnswer = NumberedAnswer::Nothing;
    const SORT: u64 = 1;

    fn into_checked(self) -> Checked {
        Checked::Change(self)
    }
}

impl Item for JobKey {
    const RUNNING: NumberedAnswer = NumberedAnswer::Done;
    const SORT: u64 = 2;

    fn into_checked(self) -> Checked {
        Checked::Cancel(self)
    }
}

/// The answers in the order of the caller's list.
type Answers = Vec<Result<NumberedAnswer>>;

impl Client {
    /// Sends a batch of up to [`MAX_NUMBERED_CALLS`] calls under a number, and returns one answer
    /// for each, in their order. It is for a program that passes calls on exactly once although it
    /// may crash, such as the relay of an outbox:
    ///
    /// 1. Store the calls, the name of the lane, and a number above the last one, up to
    ///    [`MAX_BATCH_NUMBER`].
    /// 2. Send the batch. Send it again, with the same number and the same calls at the same places,
    ///    until each answer is `Ok` or [refused](Error::is_refusal).
    /// 3. Only then send a batch with a higher number in this lane.
    ///
    /// However often the batch is sent, and by whom: each call takes effect once. Two senders at the
    /// same time do no harm, nor does one that comes late. Invalid calls are refused before anything
    /// is sent, and do not affect the others. Calls on one key are carried out in order.
    ///
    /// If what you have stored can lose its last changes, as a database does at a fail-over, begin a
    /// new lane for further batches: a number that was used for other calls is taken for a repeat.
    ///
    /// There are two limits. Redis remembers a batch for an hour after the last one of its lane. And
    /// if a kind is resharded between two attempts, or during them, calls may be carried out twice.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// use keyfall::{LaneId, NewJob, NumberedCall};
    ///
    /// let lane = LaneId::new();
    /// // Here both are stored, with the calls.
    /// let calls = vec![
    ///     NumberedCall::schedule(NewJob::new("app1:order:expire:42", "")),
    ///     NumberedCall::cancel("app1:order:remind:42"),
    /// ];
    /// for answer in client.send_numbered(&lane, 1, calls).await {
    ///     answer?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_numbered(
        &self,
        lane: &LaneId,
        number: u64,
        calls: Vec<NumberedCall>,
    ) -> Vec<Result<NumberedAnswer>> {
        if let Err(error) = check_size(number, calls.len()) {
            return calls.iter().map(|_| Err(error.duplicate())).collect();
        }
        let mut answers: Answers = Vec::with_capacity(calls.len());
        let mut by_kind: BTreeMap<String, Vec<Numbered<Checked>>> = BTreeMap::new();
        for (place, call) in calls.into_iter().enumerate() {
            // Until the call is answered.
            let mut answer = Ok(NumberedAnswer::Nothing);
            match self.checked(call) {
                Ok(None) => {}
                Ok(Some(item)) => {
                    let kind = item.key().kind().to_owned();
                    let calls = by_kind.entry(kind).or_default();
                    calls.push(Numbered { place, item });
                }
                Err(error) => answer = Err(error.refusal()),
            }
            answers.push(answer);
        }
        let kinds = by_kind
            .into_iter()
            .map(|(kind, calls)| self.send_to_kind(lane, number, kind, calls));
        for (place, answer) in join_all(kinds).await.into_iter().flatten() {
            answers[place] = answer;
        }
        answers
    }

    /// The call as it is sent; `None` if quiet hours leave it out.
    fn checked(&self, call: NumberedCall) -> Result<Option<Checked>> {
        Ok(match call {
            NumberedCall::Schedule(job) => {
                match job.into_placing(self.settings().payload_limit, self.now())? {
                    Placing::Send(item) => Some(Checked::Schedule(item)),
                    Placing::LeftOut(_) => None,
                }
            }
            NumberedCall::Reschedule(MoveTo(change)) => Some(Checked::Change(change?)),
            NumberedCall::Cancel(key) => Some(Checked::Cancel(key?)),
            NumberedCall::Invalid(error) => return Err(error),
        })
    }

    /// Sends the calls on one kind, and returns their answers with their places.
    async fn send_to_kind(
        &self,
        lane: &LaneId,
        number: u64,
        kind: String,
        mut calls: Vec<Numbered<Checked>>,
    ) -> Vec<(usize, Result<NumberedAnswer>)> {
        let mut answers = Vec::with_capacity(calls.len());
        #[cfg(feature = "worker")]
        let tries = if self.memory().is_some() { 0 } else { TRIES };
        #[cfg(not(feature = "worker"))]
        let tries = TRIES;
        for _ in 0..tries {
            let creates = calls.iter().any(|it| it.item.creates());
            let found = self.kind_shards_for(&kind, creates, self.deadline()).await;
            let kind_shards = match found {
                Ok(Some(kind_shards)) => kind_shards,
                Ok(None) => {
                    let nothing = |it: Numbered<_>| (it.place, Ok(NumberedAnswer::Nothing));
                    answers.extend(calls.into_iter().map(nothing));
                    return answers;
                }
                Err(error) => {
                    answers.extend(calls.iter().map(|it| (it.place, Err(error.duplicate()))));
                    return answers;
                }
            };
            if kind_shards.is_moving() {
                break;
            }
            let mut by_shard: BTreeMap<u16, Vec<Numbered<Checked>>> = BTreeMap::new();
            for call in calls {
                let shard_client = kind_shards.shard_client(call.item.key().id());
                let shard = shard_client.ledger.place().shard;
                by_shard.entry(shard).or_default().push(call);
            }
            // A ledger may have parts of this batch by an earlier layout, with other calls.
            let name = match kind_shards.layout.epoch {
                0 => lane.0.clone(),
                epoch => format!("{}.{epoch}", lane.0),
            };
            let trips = by_shard.into_values().map(|calls| {
                Trip::make(self, &kind_shards, (name.clone(), number * NUMBERS), calls)
            });
            calls = Vec::new();
            for (answered, refused) in join_all(trips).await {
                answers.extend(answered);
                calls.extend(refused);
            }
            if calls.is_empty() {
                return answers;
            }
            if let Err(error) = self.catch_up(&kind_shards, self.deadline()).await {
                answers.extend(calls.iter().map(|it| (it.place, Err(error.duplicate()))));
                return answers;
            }
            calls.sort_by_key(|it| it.place);
        }
        // The kind is being resharded, so each call looks for its job. One that fails ends the
        // attempt: the next one could be on the same key.
        let (until, mut failed) = (self.deadline(), None::<Error>);
        for call in calls {
            let answer = match &failed {
                Some(error) => Err(error.duplicate()),
                None => self.send_alone(call.item, until).await,
            };
            failed = answer.as_ref().err().map(Error::duplicate);
            answers.push((call.place, answer));
        }
        answers
    }

    /// Sends a call without a number.
    async fn send_alone(&self, call: Checked, until: Instant) -> Result<NumberedAnswer> {
        match call {
            Checked::Schedule(item) => {
                let (answered, _) = self.place_job(item, None, until).await?;
                read::<Placement>(answered.answer)
            }
            Checked::Change(item) => read::<Change>(self.ask(item, until).await?.answer),
            Checked::Cancel(item) => read::<JobKey>(self.ask(item, until).await?.answer),
        }
    }
}

impl<'a> Trip<'a> {
    /// Sends the calls on one ledger, one part after the other.
    async fn make(
        client: &'a Client,
        kind_shards: &'a Arc<KindShards>,
        lane: (String, u64),
        calls: Vec<Numbered<Checked>>,
    ) -> (Vec<(usize, Result<NumberedAnswer>)>, Vec<Numbered<Checked>>) {
        let first = calls.first().expect("a ledger with calls");
        let mut trip = Trip {
            client,
            kind_shards,
            shard_client: kind_shards.shard_client(first.item.key().id()),
            lane,
            answers: Vec::with_capacity(calls.len()),
            refused: Vec::new(),
            failed: None,
        };
        for (number, round) in (0..).zip(rounds(calls)) {
            trip.send(number, round.schedules).await;
            trip.send(number, round.changes).await;
            trip.send(number, round.cancels).await;
        }
        (trip.answers, trip.refused)
    }

    /// Sends calls of one sort, in parts. The numbers rise from part to part.
    async fn send<Op: Item>(&mut self, round: u64, calls: Vec<Numbered<Op>>) {
        for (slot, part) in parts(calls) {
            if let Some(error) = &self.failed {
                let error = |it: &Numbered<Op>| (it.place, Err(error.duplicate()));
                self.answers.extend(part.iter().map(error));
                continue;
            }
            let items: Vec<Op> = part.iter().map(|it| it.item.clone()).collect();
            let (name, first) = &self.lane;
            let number = first + (round * 3 + Op::SORT) * SLOTS + slot;
            // Beginning a call takes the next number.
            let mut lane = Lane::resumed(name.clone(), number);
            let ledger = &self.shard_client.ledger;
            let sending = async {
                let until = self.client.deadline();
                Op::send(ledger, &mut lane, &(), &items, until).await
            };
            match self.client.in_background(ledger, |_| sending).await {
                Ok(answered) => self.take(part, answered).await,
                Err(error) if was_carried_out(&error) => {
                    let repeated = |it: Numbered<Op>| (it.place, Ok(NumberedAnswer::Repeated));
                    self.answers.extend(part.into_iter().map(repeated));
                }
                Err(error) => {
                    let all = part.iter().map(|it| (it.place, Err(error.duplicate())));
                    self.answers.extend(all);
                    self.failed = Some(error);
                }
            }
        }
    }

    /// Takes the answers of a part.
    async fn take<Op: Item>(&mut self, part: Vec<Numbered<Op>>, answered: Vec<Answered>) {
        if answered.iter().any(|it| it.answer != Word::Absent) {
            self.kind_shards.note_jobs();
            let unlisted = answered.iter().find_map(|it| it.unlisted);
            let until = self.client.deadline();
            let listed = self
                .client
                .register_again(self.kind_shards, unlisted, until);
            // The jobs are stored. Sent again, the part is answered as now.
            if let Err(error) = listed.await {
                self.failed = Some(error);
            }
        }
        for (call, answered) in part.into_iter().zip(answered) {
            let Numbered { place, item } = call;
            match (&self.failed, answered.answer) {
                (_, Word::Stale | Word::Elsewhere) => {
                    let item = item.into_checked();
                    self.refused.push(Numbered { place, item });
                }
                (Some(error), _) => self.answers.push((place, Err(error.duplicate()))),
                (None, word) => self.answers.push((place, read::<Op>(word))),
            }
        }
    }
}

fn read<Op: Item>(word: Word) -> Result<NumberedAnswer> {
    match word {
        Word::Created(_)
        | Word::Replaced(_)
        | Word::Succeeds(_)
        | Word::Moved(_)
        | Word::SuccessorMoved(_)
        | Word::Cancelled => Ok(NumberedAnswer::Done),
        Word::Running => Ok(Op::RUNNING),
        Word::Exists | Word::Absent => Ok(NumberedAnswer::Nothing),
        other => Err(out_of_place(other)),
    }
}

/// Divides calls so that each round has a key once: the first call on each key, then the second, and
/// so on.
fn rounds(calls: Vec<Numbered<Checked>>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    let mut seen: HashMap<JobKey, usize> = HashMap::new();
    for Numbered { place, item } in calls {
        let at = seen.entry(item.key().clone()).or_default();
        if rounds.len() == *at {
            rounds.push(Round::default());
        }
        let round = &mut rounds[*at];
        *at += 1;
        match item {
            Checked::Schedule(item) => round.schedules.push(Numbered { place, item }),
            Checked::Change(item) => round.changes.push(Numbered { place, item }),
            Checked::Cancel(item) => round.cancels.push(Numbered { place, item }),
        }
    }
    rounds
}

/// Divides calls into parts, each with its number among those of its sort and round.
fn parts<Op: Item>(calls: Vec<Numbered<Op>>) -> BTreeMap<u64, Vec<Numbered<Op>>> {
    let mut parts: BTreeMap<u64, Vec<Numbered<Op>>> = BTreeMap::new();
    for call in calls {
        let slot = match call.item.is_large() {
            true => NEIGHBOURS + call.place as u64,
            false => (call.place / PART) as u64,
        };
        parts.entry(slot).or_default().push(call);
    }
    parts
}

fn check_size(number: u64, calls: usize) -> Result<()> {
    let wrong = |message| Err(Error::new(ErrorKind::InvalidSetting, message));
    if calls > MAX_NUMBERED_CALLS {
        return wrong(format!(
            "the batch has {calls} calls, and {MAX_NUMBERED_CALLS} is the limit: send several \
             batches, one after the other"
        ));
    }
    if number > MAX_BATCH_NUMBER {
        return wrong(format!(
            "the number of the batch is {number}, and {MAX_BATCH_NUMBER} is the limit: begin a new \
             lane with 1"
        ));
    }
    Ok(())
}
