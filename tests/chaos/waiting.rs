//! Jobs that are far ahead, so that there are jobs to lose and to move, and to wait for in the copy.

use std::time::Duration;

use keyfall::{Client, NewJob, Result};
use keyfall_testing::journals::{Micros, now};

use crate::journal::{Answer, Ask, Journal, What};
use crate::load::{FAR, KINDS};
use crate::order::{Order, Plan};
use crate::plain::ms;
use crate::scenarios;
use crate::stage::PATIENCE;

/// How many jobs each kind has.
const COUNT: u64 = 400;

/// Their versions are above those of all producers.
const FIRST: u64 = 1 << 48;

/// How many jobs of each kind are scheduled before the copy is marked.
const CROWD: usize = 50;

/// The versions of these jobs are above all others, by the time of their call.
const FIRST_MARK: u64 = 1 << 56;

/// Schedules some jobs of each kind, spreads them over so many shards, and writes them down.
pub(crate) async fn schedule(client: &Client, shards: u16, journal: &Journal) -> Result<()> {
    for (place, kind) in (0..).zip(KINDS) {
        let first = FIRST + place * COUNT;
        let jobs = (first..first + COUNT).map(|version| {
            let order = Order {
                version,
                plan: Plan::Done,
            };
            NewJob::new(key(kind, version), &order).after(delay(version - first))
        });
        for version in first..first + COUNT {
            journal.note(What::Sent {
                call: version,
                key: key(kind, version),
                ask: Ask::Schedule {
                    version,
                    deadly: false,
                    after: ms(delay(version - first)),
                },
            });
        }
        let answers = client.schedule_many(jobs).await;
        for (call, answer) in (first..).zip(answers) {
            answer?;
            journal.note_at(
                now(),
                What::Answered {
                    call,
                    answer: Answer::Done,
                },
            );
        }
        client.reshard(kind, shards).await?;
    }
    Ok(())
}

/// Schedules jobs of each kind, and waits until they are in the copy; and with them, all changes of
/// these kinds that were answered before the time that is returned, because a look takes all that
/// waits: a load like this changes less than a batch between two looks.
pub(crate) async fn mark_copy(client: &Client, journal: &Journal) -> scenarios::Result<Micros> {
    for kind in KINDS {
        for _ in 0..CROWD {
            wait_for_long(client, journal, kind).await?;
        }
    }
    let since = now();
    for kind in KINDS {
        let mark = wait_for_long(client, journal, kind).await?;
        if !client.until_copied(&mark, PATIENCE).await? {
            return Err(format!("{mark} is not copied").into());
        }
    }
    Ok(since)
}

/// Schedules one more job that is far ahead.
async fn wait_for_long(client: &Client, journal: &Journal, kind: &str) -> Result<String> {
    let version = FIRST_MARK + now();
    let (call, key) = (version, key(kind, version));
    let order = Order {
        version,
        plan: Plan::Done,
    };
    let ask = Ask::Schedule {
        version,
        deadly: false,
        after: ms(FAR),
    };
    journal.note(What::Sent {
        call,
        key: key.clone(),
        ask,
    });
    client.schedule(&key, &order).after(FAR).await?;
    let answer = Answer::Done;
    journal.note(What::Answered { call, answer });
    Ok(key)
}

fn delay(place: u64) -> Duration {
    FAR + Duration::from_secs(place)
}

fn key(kind: &str, version: u64) -> String {
    format!("{kind}:waiting-{version}")
}
