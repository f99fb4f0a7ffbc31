//! Moves of jobs, dead letters and the marks of adopted keys from one ledger of a kind to another.
//!
//! A move has three steps: `lua/take.lua` takes a batch out of the ledger and keeps it aside there,
//! `lua/put.lua` puts it where it belongs, and `lua/drop.lua` drops it from the first ledger. Any
//! client may repeat any step. A ledger has one batch at a time, and batches are numbered, so the
//! receiver recognises a late batch and ignores it.

use std::collections::HashMap;
use std::time::Instant;

use crate::error::Result;
use crate::key::JobKey;
use crate::names::MARKER;
use crate::shards::Layout;
use crate::store::Ledger;
use crate::store::ledger::reply::{Answered, Reply};
#[cfg(feature = "worker")]
use crate::store::ledger::script::NAMES;
use crate::store::ledger::script::{DROP, PUT, TAKE};
use crate::store::ledger::who;

/// The name that stands for the counters of a ledger in a batch. No id is `*`.
pub(crate) const COUNTERS: &str = "*";

/// A batch that was taken out of a ledger.
pub(in crate::store) struct MoveBatch {
    /// The number of the batch. It grows with each batch of the ledger.
    pub(in crate::store) number: u64,
    /// The largest fencing value that the ledger has given out, or a larger one.
    pub(in crate::store) fence: u64,
    /// The items, in the order in which they were taken out.
    pub(in crate::store) items: Vec<Item>,
}

/// One job, dead letter, adoption mark or set of counters in a batch. The strings are passed on to
/// `lua/put.lua` as `lua/take.lua` gave them.
pub(in crate::store) struct Item {
    /// The sort of the item: `job`, `letter`, `mark` (of an adopted key) or `counters`.
    pub(in crate::store) what: String,
    /// The id of the job, or [`COUNTERS`].
    pub(in crate::store) id: String,
    /// The number of a dead letter.
    pub(in crate::store) number: String,
    /// The time of the item in Unix milliseconds: due time of a job, death of a letter, expiry of a
    /// key.
    pub(in crate::store) at: String,
    /// The record, as it is stored.
    pub(in crate::store) record: Vec<u8>,
}

/// A batch that the receiver refused, because it had taken in a later one. Either the refused batch
/// was a late repeat, or a fail-over set back the data of this ledger, its clock, and so its
/// numbers. The default means: no batch.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::store) struct Late {
    /// The number of the refused batch.
    batch: u64,
    /// The next number of a batch has to be above this one.
    above: u64,
}

/// The result of a delivery.
#[derive(Debug)]
pub(in crate::store) enum Arrival {
    /// The receiver has the batch, now or from an earlier delivery.
    Arrived,
    /// The receiver took the batch for an earlier one: it needs a higher number.
    Late(Late),
    /// The receiver has another layout.
    Stale,
}

impl Ledger {
    /// Moves the named jobs with their last dead letters, or dead letters, out of this ledger,
    /// which has an old place, to the ledgers where `layout` puts them. A batch of an earlier call
    /// is delivered first.
    ///
    /// Returns an answer for each name. `None` if a ledger has another layout.
    ///
    /// - `Taken`: the job and its dead letters were moved.
    /// - `Leased`: the job is running, and stays until it is settled; its dead letters were moved.
    /// - `Absent`: there is nothing of this name here.
    /// - `NotYet`: the batch was full before it; name it again.
    ///
    /// # Errors
    ///
    /// If a ledger cannot be reached. The batch stays aside, and the next call delivers it.
    pub(crate) async fn move_out(
        &self,
        names: &[String],
        layout: Layout,
        until: Instant,
    ) -> Result<Option<Vec<Answered>>> {
        let mut late = Late::default();
        let mut taken = None;
        loop {
            let names = if taken.is_none() { names } else { &[] };
            let Some((mut reply, is_busy)) = self.take(names, late, until).await? else {
                return Ok(None);
            };
            let answers = reply.answers()?;
            if !is_busy && taken.is_none() {
                taken = Some(answers);
            }
            let batch = self.read_batch(&mut reply)?;
            if batch.items.is_empty() {
                return Ok(taken);
            }
            match self.deliver(batch, layout, until).await? {
                Arrival::Arrived if taken.is_some() => return Ok(taken),
                Arrival::Arrived => {}
                Arrival::Late(again) => late = again,
                Arrival::Stale => return Ok(None),
            }
        }
    }

    /// Delivers a batch that an earlier call has left aside. Returns whether the ledgers have this
    /// layout.
    ///
    /// # Errors
    ///
    /// If this ledger, or a ledger that gets a part of the batch, cannot be reached. A repeat goes
    /// on with the same batch.
    pub(crate) async fn push_on(&self, layout: Layout, until: Instant) -> Result<bool> {
        Ok(self.move_out(&[], layout, until).await?.is_some())
    }

    /// Calls `lua/take.lua`. Returns its reply, and whether the reply describes an earlier batch,
    /// which has to be delivered first. `None` if the ledger has another layout.
    ///
    /// A batch has about 1 MiB of records at the most; names beyond that are answered with
    /// [`ReplyWord::NotYet`](crate::store::ledger::reply::ReplyWord). The call may be repeated, and
    /// works while Redis is full.
    pub(in crate::store) async fn take(
        &self,
        names: &[String],
        late: Late,
        until: Instant,
    ) -> Result<Option<(Reply, bool)>> {
        let mut cmd = self.call(&TAKE, &self.names.of_leaving(), [].into_iter());
        cmd.arg(self.place().to_string());
        cmd.arg(late.batch).arg(late.above).arg(names);
        let mut reply = self.eval(&TAKE, &cmd, until).await?.reply;
        if self.is_stale(&mut reply)? {
            return Ok(None);
        }
        let is_busy = reply.status == "busy";
        Ok(Some((reply, is_busy)))
    }

    /// Reads the rest of a reply of `lua/take.lua`.
    fn read_batch(&self, reply: &mut Reply) -> Result<MoveBatch> {
        let mut batch = MoveBatch {
            number: reply.number()?,
            fence: reply.number()?,
            items: Vec::new(),
        };
        while !reply.is_exhausted() {
            batch.items.push(Item {
                what: reply.text()?,
                id: reply.text()?,
                number: reply.text()?,
                at: reply.text()?,
                record: reply.bytes()?,
            });
        }
        Ok(batch)
    }

    /// Puts the items of a batch into their ledgers, and then drops the batch here.
    async fn deliver(&self, batch: MoveBatch, layout: Layout, until: Instant) -> Result<Arrival> {
        let mut by_shard: HashMap<u16, Vec<&Item>> = HashMap::new();
        for item in &batch.items {
            let shard = match item.id.as_str() {
                COUNTERS => 0,
                id => layout.place_of(id).shard,
            };
            // A plain key stays on its server, so its mark means nothing on another one.
            if item.what != "mark" || !self.is_apart_from(shard) {
                by_shard.entry(shard).or_default().push(item);
            }
        }
        for (shard, items) in by_shard {
            let ledger = Ledger::new(
                self.store.clone(),
                self.kind().clone(),
                layout.place(shard),
                self.has_own_triggers(),
            );
            let put = ledger.put(&self.names.subject, &batch, &items, until);
            match put.await? {
                Arrival::Arrived => {}
                other => return Ok(other),
            }
        }
        self.drop_batch(batch.number, until).await?;
        self.leave_no_triggers(&batch, layout);
        Ok(Arrival::Arrived)
    }

    /// Whether another server has this shard.
    fn is_apart_from(&self, shard: u16) -> bool {
        self.store.place_of(self.kind(), shard) != self.server()
    }

    /// Removes the triggers of moved jobs whose new server is another one, where they have other
    /// triggers. It runs in the background: a trigger that stays announces a job that is not here,
    /// which is harmless.
    fn leave_no_triggers(&self, batch: &MoveBatch, layout: Layout) {
        let is_elsewhere = |item: &&Item| {
            item.what == "job" && self.is_apart_from(layout.place_of(&item.id).shard)
        };
        let left = batch.items.iter().filter(is_elsewhere);
        let left = left.map(|item| (format!("{}:{}", self.kind(), item.id), None));
        let left: Vec<_> = left.collect();
        if !left.is_empty() {
            tokio::spawn(self.server.clone().arm(left));
        }
    }

    /// Forgets a batch that was delivered; `lua/drop.lua`. It may be repeated and be late: a later
    /// batch stays. It works while Redis is full.
    pub(in crate::store) async fn drop_batch(&self, number: u64, until: Instant) -> Result<()> {
        let mut cmd = self.call(&DROP, &self.names.of_dropping(), [].into_iter());
        cmd.arg(number);
        self.eval(&DROP, &cmd, until).await.map(drop)
    }

    /// Takes in a part of a batch of another ledger, whose name in wake-ups is `from`;
    /// `lua/put.lua`.
    ///
    /// A ledger takes in a batch once: it ignores a repeat, and refuses an earlier batch as late.
    /// Its later fencing values are higher than those of the other ledger. A dead letter keeps its
    /// number, unless another letter of its job has that number. The call works while Redis is
    /// full.
    pub(in crate::store) async fn put(
        &self,
        from: &str,
        batch: &MoveBatch,
        items: &[&Item],
        until: Instant,
    ) -> Result<Arrival> {
        // One trigger for each item, needed or not.
        let key = |item: &&Item| match item.id.as_str() {
            COUNTERS => self.kind().key("-"),
            id => self.kind().key(id),
        };
        let triggers = items.iter().map(key);
        let triggers: Vec<JobKey> = triggers.collect::<Result<_>>()?;
        let mut cmd = self.call(&PUT, &self.names.of_arriving(), triggers.iter());
        cmd.arg(who()).arg(self.place().to_string());
        cmd.arg(from).arg(batch.number).arg(batch.fence);
        cmd.arg(&self.wake).arg(&self.names.subject).arg(MARKER);
        for item in items {
            cmd.arg(&item.what).arg(&item.id).arg(&item.number);
            cmd.arg(&item.at).arg(&item.record[..]);
        }
        let mut reply = self.eval(&PUT, &cmd, until).await?.reply;
        if self.is_stale(&mut reply)? {
            return Ok(Arrival::Stale);
        }
        Ok(match reply.status.as_str() {
            "late" => Arrival::Late(Late {
                batch: batch.number,
                above: reply.number()?,
            }),
            _ => Arrival::Arrived,
        })
    }

    /// A page of the names in one part of the ledger, about [`PAGE`] of them, and the cursor of the
    /// next page; `lua/names.lua`. The first cursor is `0`, and `0` is also the answer at the end.
    #[cfg(feature = "worker")]
    pub(crate) async fn names_in(
        &self,
        part: Part,
        cursor: &str,
        until: Instant,
    ) -> Result<(String, Vec<String>)> {
        let (key, scan) = match part {
            Part::Jobs => (&self.names.shadow, "HSCAN"),
            Part::Letters => (&self.names.grave, "HSCAN"),
            Part::Keys => (&self.names.adopted, "ZSCAN"),
        };
        let mut cmd = self.call(&NAMES, &[key.as_str()], [].into_iter());
        cmd.arg(cursor).arg(PAGE).arg(scan);
        let mut reply = self.eval(&NAMES, &cmd, until).await?.reply;
        Ok((reply.text()?, reply.words()?))
    }
}

/// About how many names a page has. Redis may return a few more, and repeat some.
#[cfg(feature = "worker")]
const PAGE: usize = 256;

/// The part of a ledger whose names are read.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Jobs that are pending or running: all that have a record. A job keeps its record while it is
    /// claimed and settled, so a search meets every job that is there all the time.
    Jobs,
    /// Dead letters, by `id:number`, and the ids that have some.
    Letters,
    /// Adopted keys by the ids of their jobs, in whatever state the jobs are.
    Keys,
}
