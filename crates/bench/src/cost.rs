//! What each job costs: CPU time of Redis and of this process, commands, and what goes over the
//! connections. None of it is a duration, so it says something on a busy machine as well.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::ground::Ground;
use super::usage::Usage;

/// What one job took, or one beat; of all servers together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// How many there were in a second.
    pub(super) per_s: f64,
    pub(super) redis_us: f64,
    /// In this process: callers, workers and handlers.
    pub(super) here_us: f64,
    /// Those that scripts called included.
    pub(super) commands: f64,
    /// Those of them that were scripts.
    pub(super) scripts: f64,
    /// What Redis was sent, and what it sent.
    pub(super) bytes_in: f64,
    pub(super) bytes_out: f64,
    /// What each replica was sent, and an AOF would grow by; nothing without a replica.
    pub(super) bytes_replicated: f64,
}

/// Reads what is used from now on.
pub(super) struct Meter<'a> {
    ground: &'a Ground,
    usage: Usage,
    cpu: Duration,
    began: Instant,
}

impl<'a> Meter<'a> {
    pub(super) async fn start(ground: &'a Ground) -> anyhow::Result<Self> {
        Ok(Meter {
            ground,
            usage: ground.usage().await?,
            cpu: cpu_here(),
            began: Instant::now(),
        })
    }

    /// What each of so many took.
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
    /// What is reported of it, each by its name in the JSON.
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

fn cpu_here() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = Duration::try_from(time);
    time.expect("time in use is not negative")
}
