//! The delayed jobs of other systems: which keys they keep, and what a job is there.
//!
//! | system | delayed jobs | a job |
//! |---|---|---|
//! | [`bullmq`] | sorted set `bull:QUEUE:delayed` | hash `bull:QUEUE:ID` |
//! | [`celery`] | in the lists of the queue, and `unacked` of workers that have them | message with an `eta` |
//! | [`rq`] | sorted set `rq:scheduled:QUEUE` | hash `rq:job:ID` |
//! | [`sidekiq`] | sorted set `schedule` of all queues | the member itself |
//!
//! Jobs that are ready stay there: their own workers take them at once.

mod bullmq;
pub(super) mod celery;
mod naming;
mod rq;
mod sidekiq;

use std::collections::BTreeMap;
use std::time::SystemTime;

use redis::Cmd;
use redis::aio::MultiplexedConnection;

pub(super) use self::naming::{Naming, Renamed};
use super::entry::Entry;
use super::{Fault, LEFT_READY};

/// The values of the fields that [`Delayed::ask`] asks for.
pub(super) type Fields = Vec<Option<Vec<u8>>>;

/// A system that keeps delayed jobs in a sorted set.
#[derive(Debug, Clone, Copy)]
pub(super) enum System {
    Bullmq,
    Rq,
    Sidekiq,
}

/// The delayed jobs of such a system.
pub(super) struct Delayed {
    pub(super) system: System,
    /// What all its keys begin with.
    pub(super) prefix: String,
    /// Only Sidekiq can do without: it keeps all queues together.
    pub(super) queue: Option<String>,
    pub(super) naming: Naming,
}

/// A job, as any system describes it.
struct Pending<'a> {
    id: &'a str,
    /// The name of its handler there.
    name: &'a str,
    due: SystemTime,
    payload: &'a [u8],
}

impl Delayed {
    /// The sorted set: jobs by due time.
    pub(super) fn due_key(&self) -> String {
        match self.system {
            System::Bullmq => format!("{}:{}:delayed", self.prefix, self.queue()),
            System::Rq => format!("{}:scheduled:{}", self.prefix, self.queue()),
            System::Sidekiq => format!("{}schedule", self.prefix),
        }
    }

    /// The command that reads the fields of a member, unless it holds the job itself.
    pub(super) fn ask(&self, member: &[u8]) -> Option<Cmd> {
        let (key, fields) = match self.system {
            System::Bullmq => (format!("{}:{}:", self.prefix, self.queue()), bullmq::FIELDS),
            System::Rq => (format!("{}:job:", self.prefix), rq::FIELDS),
            System::Sidekiq => return None,
        };
        let key = [key.as_bytes(), member].concat();
        Some(redis::cmd("HMGET").arg(key).arg(fields).to_owned())
    }

    /// The job of a member. `None` if it has ended.
    pub(super) fn entry(
        &self,
        member: &[u8],
        score: f64,
        fields: &[Option<Vec<u8>>],
    ) -> Option<Result<Entry, Fault>> {
        match self.system {
            System::Bullmq => bullmq::entry(&self.naming, member, score, fields),
            System::Rq => rq::entry(&self.naming, member, score, fields),
            System::Sidekiq => {
                let queue = self.queue.as_deref();
                Some(sidekiq::entry(&self.naming, queue, member, score))
            }
        }
    }

    /// The number of jobs that are not in the sorted set, by the reason why they are left out.
    pub(super) async fn others(
        &self,
        redis: &mut MultiplexedConnection,
    ) -> anyhow::Result<BTreeMap<String, u64>> {
        let prefix = &self.prefix;
        let mut others = BTreeMap::new();
        let mut count = |reason: &str, number: u64| {
            *others.entry(reason.to_owned()).or_default() += number;
        };
        match self.system {
            System::Bullmq => {
                let queue = self.queue();
                for (command, list) in [
                    ("LLEN", "wait"),
                    ("LLEN", "paused"),
                    ("ZCARD", "prioritized"),
                ] {
                    let key = format!("{prefix}:{queue}:{list}");
                    count(LEFT_READY, number(redis, command, &key).await?);
                }
            }
            System::Rq => {
                let key = format!("{prefix}:queue:{}", self.queue());
                count(LEFT_READY, number(redis, "LLEN", &key).await?);
            }
            System::Sidekiq => {
                let queues: Vec<String> = match &self.queue {
                    Some(queue) => vec![queue.clone()],
                    None => {
                        let all = redis::cmd("SMEMBERS")
                            .arg(format!("{prefix}queues"))
                            .to_owned();
                        all.query_async(redis).await?
                    }
                };
                for queue in queues {
                    let key = format!("{prefix}queue:{queue}");
                    count(LEFT_READY, number(redis, "LLEN", &key).await?);
                }
                let retries = number(redis, "ZCARD", &format!("{prefix}retry")).await?;
                count("wait for a retry, after a failure there", retries);
            }
        }
        others.retain(|_, number| *number > 0);
        Ok(others)
    }

    fn queue(&self) -> &str {
        self.queue.as_deref().unwrap_or_default()
    }
}

async fn number(
    redis: &mut MultiplexedConnection,
    command: &str,
    key: &str,
) -> redis::RedisResult<u64> {
    redis::cmd(command).arg(key).query_async(redis).await
}

fn utf8(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned().into())
}
