//! What a scenario begins with.

use std::time::Duration;

use crate::order::Plan;
use crate::target::Transport;

#[derive(Default)]
pub(crate) struct Setting {
    /// Of `redis-server`, beside those of the shipped configuration.
    pub(crate) redis: Vec<&'static str>,
    /// How many of 10,000 jobs have these plans.
    pub(crate) special: Vec<(Plan, u32)>,
    /// Whether there is a network between Redis and everybody else, and every script is called;
    /// around each server, if there are several.
    pub(crate) network: bool,
    /// Whether Redis has replicas, and sentinels that watch it. Nobody sets plain keys then.
    pub(crate) sentinels: bool,
    /// Whether jobs are on a cluster. Nobody sets plain keys then.
    pub(crate) cluster: bool,
    /// How many independent servers have the jobs together; one if nothing is said. Where there are
    /// more, nobody sets plain keys.
    pub(crate) servers: Option<u16>,
    /// Whether servers can be cut off from each other, where there are several.
    pub(crate) wires: bool,
    /// How many shards each kind has; one if nothing is said.
    pub(crate) shards: Option<u16>,
    /// Whose wall clock can be set.
    pub(crate) clock: Option<Whose>,
    /// Whether daemons work, and how jobs reach the consumers that take the place of workers then.
    pub(crate) target: Option<Transport>,
    /// Whether the Redis of lists and streams can go back to what it had, and has a replica.
    pub(crate) outlet_forgets: bool,
    /// How long consumers have a job; as long as workers do if nothing is said.
    pub(crate) lease: Option<Duration>,
}

impl Setting {
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
    Workers,
}
