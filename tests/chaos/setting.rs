//! The setting of a scenario.

use std::time::Duration;

use crate::order::Plan;
use crate::target::Transport;

#[derive(Default)]
pub(crate) struct Setting {
    /// Options of `redis-server`, beside the shipped configuration.
    pub(crate) redis: Vec<&'static str>,
    /// For each of these plans: how many of 10,000 jobs have it.
    pub(crate) special: Vec<(Plan, u32)>,
    /// Whether there is a network between Redis and its clients, and every script is called; with
    /// several servers, one network around each.
    pub(crate) network: bool,
    /// Whether Redis has replicas, and sentinels that watch it. Then no program sets plain keys.
    pub(crate) sentinels: bool,
    /// Whether a program calls Redis functions beside the producers; with sentinels only.
    pub(crate) functions: bool,
    /// Whether jobs are on a cluster. Then no program sets plain keys.
    pub(crate) cluster: bool,
    /// How many independent servers hold the jobs together; one by default. With more, no program
    /// sets plain keys.
    pub(crate) servers: Option<u16>,
    /// Whether the servers that sentinels watch, and their clients, are on hosts of their own, whose
    /// packets to each other can be dropped.
    pub(crate) hosts: bool,
    /// Whether servers can be cut off from each other, where there are several.
    pub(crate) wires: bool,
    /// How many shards each kind has; one by default.
    pub(crate) shards: Option<u16>,
    /// The processes whose wall clock can be set.
    pub(crate) clock: Option<Whose>,
    /// Whether daemons work, and how jobs reach the consumers that take the place of workers then.
    pub(crate) target: Option<Transport>,
    /// How many stories all producers begin in a second, if not as many as the transport allows.
    pub(crate) stories: Option<f64>,
    /// How many keys plain commands set for each job, if not a tenth of a key.
    pub(crate) keys_to_jobs: Option<f64>,
    /// Whether plain commands [race](crate::races) the times of their keys.
    pub(crate) races: bool,
    /// Whether [recurring jobs](crate::recurring), [series](crate::series) and jobs of a
    /// [limited kind](crate::limited) run beside the others.
    pub(crate) recurring: bool,
    /// Whether there is a [PostgreSQL](crate::database) beside Redis.
    pub(crate) database: bool,
    /// Whether all pending jobs are copied to it.
    pub(crate) copy: bool,
    /// Whether Redis loses jobs, which are brought back from the copy. Then no program sets plain keys.
    pub(crate) loses: bool,
    /// Whether the Redis of lists and streams can go back to an earlier state, and has a replica.
    pub(crate) outlet_forgets: bool,
    /// The lease of consumers; by default the lease of workers.
    pub(crate) lease: Option<Duration>,
}

impl Setting {
    /// Whether Redis can forget what it has acknowledged.
    pub(crate) fn forgets(&self) -> bool {
        self.sentinels
    }

    pub(crate) fn keeps_a_log(&self) -> bool {
        let mut pairs = self.redis.windows(2);
        !pairs.any(|pair| pair == ["--appendonly", "no"])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Redis,
    /// The first of several servers, or of the nodes of a cluster.
    OneServer,
    /// Each server that sentinels watch has a clock of its own.
    EachServer,
    Workers,
}
