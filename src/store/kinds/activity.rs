//! The activity of kinds: for each minute of the last hour, and each quarter of an hour of the last
//! day, how many runs began and ended. Two hashes for each kind, on the server of its first shard.

use std::time::Instant;

use crate::activity::{Activity, Minutes};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::store::connections::fault::Fault;
use crate::store::ledger::mending::Wrong;
use crate::store::ledger::script::ACTIVITY;
use crate::store::{Away, Server, Store, texts};
use crate::time::UnixMs;

/// The number of kinds that are read in one round trip.
const AT_ONCE: usize = 64;

/// How far the activity reaches back, and in which steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ActivityShape {
    /// The length of a step, in minutes.
    pub(crate) minutes: u64,
    /// The number of steps; the same as in `lua/activity.lua`.
    pub(crate) steps: u64,
}

impl ActivityShape {
    pub(crate) const HOUR: ActivityShape = ActivityShape {
        minutes: 1,
        steps: 60,
    };
    pub(crate) const DAY: ActivityShape = ActivityShape {
        minutes: 15,
        steps: 96,
    };

    /// The number of the step at this time, counted from the epoch.
    pub(crate) fn step_at(self, now: UnixMs) -> u64 {
        now.0 / 60_000 / self.minutes
    }
}

impl Store {
    /// Adds the activity of some minutes to the activity of a kind; `lua/activity.lua`. It is not to be
    /// repeated: it would count twice.
    pub(crate) async fn add_activity(
        &self,
        kind: &Kind,
        minutes: &Minutes,
        until: Instant,
    ) -> Result<()> {
        let home = self.home_of(kind, 0);
        let names = home.names.ledger(kind, 0);
        let mut cmd = ACTIVITY.call(ACTIVITY.fixed_keys);
        cmd.arg(&names.minutes).arg(&names.quarters);
        for (minute, activity) in minutes {
            cmd.arg(*minute).arg(activity.to_string());
        }
        let called = home.eval(&ACTIVITY, &cmd, &home.clock, "activity", until);
        called.await.map(drop)
    }

    /// The activity of these kinds up to this time: the activity of each step, the oldest first; and
    /// the servers that are away, whose kinds have none.
    pub(crate) async fn activity(
        &self,
        kinds: &[Kind],
        shape: ActivityShape,
        now: UnixMs,
        until: Instant,
    ) -> Result<(Vec<Vec<Activity>>, Vec<Away>)> {
        let read = self.on_each(until, |it, until| {
            let all = kinds.iter().enumerate();
            let here = all.filter(|(_, kind)| self.place_of(kind, 0) == it.place());
            Box::pin(it.activity(here.collect(), shape, now, until))
        });
        let (read, away) = read.await.there()?;
        let mut activity = vec![vec![Activity::default(); shape.steps as usize]; kinds.len()];
        for (place, steps) in read.into_iter().flatten() {
            activity[place] = steps;
        }
        Ok((activity, away))
    }

    /// Removes the activity of a kind. If this user may not, it expires within a day.
    pub(crate) async fn drop_activity(&self, kind: &Kind, until: Instant) -> Result<()> {
        let home = self.home_of(kind, 0);
        let names = home.names.ledger(kind, 0);
        let mut del = redis::cmd("DEL");
        del.arg(&names.minutes).arg(&names.quarters);
        match home.command(&del, until).await {
            Err(error) if error.kind() != ErrorKind::Denied => Err(error),
            _ => Ok(()),
        }
    }

    /// The activity of these kinds that have the wrong type.
    pub(in crate::store) async fn wrong_activity(
        &self,
        kinds: &[Kind],
        until: Instant,
    ) -> Result<Vec<Wrong>> {
        let looked = self.on_each(until, |it, until| {
            let here = kinds
                .iter()
                .filter(|kind| self.place_of(kind, 0) == it.place());
            let names: Vec<_> = here.map(|kind| it.names.ledger(kind, 0)).collect();
            Box::pin(async move {
                let keys = names
                    .iter()
                    .flat_map(|names| [&*names.minutes, &*names.quarters]);
                let keys: Vec<_> = keys.map(|key| (key, "hash")).collect();
                it.misfits(&keys, until).await
            })
        });
        Ok(looked
            .await
            .of_those_there()?
            .into_iter()
            .flatten()
            .collect())
    }
}

impl Server {
    /// The activity of some kinds on this server, each with its index.
    async fn activity(
        &self,
        kinds: Vec<(usize, &Kind)>,
        shape: ActivityShape,
        now: UnixMs,
        until: Instant,
    ) -> Result<Vec<(usize, Vec<Activity>)>> {
        let mut found = Vec::new();
        for kinds in kinds.chunks(AT_ONCE) {
            let mut reads = redis::pipe();
            for (_, kind) in kinds {
                let names = self.names.ledger(kind, 0);
                let key = match shape {
                    ActivityShape::HOUR => names.minutes,
                    _ => names.quarters,
                };
                reads.cmd("HGETALL").arg(key);
            }
            let values = self.each(&mut reads, until).await?;
            for ((place, _), value) in kinds.iter().zip(values) {
                let value = value
                    .extract_error()
                    .map_err(|error| Error::from(Fault::from_redis(error, &self.address())));
                let fields = match value {
                    Err(error) if error.kind() == ErrorKind::Denied => return Err(error),
                    // Another program has written the key.
                    Err(_) => Vec::new(),
                    Ok(value) => texts(value)?,
                };
                found.push((*place, steps_in(fields, shape, now)));
            }
        }
        Ok(found)
    }
}

/// The steps in the fields of a hash, the oldest first. Steps of an earlier round of the ring are
/// left out.
fn steps_in(fields: Vec<(String, String)>, shape: ActivityShape, now: UnixMs) -> Vec<Activity> {
    let mut steps = vec![Activity::default(); shape.steps as usize];
    let last = shape.step_at(now);
    for (_, text) in fields {
        let mut numbers = text.split(' ');
        let number: Option<u64> = numbers.next().and_then(|number| number.parse().ok());
        let age = number.and_then(|number| last.checked_sub(number));
        if let Some(age) = age.filter(|age| *age < shape.steps) {
            steps[(shape.steps - 1 - age) as usize] = Activity::parse(numbers);
        }
    }
    steps
}
