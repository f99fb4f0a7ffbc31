//! The options of `keyfall bench`, their limits, and the list of phases.
//!
//! The doc comments of the fields and of the phases are the help texts of the command.

use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use jiff::{Span, SpanRelativeTo};
use keyfall::MAX_SHARDS;

use super::workload::Workload;

/// Default number of waiting jobs in the memory and the idle phase; `--pending` overrides it.
const STANDING: usize = 100_000;

/// The most jobs of one phase. With more, the first jobs would fall due before the last are
/// scheduled, and ids would no longer sort.
const MOST_JOBS: usize = 100_000_000;

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Where to measure, by any URL that Keyfall takes, instead of a private Redis that is started
    /// for each phase without persistence. Nothing else should use it meanwhile. The jobs have a
    /// namespace of their own, and all of it is removed afterwards
    #[arg(long = "redis-url", alias = "url", value_name = "URL")]
    pub(super) url: Option<String>,

    /// How many jobs each phase schedules
    #[arg(long, default_value_t = 20_000, value_parser = jobs)]
    pub(super) jobs: usize,

    /// Over how long the due times of the jobs are spread, and how long the idle phase watches
    #[arg(long, default_value = "20s", value_parser = window)]
    pub(super) window: Duration,

    /// The payload of each job, in bytes
    #[arg(long, default_value_t = 200)]
    pub(super) payload: usize,

    /// How many further jobs wait, an hour ahead: none for lateness and burst, and 100000 for
    /// memory and idle, unless it is given
    #[arg(long, value_parser = jobs)]
    pub(super) pending: Option<usize>,

    /// How many workers run the jobs, each with connections of its own, all in this process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) instances: u16,

    /// Over how many kinds the idle phase spreads the jobs that wait: each has a ledger of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) kinds: u16,

    /// How many shards each kind has; as many as a kind has by itself, if it is not given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_SHARDS)))]
    pub(super) shards: Option<u16>,

    /// How many jobs each worker runs at the same time
    #[arg(long, default_value_t = 256, value_parser = at_least_one)]
    pub(super) concurrency: usize,

    /// How many jobs fall due at one instant in the burst
    #[arg(long, default_value_t = 20_000, value_parser = jobs)]
    pub(super) burst: usize,

    /// How many entries the history of each kind keeps, 0 for none; as ever, if it is not given
    #[arg(long, value_name = "ENTRIES")]
    pub(super) history: Option<u64>,

    /// Also run the lateness workload on the plain form: SET with a TTL, and a listener on
    /// `expired` events
    #[arg(long, conflicts_with = "url")]
    pub(super) plain: bool,

    /// How often all is measured; the report shows the median of each figure
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=99))]
    pub(super) runs: u16,

    /// Print one JSON object, and nothing else
    #[arg(long)]
    pub(super) json: bool,

    /// Which phases to run, separated by commas; all of them by default
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) only: Vec<Phase>,

    /// Run this instead of the phases, with a mark between its parts, for `make cost`
    #[arg(long, value_enum, hide = true, conflicts_with_all = ["url", "only"])]
    pub(super) workload: Option<Workload>,
}

/// The phases, in the order in which they run.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Calls to schedule one job each, from 64 tasks
    Schedule,
    /// Calls to schedule many jobs
    Bulk,
    /// The rate and cost of a script that only writes the same jobs
    Bare,
    /// The memory of a pending job in Redis
    Memory,
    /// How late jobs start, their due times spread over the window
    Lateness,
    /// How fast jobs that are due at one instant are run
    Burst,
    /// The calls of a worker without jobs
    Idle,
    /// The number of claims of each job
    Claims,
    /// Keys that are kept alive by EXPIRE, on a route that adopts them, and fall silent
    Heartbeats,
    /// Scheduling and pulling over HTTP, from a daemon that is started for it, beside the same in
    /// this process
    Http,
    /// Jobs due at one instant that go to HTTP callbacks, lists, streams, and to a thousand
    /// consumers of the classic interface, beside the same in this process
    Targets,
    /// Lateness on the plain form; `--plain` asks for it
    #[value(skip)]
    Plain,
}

impl Phase {
    /// The number of kinds that the phase uses.
    pub(super) fn kinds(self, options: &Options) -> u16 {
        match self {
            Phase::Http => 2,
            Phase::Targets => 6,
            _ => options.kinds,
        }
    }
}

impl Options {
    /// The phases to run, in the order of [`Phase`].
    pub(super) fn phases(&self) -> impl Iterator<Item = Phase> {
        let all = Phase::value_variants().iter().copied();
        let asked = all.filter(|phase| self.only.is_empty() || self.only.contains(phase));
        asked.chain(self.plain.then_some(Phase::Plain))
    }

    /// The number of waiting jobs beside the jobs that run, in the lateness and the burst phase.
    pub(super) fn beside(&self) -> usize {
        self.pending.unwrap_or(0)
    }

    /// The number of waiting jobs in the memory and the idle phase.
    pub(super) fn standing(&self) -> usize {
        self.pending.unwrap_or(STANDING)
    }
}

fn jobs(text: &str) -> anyhow::Result<usize> {
    let jobs = at_least_one(text)?;
    ensure!(jobs <= MOST_JOBS, "no more than {MOST_JOBS} jobs");
    Ok(jobs)
}

fn at_least_one(text: &str) -> anyhow::Result<usize> {
    let number: usize = text.parse()?;
    ensure!(
        number > 0,
        "with none there is nothing to measure: write 1 or more"
    );
    Ok(number)
}

fn window(text: &str) -> anyhow::Result<Duration> {
    let span = text
        .parse::<Span>()
        .and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let window = span.ok().and_then(|span| Duration::try_from(span).ok());
    let window = window.ok_or_else(|| {
        anyhow::anyhow!("write a number and its unit, such as 20s, 500ms or 1m30s")
    })?;
    ensure!(
        (Duration::from_millis(100)..=Duration::from_secs(3000)).contains(&window),
        "write a time from 100ms to 50m: pending jobs are due in an hour"
    );
    Ok(window)
}
