//! The slot of a ledger moves, and the source is killed when a part of the ledger's keys has left.

use keyfall_testing::journals::{Micros, now};
use tokio::time::{Instant, sleep};

use super::clusters::{SHARDS, some_primary};
use super::failovers::LEFT;
use super::restarts::{MARK, first_mark, mark_in};
use super::{Punctual, Result, Scenario};
use crate::cluster::Number;
use crate::load::{KINDS, LOAD};
use crate::resharding;
use crate::setting::Setting;
use crate::stage::Stage;

/// The numbers of shards that kinds get in turn.
const NUMBERS: [u16; 3] = [SHARDS, 6, 3];

/// A server hands each write to the system before it answers, and never waits for a disk: a kill
/// loses nothing.
const KEEPS_ALL: &str = "no";

/// The moment at which the source is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Between two keys.
    Between,
    /// While keys are on their way.
    Midway,
}

macro_rules! scenarios {
    ($($name:literal, $sync:expr, |$stage:ident| $faults:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: false,
            setting: || Setting {
                redis: vec!["--appendfsync", $sync],
                cluster: true,
                shards: Some(SHARDS),
                ..Setting::default()
            },
            faults: |$stage| Box::pin($faults),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "cluster, torn", "everysec", |stage| tear(stage, Moment::Between);
        "cluster, torn midway", "everysec", |stage| tear(stage, Moment::Midway);
        "cluster, torn, comes back", KEEPS_ALL, |stage| come_back(stage);
        "cluster, torn and resharded", KEEPS_ALL, |stage| reshard(stage);
    }
}

/// A ledger whose slot is on its way.
struct Leaving {
    tag: String,
    slot: u16,
    from: Number,
    to: Number,
}

impl Leaving {
    /// Begins to move a ledger of a primary to another one: some of its keys have left, neither
    /// none nor all.
    async fn begin(stage: &mut Stage, tag: &str, from: Number) -> Result<Self> {
        let primaries = stage.deployment.cluster()?.primaries();
        let others: Vec<Number> = primaries.filter(|it| *it != from).collect();
        let to = others[stage.some(others.len())];
        // Of thirteen keys.
        let keys = 1 + stage.some(12);
        let cluster = stage.deployment.cluster()?;
        Ok(Leaving {
            tag: tag.to_owned(),
            slot: cluster.tear(tag, from, to, keys).await?,
            from,
            to,
        })
    }

    async fn kill_source(&self, stage: &mut Stage, moment: Moment) -> Result {
        let pause = stage.some_ms(0..5);
        let cluster = stage.deployment.cluster()?;
        let sent = match moment {
            Moment::Between => None,
            Moment::Midway => Some(cluster.send_rest(&self.tag, self.from, self.to).await?),
        };
        if sent.is_some() {
            sleep(pause).await;
        }
        cluster.server(self.from).kill_server().await?;
        if let Some(sent) = sent {
            sent.await?;
        }
        Ok(())
    }

    /// The source comes back, and the move goes on.
    async fn finish(&self, stage: &mut Stage) -> Result {
        sleep(stage.some_ms(50..1500)).await;
        let cluster = stage.deployment.cluster()?;
        cluster.server(self.from).restart().await?;
        // It serves no slot until it has heard the others.
        cluster.is_well().await?;
        cluster.migrate(self.slot, self.from, self.to).await?;
        Ok(cluster.is_well().await?)
    }
}

/// The replica of the source takes over and knows nothing of the move; the ledger is refused until
/// its parts are brought together.
async fn tear(stage: &mut Stage, moment: Moment) -> Result {
    let end = stage.until_the_end();
    let client = stage.client().await?;
    while Instant::now() < end {
        let old = some_primary(stage).await?;
        let cluster = stage.deployment.cluster()?;
        let tags = cluster.ledgers_on(old, LOAD).await?;
        let (first, last) = (tags.first(), tags.last());
        let (first, last) = first.zip(last).ok_or("it has no ledger")?;
        let mark = format!("{{{first}}}{MARK}");
        let mut redis = cluster.connection(old).await?;
        first_mark(&mut redis, &mark, 1).await?;
        let marking = mark_in(redis, mark.clone());
        cluster.may_be_replaced(old, true).await?;
        sleep(stage.some_ms(700..1500)).await;
        stage.strike("a slot is on its way, and its primary is killed");
        let leaving = Leaving::begin(stage, last, old).await?;
        // The replica must have heard of the keys that left: otherwise one half is older than the
        // other. From then on nothing is written to the ledger.
        let copied = now();
        stage.deployment.cluster()?.is_copied(old, &mark).await?;
        leaving.kill_source(stage, moment).await?;
        let cluster = stage.deployment.cluster()?;
        let (new, _) = cluster.follow(old).await?;
        cluster.forget_move(new, leaving.slot).await?;
        marking.abort();
        let get = format!("GET {mark}");
        let kept: Option<Micros> = stage.deployment.cluster()?.ask(new, &get).await?;
        sleep(LEFT).await;
        stage.ledgers_rolled_back(kept, copied, stage.part(&tags));
        // Workers find that a part is missing.
        sleep(stage.some_ms(500..1500)).await;
        let mend = client.mend_slots().confirmed().dropping();
        let mended = mend.await.map_err(|error| error.to_string())?;
        if !mended.is_whole() {
            return Err(format!("the parts are not together: {mended:?}").into());
        }
        stage.is_served(now());
        let cluster = stage.deployment.cluster()?;
        cluster.server(old).restart().await?;
        cluster.rejoin(old, new).await?;
        cluster.is_well().await?;
    }
    Ok(())
}

/// No replica takes the place of the source; nothing is forgotten.
async fn come_back(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let from = some_primary(stage).await?;
        tear_and_finish(stage, LOAD, from).await?;
        sleep(stage.some_ms(300..1000)).await;
    }
    Ok(())
}

/// The same, while the kind gets another number of shards; the command is killed, too.
async fn reshard(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    let mut turns = NUMBERS.iter().cycle().skip(1);
    while Instant::now() < end {
        let shards = *turns.next().expect("it is a circle");
        for kind in KINDS {
            let begun = resharding::start(stage, kind, shards);
            sleep(stage.some_ms(10..400)).await;
            let primaries: Vec<Number> = stage.deployment.cluster()?.primaries().collect();
            let some = stage.some(primaries.len());
            for from in primaries.iter().cycle().skip(some).take(primaries.len()) {
                if tear_and_finish(stage, &format!("{kind}*"), *from).await? {
                    break;
                }
            }
            drop(begun);
            resharding::finish(stage, kind, shards).await?;
        }
    }
    Ok(())
}

/// Kills a primary while one of its ledgers of these kinds leaves it. Whether it has one.
async fn tear_and_finish(stage: &mut Stage, kinds: &str, from: Number) -> Result<bool> {
    let cluster = stage.deployment.cluster()?;
    let tags = cluster.ledgers_on(from, kinds).await?;
    let Some(tag) = tags.last() else {
        return Ok(false);
    };
    stage.strike("a slot is on its way, and its primary is killed");
    let leaving = Leaving::begin(stage, tag, from).await?;
    leaving.kill_source(stage, Moment::Midway).await?;
    leaving.finish(stage).await?;
    Ok(true)
}
