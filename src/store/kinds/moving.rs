//! Moving jobs and dead letters, and what is known of adopted keys, from one ledger of a kind to
//! another.
//!
//! In three steps, each of which may be repeated by anybody: a batch is taken out of the ledger and
//! kept aside there, put where it belongs, and dropped. There is one batch of a ledger at a time, and
//! batches are numbered, so that one that arrives late is known and left.

use std::collections::HashMap;
use std::time::Instant;

use crate::error::Result;
use crate::key::JobKey;
use crate::names::MARKER;
use crate::shards::Layout;
use crate::store::Ledger;
use crate::store::ledger::reply::{Answered, Reply};
use crate::store::ledger::script::{DROP, NAMES, PUT, TAKE};
use crate::store::ledger::who;

/// What the counters of a ledger are called where names of jobs are; no id is.
pub(crate) const COUNTERS: &str = "*";

/// What was taken out of a ledger.
pub(in crate::store) struct MoveBatch {
    pub(in crate::store) number: u64,
    /// No fencing value that the ledger gave out is larger.
    pub(in crate::store) fence: u64,
    pub(in crate::store) items: Vec<Item>,
}

pub(in crate::store) struct Item {
    pub(in crate::store) what: String,
    pub(in crate::store) id: String,
    /// Of a letter.
    pub(in crate::store) number: String,
    pub(in crate::store) at: String,
    pub(in crate::store) record: Vec<u8>,
}

/// A batch that another ledger took for one of before: it was taken in long ago; or the numbers of
/// this ledger went back, with its data set and its clock, in a fail-over.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::store) struct Late {
    batch: u64,
    above: u64,
}

/// What became of a batch.
#[derive(Debug)]
pub(in crate::store) enum Arrival {
    Arrived,
    Late(Late),
    /// The ledger goes by another layout.
    Stale,
}

impl Ledger {
    /// Moves jobs with their last letters, or letters, out of this ledger, which has an old place,
    /// to where `layout` puts them. Returns an answer for each name: whether it was moved, runs here,
    /// or is not here. `None` if the ledger goes by another layout.
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

    /// Sees to it that nothing is kept aside of what was taken out before. Returns whether the ledger
    /// goes by this layout.
    pub(crate) async fn push_on(&self, layout: Layout, until: Instant) -> Result<bool> {
        Ok(self.move_out(&[], layout, until).await?.is_some())
    }

    /// The reply of `lua/take.lua`, and whether it is about an earlier batch. `None` if the ledger
    /// goes by another layout.
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

    /// Puts a batch where it belongs, and drops it here.
    async fn deliver(&self, batch: MoveBatch, layout: Layout, until: Instant) -> Result<Arrival> {
        let mut by_shard: HashMap<u16, Vec<&Item>> = HashMap::new();
        for item in &batch.items {
            let shard = match item.id.as_str() {
                COUNTERS => 0,
                id => layout.place_of(id).shard,
            };
            // A key stays where it is: what is known of it says nothing of another server.
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

    /// Takes away the triggers of jobs that are on another server now, where they have others. Nobody
    /// waits for that: one that stays announces a job that is not here.
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

    /// Forgets a batch that has arrived; `lua/drop.lua`.
    pub(in crate::store) async fn drop_batch(&self, number: u64, until: Instant) -> Result<()> {
        let mut cmd = self.call(&DROP, &self.names.of_dropping(), [].into_iter());
        cmd.arg(number);
        self.eval(&DROP, &cmd, until).await.map(drop)
    }

    /// Takes in a part of a batch of another ledger; `lua/put.lua`.
    pub(in crate::store) async fn put(
        &self,
        from: &str,
        batch: &MoveBatch,
        items: &[&Item],
        until: Instant,
    ) -> Result<Arrival> {
        // One for each item, be it needed or not.
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

    /// A page of the names in one part of the ledger, and where the next page begins; `0` at the
    /// end; `lua/names.lua`.
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

/// About how many names a page has.
const PAGE: usize = 256;

/// Of what the names are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Jobs that are pending or run: all that have a record. What is claimed and settled keeps it,
    /// so none slips through that is there all the time.
    Jobs,
    /// Dead letters, by `id:number`, and their ids.
    Letters,
    /// Keys that were adopted, by the ids of their jobs, whatever became of these.
    Keys,
}
