//! Bare writes: a script that only writes the stored data of each job. Their rate is the limit of this
//! machine and this server, and the other rates are reported as shares of it.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::args::Options;
use super::bar::Bar;
use super::cost::Meter;
use super::figures::Figures;
use super::ground::Ground;
use super::stock::{self, HOUR};

/// Jobs in one call of the script, as many as a batch of Keyfall has.
pub(super) const BATCH: usize = 256;

/// Simultaneous calls, as many as Keyfall keeps in flight.
const IN_FLIGHT: usize = 4;

/// Writes a due time, a record and a trigger for each job.
const WRITE: &str = "
local dues, records = {}, {}
for i = 3, #KEYS do
  local id, payload = ARGV[2 * i - 4], ARGV[2 * i - 3]
  dues[2 * i - 5], dues[2 * i - 4] = ARGV[1], id
  records[2 * i - 5], records[2 * i - 4] = id, payload
end
redis.call('HSET', KEYS[2], unpack(records))
redis.call('ZADD', KEYS[1], unpack(dues))
for i = 3, #KEYS do
  redis.call('SET', KEYS[i], 'bare', 'NX', 'PXAT', ARGV[1])
end";

/// Measures the rate and the cost of bare writes.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let mut bare = BareWrites::new(ground, options).await?;
    let meter = Meter::start(ground).await?;
    bare.write(options.jobs, bar).await?;
    figures.note_cost("bare", meter.read(options.jobs).await?);
    figures.note("bare_jobs_per_s", bare.rate());
    Ok(())
}

/// Writes jobs, and counts the time that it takes.
pub(super) struct BareWrites<'a> {
    ground: &'a Ground,
    ledgers: Vec<(String, usize)>,
    script: redis::Script,
    payload: Bytes,
    /// The due time of all jobs, in ms.
    due: u128,
    written: usize,
    took: Duration,
}

impl<'a> BareWrites<'a> {
    /// Writes nothing yet. The options give the size of the payloads.
    pub(super) async fn new(ground: &'a Ground, options: &Options) -> anyhow::Result<Self> {
        let due = ground.time().await?.server + HOUR;
        Ok(BareWrites {
            ground,
            ledgers: ledgers(ground, options.shards.unwrap_or(1)),
            script: redis::Script::new(WRITE),
            payload: stock::payload(options.payload),
            due: due.duration_since(SystemTime::UNIX_EPOCH)?.as_millis(),
            written: 0,
            took: Duration::ZERO,
        })
    }

    /// Writes so many further jobs.
    pub(super) async fn write(&mut self, jobs: usize, bar: &Bar) -> anyhow::Result<()> {
        bar.begin("writing", jobs);
        let (first, last) = (self.written, self.written + jobs);
        let began = Instant::now();
        let batches = stream::iter((first..last).step_by(BATCH));
        let calls = batches.map(|batch| self.call(batch, last.min(batch + BATCH), bar));
        let () = calls.buffer_unordered(IN_FLIGHT).try_collect().await?;
        self.took += began.elapsed();
        self.written = last;
        Ok(())
    }

    /// The jobs written in a second.
    pub(super) fn rate(&self) -> f64 {
        self.written as f64 / self.took.as_secs_f64()
    }

    /// Calls the script for the jobs with these numbers.
    async fn call(&self, first: usize, past: usize, bar: &Bar) -> anyhow::Result<()> {
        let (ledger, node) = &self.ledgers[first / BATCH % self.ledgers.len()];
        let mut call = self.script.prepare_invoke();
        call.key(format!("{ledger}:due"))
            .key(format!("{ledger}:shadow"));
        call.arg(self.due.to_string());
        for number in first..past {
            call.key(format!("{ledger}:{number:06}"));
            call.arg(number).arg(&self.payload[..]);
        }
        let mut redis = self.ground.nodes.all()[*node].redis();
        let () = call.invoke_async(&mut redis).await?;
        bar.advance(past - first);
        Ok(())
    }
}

/// The names of `shards` ledgers, each with all its keys in one slot, spread evenly over the
/// servers; with the index of the server of each.
fn ledgers(ground: &Ground, shards: u16) -> Vec<(String, usize)> {
    let all = ground.nodes.all().len();
    let of_shard = |shard: usize| {
        let names = (0..).map(|salt| format!("{}{{{shard}.{salt}}}", ground.kind()));
        let mut places = names.map(|name| (ground.nodes.place_of(&name), name));
        let fits = places.find(|(place, _)| *place == shard % all);
        let (place, name) = fits.expect("one of many names fits");
        (name, place)
    };
    (0..usize::from(shards)).map(of_shard).collect()
}
