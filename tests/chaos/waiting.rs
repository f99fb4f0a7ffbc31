//! Jobs that are far ahead, so that there are jobs to lose and to move.

use std::time::Duration;

use keyfall::{Client, NewJob, Result};
use keyfall_testing::journals::now;

use crate::journal::{Answer, Ask, Journal, What};
use crate::load::{FAR, KINDS};
use crate::order::{Order, Plan};
use crate::plain::ms;

/// How many jobs each kind has.
const COUNT: u64 = 400;

/// Their versions are above those of all producers.
const FIRST: u64 = 1 << 48;

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

fn delay(place: u64) -> Duration {
    FAR + Duration::from_secs(place)
}

fn key(kind: &str, version: u64) -> String {
    format!("{kind}:waiting-{version}")
}
