//! The cost of a job: CPU time of Redis and of this process, commands, and bytes on the
//! connections. None of these is a duration, so they are meaningful on a busy machine as well.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::ground::Ground;
use super::usage::Usage;

/// The cost of one job, or of one heartbeat, on all servers together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// Jobs or heartbeats in a second.
    pub(super) per_s: f64,
    /// CPU time of Redis, in µs.
    pub(super) redis_us: f64,
    /// CPU time of this process, in µs: callers, workers and handlers.
    pub(super) here_us: f64,
    /// Commands, including the commands inside scripts.
    pub(super) commands: f64,
    /// Calls of scripts among the commands.
    pub(super) scripts: f64,
    /// Bytes that Redis received, and bytes that it sent.
    pub(super) bytes_in: f64,
    pub(super) bytes_out: f64,
    /// Bytes for each replica, and for an AOF. 0 without a replica.
    pub(super) bytes_replicated: f64,
}

/// Measures the cost from its start on.
pub(super) struct Meter<'a> {
    ground: &'a Ground,
    usage: Usage,
    cpu: Duration,
    began: Instant,
}

impl<'a> Meter<'a> {
    /// Starts a measurement.
    pub(super) async fn start(ground: &'a Ground) -> anyhow::Result<Self> {
        Ok(Meter {
            ground,
            usage: ground.usage().await?,
            cpu: cpu_here(),
            began: Instant::now(),
        })
    }

    /// Does something else meanwhile, and leaves its cost out.
    pub(super) async fn without(
        &mut self,
        other: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let before = Meter::start(self.ground).await?;
        other.await?;
        let after = Meter::start(self.ground).await?;
        self.usage = self.usage.plus(after.usage.since(before.usage));
        self.cpu += after.cpu - before.cpu;
        self.began += after.began - before.began;
        Ok(())
    }

    /// The cost since the start, divided by `count`.
    pub(super) async fn read(&self, count: usize) -> anyhow::Result<Cost> {
        let (count, took) = (count as f64, self.began.elapsed());
        let here = cpu_here() - self.cpu;
        let used = self.ground.usage().await?.since(self.usage);
        Ok(Cost {
            per_s: count / took.as_secs_f64(),
            redis_us: used.cpu_us / count,
            here_us: here.as_secs_f64() * 1e6 / count,
            commands: used.commands / count,
            scripts: used.scripts / count,
            bytes_in: used.bytes_in / count,
            bytes_out: used.bytes_out / count,
            bytes_replicated: used.replicated / count,
        })
    }
}

impl Cost {
    /// The reported parts, each with its name in the JSON.
    pub(super) fn parts(self) -> [(&'static str, f64); 7] {
        [
            ("redis_cpu_us", self.redis_us),
            ("client_cpu_us", self.here_us),
            ("commands", self.commands),
            ("scripts", self.scripts),
            ("bytes_in", self.bytes_in),
            ("bytes_out", self.bytes_out),
            ("bytes_replicated", self.bytes_replicated),
        ]
    }
}

/// The CPU time of this process since it started.
fn cpu_here() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = Duration::try_from(time);
    time.expect("time in use is not negative")
}
