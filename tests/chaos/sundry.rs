//! The rare calls of a service, so that faults hit every script: dead letters, lists, audits,
//! pauses, backups, durable calls, limits, rules, series, what an archive and a copy read, kinds that
//! get more shards or are dropped.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keyfall::{
    ArchiveTerms, Client, CopyMark, CopyTerms, JobState, JobView, KeptJob, Kind, Limit, Requeued,
    Result, Rule, Shards,
};
use tokio::time::sleep;

use crate::journal::{Answer, Ask};
use crate::load::{FAR, KINDS, Producer};
use crate::order::Order;

/// A kind in which nothing falls due, so that its pauses delay nothing.
pub(crate) const IDLE: &str = "chaos:idle:nothing";

/// A kind in which one job is damaged and repaired, again and again.
pub(crate) const DAMAGED: &str = "chaos:damaged:nothing";

/// A kind whose jobs move from shard to shard.
pub(crate) const MOVED: &str = "chaos:moved:nothing";

/// A kind with a limit, a recurring job and a series.
pub(crate) const RULED: &str = "chaos:ruled:nothing";

/// A kind that is archived and copied.
pub(crate) const STORED: &str = "chaos:stored:nothing";

/// A kind that never has a job.
const UNUSED: &str = "chaos:unused:nothing";

/// A kind that is dropped, and comes again.
const DROPPED: &str = "chaos:dropped:nothing";

/// The pause between two calls.
const PAUSE: Duration = Duration::from_millis(100);

/// Makes all rare calls, again and again. Calls that only read may fail; the end of the trial reads
/// the same data.
pub(crate) async fn run(producer: Arc<Producer>, redis: redis::Client) {
    let letters = async {
        for kind in KINDS.iter().cycle() {
            let _ = deal_with_letters(&producer, kind).await;
            sleep(PAUSE).await;
        }
    };
    let looks = async {
        for kind in KINDS.iter().cycle() {
            let _ = look(&producer.client, kind).await;
            sleep(PAUSE).await;
        }
    };
    let pauses = async {
        let call = producer.client.schedule(format!("{IDLE}:1"), "");
        let _ = call.after(FAR).await;
        loop {
            let _ = producer.client.prefix(IDLE).pause().await;
            let _ = producer.client.prefix(IDLE).resume().await;
            let _ = producer.client.prefix(IDLE).keep_history(100).await;
            sleep(PAUSE).await;
        }
    };
    // The letter's job comes back under its name, or is already there.
    let restores = async {
        loop {
            let job = KeptJob::pending(format!("{IDLE}:2"), SystemTime::now() + FAR, "");
            let _ = producer.client.restore(job).await;
            let cancel = producer.client.cancel(format!("{IDLE}:3"));
            let _ = cancel.durable(0).await;
            sleep(PAUSE).await;
        }
    };
    let repairs = async {
        loop {
            let _ = damage_and_repair(&producer.client, &redis).await;
            sleep(PAUSE).await;
        }
    };
    let moves = async {
        for shards in [2, 1].into_iter().cycle() {
            let _ = move_to(&producer.client, shards).await;
            sleep(PAUSE).await;
        }
    };
    let drops = async {
        loop {
            let _ = drop_it(&producer.client).await;
            sleep(PAUSE).await;
        }
    };
    let rules = async {
        loop {
            let _ = limit(&producer.client).await;
            let _ = recur(&producer.client).await;
            let _ = plan(&producer.client).await;
            sleep(PAUSE).await;
        }
    };
    let stores = async {
        loop {
            let _ = archive(&producer.client).await;
            let _ = copy(&producer.client).await;
            sleep(PAUSE).await;
        }
    };
    tokio::join!(
        letters, looks, pauses, restores, repairs, moves, drops, rules, stores
    );
}

/// Damage by hand, and the operator's repair.
async fn damage_and_repair(
    client: &Client,
    redis: &redis::Client,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let key = format!("{DAMAGED}:1");
    client.schedule(&key, "").after(FAR).await?;
    let mut redis = redis.get_multiplexed_async_connection().await?;
    let part = |part: &str| format!("keyfall:{{{DAMAGED}/0}}:{part}");
    for words in [
        // It has no record, a number is none, and another type is in the place of the leases.
        ["HDEL", &part("shadow"), "1", "1"],
        ["HSET", &part("calls"), "turn", "many"],
        ["SET", &part("leased"), "no leases", "KEEPTTL"],
    ] {
        let mut command = redis::Cmd::new();
        command.arg(&words);
        let _: redis::RedisResult<redis::Value> = command.query_async(&mut redis).await;
    }
    client.audit(DAMAGED).repair().await?;
    client.delete_dead_letter(&key).await?;
    Ok(())
}

async fn move_to(client: &Client, shards: u16) -> Result<()> {
    for id in 0..3 {
        let job = client.schedule(format!("{MOVED}:{id}"), "");
        job.after(FAR).await?;
    }
    client.reshard(MOVED, shards).await?;
    Ok(())
}

async fn drop_it(client: &Client) -> Result<()> {
    // A call on a kind that nobody has used.
    client.cancel(format!("{UNUSED}:1")).await?;
    let key = format!("{DROPPED}:1");
    client.schedule(&key, "").after(FAR).await?;
    client.cancel(&key).await?;
    client.drop_kind(DROPPED).await?;
    Ok(())
}

async fn limit(client: &Client) -> Result<()> {
    let job = client.schedule(format!("{RULED}:1"), "");
    job.after(FAR).await?;
    client.limit(RULED, Limit::new().concurrency(1)).await?;
    client.hold(RULED, PAUSE).await?;
    client.unlimit(RULED).await?;
    Ok(())
}

async fn recur(client: &Client) -> Result<()> {
    let key = format!("{RULED}:2");
    let job = client.schedule(&key, "").recurring(Rule::every(FAR)?);
    job.await?;
    client.pause_rule(&key).await?;
    client.resume_rule(&key).await?;
    client.cancel(&key).await?;
    Ok(())
}

async fn plan(client: &Client) -> Result<()> {
    let series = || client.series(format!("{RULED}:3"));
    let anchored = series().anchor(SystemTime::now() + FAR, "UTC");
    anchored.at(["-1h", "+1h"]).await?;
    series().cancel().await?;
    Ok(())
}

/// The calls of an archiver.
async fn archive(client: &Client) -> Result<()> {
    let kind = Kind::parse(STORED)?;
    let stored = client.prefix(STORED);
    stored.archive(ArchiveTerms::new()).await?;
    let key = format!("{STORED}:1");
    client.schedule(&key, "").after(FAR).await?;
    client.cancel(&key).await?;
    let ended = client.ended(&kind, Shards::All, 100).await?;
    client.forget_ended(&kind, &ended).await?;
    Ok(())
}

/// The calls of a copier.
async fn copy(client: &Client) -> Result<()> {
    let kind = Kind::parse(STORED)?;
    let (terms, stored) = (CopyTerms::new(), client.prefix(STORED));
    stored.copy(terms).await?;
    for shard in client.changes(&kind, Shards::All, 0).await?.shards {
        let mark = CopyMark {
            version: shard.version,
            number: shard.number,
            fence: shard.fence,
        };
        let begun = client.begin_copy(&kind, shard.shard, terms, mark, None);
        begun.await?;
    }
    let job = client.schedule(format!("{STORED}:2"), "");
    job.after(FAR).await?;
    let changes = client.changes(&kind, Shards::All, 100).await?;
    for shard in &changes.shards {
        let number = shard.number + 1;
        let forgotten = client.forget_changes(&kind, shard.shard, number, &changes.jobs);
        forgotten.await?;
    }
    client.prefix(STORED).stop_copy().await?;
    Ok(())
}

async fn deal_with_letters(producer: &Producer, kind: &str) -> Result<()> {
    let page = producer.client.list(kind, JobState::Dead).limit(2).await?;
    for (number, letter) in page.jobs.iter().enumerate() {
        // The number makes the call repeatable.
        let letters = producer.client.dead_letters(letter.key()).await?;
        let Some(last) = letters.first() else {
            continue;
        };
        if number == 0 {
            requeue(producer, last).await?;
        } else {
            discard(producer, last).await;
        }
    }
    Ok(())
}

async fn requeue(producer: &Producer, letter: &JobView) -> Result<()> {
    let version = letter.json::<Order>()?.version;
    let call = producer.client.requeue(letter.key());
    let call = call.letter(letter.letter().unwrap_or_default());
    let answer = async {
        Ok(match call.await? {
            Requeued::Requeued(_) => Answer::Done,
            // Or a job of its name was there, and nothing was done.
            _ => Answer::Absent,
        })
    };
    let key = letter.key().as_str();
    producer.note(key, Ask::Requeue { version }, answer).await;
    Ok(())
}

async fn discard(producer: &Producer, letter: &JobView) {
    let call = producer.client.delete_dead_letter(letter.key());
    let call = call.letter(letter.letter().unwrap_or_default());
    let answer = async {
        Ok(if call.await? {
            Answer::Done
        } else {
            Answer::Absent
        })
    };
    producer
        .note(letter.key().as_str(), Ask::Discard, answer)
        .await;
}

async fn look(client: &Client, kind: &str) -> Result<()> {
    client.stats(kind).await?;
    client.prefix(kind).upcoming(FAR).await?;
    let page = client.list(kind, JobState::Pending).limit(10).await?;
    if let Some(job) = page.jobs.first() {
        client.get(job.key()).await?;
        client.story(job.key()).await?;
    }
    client.audit(kind).await?;
    client.instances().await?;
    Ok(())
}
