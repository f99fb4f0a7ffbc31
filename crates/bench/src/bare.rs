//! The phase `bare`: a script that only writes the stored data of each job. Its rate is the limit
//! of this machine and this server, for comparison with the other rates.

use std::time::{Instant, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::args::Options;
use super::bar::Bar;
use super::cost::Meter;
use super::figures::Figures;
use super::ground::Ground;
use super::stock::{self, HOUR};

/// Jobs in one call of the script, as many as a batch of Keyfall has.
const BATCH: usize = 256;

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
    bar.begin("writing", options.jobs);
    let payload = stock::payload(options.payload);
    let due = ground.time().await?.server + HOUR;
    let due = due.duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    let (script, payload) = (&redis::Script::new(WRITE), &payload[..]);
    let ledgers = &ledgers(ground, options.shards.unwrap_or(1));
    let write = |first: usize| {
        let (ledger, node) = &ledgers[first / BATCH % ledgers.len()];
        let mut call = script.prepare_invoke();
        call.key(format!("{ledger}:due"))
            .key(format!("{ledger}:shadow"));
        call.arg(due.to_string());
        let numbers = first..options.jobs.min(first + BATCH);
        let size = numbers.len();
        for number in numbers {
            call.key(format!("{ledger}:{number:06}"));
            call.arg(number).arg(payload);
        }
        let mut redis = ground.nodes.all()[*node].redis();
        async move {
            let () = call.invoke_async(&mut redis).await?;
            bar.advance(size);
            anyhow::Ok(())
        }
    };
    let (meter, began) = (Meter::start(ground).await?, Instant::now());
    let batches = stream::iter((0..options.jobs).step_by(BATCH)).map(write);
    let written = batches.buffer_unordered(IN_FLIGHT);
    let () = written.try_collect().await?;
    let took = began.elapsed().as_secs_f64();
    figures.note_cost("bare", meter.read(options.jobs).await?);
    figures.note("bare_jobs_per_s", options.jobs as f64 / took);
    Ok(())
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
