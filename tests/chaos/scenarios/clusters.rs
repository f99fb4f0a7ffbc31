//! Nodes of a cluster that are replaced, added and removed, and slots that move. Each kind is on all
//! primaries. [`slots`](super::slots) has the slots whose source is killed.

use std::time::Duration;

use keyfall_testing::journals::Micros;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::restarts::{MARK, first_mark, mark_in};
use super::{Punctual, Result, Scenario};
use crate::cluster::{Cluster, Number};
use crate::load::{KINDS, LOAD};
use crate::setting::Setting;
use crate::stage::Stage;

/// Enough that each primary has a shard.
pub(super) const SHARDS: u16 = 4;

/// The limit of the other [fail-overs](super::failovers).
const LEFT: Duration = Duration::from_millis(500);

/// How many slots of triggers move in a turn.
const TRIGGERS: usize = 3;

/// The event that hits a primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Killed,
    /// It hangs, and goes on when another primary has its place.
    Stopped,
    /// It is cut off from the other nodes until another primary has its place. Clients reach it all
    /// the while.
    CutOff,
}

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $wires:literal, |$stage:ident| $faults:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                cluster: true,
                wires: $wires,
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
        "cluster, killed", true, false, |stage| fail_over(stage, What::Killed);
        "cluster, stopped", false, false, |stage| fail_over(stage, What::Stopped);
        "cluster, cut off", false, true, |stage| fail_over(stage, What::CutOff);
        "cluster, asked for", false, false, |stage| hand_over(stage);
        "cluster, slots move", false, false, |stage| move_slots(stage);
        "cluster, a node more", false, false, |stage| come_and_go(stage);
    }
}

pub(super) async fn some_primary(stage: &mut Stage) -> Result<Number> {
    let all: Vec<Number> = stage.deployment.cluster()?.primaries().collect();
    Ok(all[stage.some(all.len())])
}

/// The replica of a primary takes over, and the primary becomes a replica.
async fn fail_over(stage: &mut Stage, what: What) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let old = some_primary(stage).await?;
        let cluster = stage.deployment.cluster()?;
        let tags = cluster.ledgers_on(old, LOAD).await?;
        let mark = format!("{{{}}}{MARK}", tags.first().ok_or("it has no ledger")?);
        let mut redis = cluster.connection(old).await?;
        let before = first_mark(&mut redis, &mark, 1).await?;
        let marking = mark_in(redis, mark.clone());
        cluster.may_be_replaced(old, true).await?;
        sleep(stage.some_ms(700..1500)).await;
        match what {
            What::Killed => {
                stage.strike("a primary is killed");
                stage
                    .deployment
                    .cluster()?
                    .server(old)
                    .kill_server()
                    .await?;
            }
            What::Stopped => {
                stage.strike("a primary is stopped");
                stage.deployment.cluster()?.signal(old, Signal::STOP);
            }
            What::CutOff => {
                stage.strike("a primary is cut off");
                stage.deployment.cluster()?.cut_off(old)?;
            }
        }
        let (new, since) = stage.deployment.cluster()?.follow(old).await?;
        stage.is_served(since);
        marking.abort();
        let kept: Option<Micros> = stage
            .deployment
            .cluster()?
            .ask(new, &format!("GET {mark}"))
            .await?;
        sleep(LEFT).await;
        stage.ledgers_rolled_back(kept, before, stage.part(&tags));
        let cluster = stage.deployment.cluster()?;
        match what {
            What::Killed => cluster.server(old).restart().await?,
            What::Stopped => cluster.signal(old, Signal::CONT),
            What::CutOff => cluster.join(),
        }
        cluster.is_well().await?;
    }
    Ok(())
}

/// A primary hands over to its replica, and back; it answers until the moment of the change.
/// Nothing is forgotten.
async fn hand_over(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    // In turn: nobody votes for two replicas of one primary within twice the timeout of a node.
    let all: Vec<Number> = stage.deployment.cluster()?.primaries().collect();
    for primary in all {
        if Instant::now() > end {
            break;
        }
        let mut primary = primary;
        for _ in 0..2 {
            stage.strike("CLUSTER FAILOVER");
            let (new, since) = stage.deployment.cluster()?.fail_over(primary).await?;
            stage.is_served(since);
            primary = new;
            stage.deployment.cluster()?.is_well().await?;
            sleep(stage.some_ms(100..700)).await;
        }
    }
    Ok(())
}

/// Moves the slots of a ledger and of some triggers, while workers are killed.
async fn move_slots(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let from = some_primary(stage).await?;
        let primaries: Vec<Number> = stage.deployment.cluster()?.primaries().collect();
        let others: Vec<Number> = primaries.into_iter().filter(|it| *it != from).collect();
        let to = others[stage.some(others.len())];
        let worker = stage.some_worker();
        stage.kill(worker);
        stage.strike("slots are moved");
        let first = stage.some(100);
        move_some(stage.deployment.cluster()?, from, to, first).await?;
        stage.start(worker);
    }
    stage.deployment.cluster()?.is_well().await?;
    Ok(())
}

/// Moves a ledger of this primary, if it has one, and some triggers of any primary.
async fn move_some(cluster: &Cluster, from: Number, to: Number, first: usize) -> Result {
    let tags = cluster.ledgers_on(from, LOAD).await?;
    let mut names: Vec<String> = tags
        .iter()
        .take(1)
        .map(|tag| format!("{{{tag}}}"))
        .collect();
    let busy = (first..first + TRIGGERS).map(|number| format!("{}:notice-busy-{number}", KINDS[0]));
    names.extend(busy);
    for name in names {
        let slot = cluster.slot_of(&name).await?;
        let owner = cluster.owner_of(slot).await?;
        if owner != to {
            cluster.migrate(slot, owner, to).await?;
        }
    }
    Ok(())
}

/// A primary is added, has some slots for a while, and is removed.
async fn come_and_go(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("a node is added");
        let from = some_primary(stage).await?;
        let new = stage.deployment.cluster()?.add().await?;
        stage.deployment.cluster()?.is_well().await?;
        move_some(stage.deployment.cluster()?, from, new, 0).await?;
        sleep(stage.some_ms(500..1500)).await;
        stage.strike("its slots are taken from it");
        let slots = stage.deployment.cluster()?.slots_of(new).await?;
        for slot in slots {
            stage.deployment.cluster()?.migrate(slot, new, from).await?;
        }
        stage.deployment.cluster()?.is_well().await?;
        stage.strike("a node is removed");
        stage.deployment.cluster()?.remove_last().await?;
        stage.deployment.cluster()?.is_well().await?;
    }
    Ok(())
}
