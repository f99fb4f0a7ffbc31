//! The benchmark, `keyfall bench`: lateness of jobs, rates of scheduling and running, and the cost
//! of each job for Redis. It runs in phases, each on an empty Redis.
//!
//! | part | contents |
//! |---|---|
//! | [`args`] | the options of the command |
//! | [`ground`] | a Redis for each phase; [`usage`] reads its INFO |
//! | [`nodes`] | the servers behind a URL: one, several, or a cluster |
//! | [`stock`] | scheduling in bulk, to fill a ledger |
//! | [`cost`] | the cost of a job, in CPU time, commands and bytes |
//! | [`crew`] | the workers, and the record of their runs |
//! | [`watch`] | the number of commands that a server receives |
//! | [`schedule`], [`standing`], [`lateness`], [`burst`], [`claims`] | the phases |
//! | [`heartbeats`] | the phase with keys that beat by `EXPIRE`, and fall silent |
//! | [`http`] | the phase that schedules and pulls over HTTP, from a [`daemon`] |
//! | [`targets`] | the phase with callbacks, lists, streams and the classic interface |
//! | [`drain`] | consumers that pull and finish until nothing is left |
//! | [`bare`], [`plain`] | the workloads of scheduling and of lateness without Keyfall |
//! | [`workload`] | the runs of which `make cost` counts the instructions |
//! | [`figures`] | names, medians, JSON; [`histogram`] and [`report`] for people |
//! | [`bar`] | the progress bar |
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the tables of modules are for readers of the source"
)]

mod args;
mod bar;
mod bare;
mod burst;
mod claims;
mod cost;
mod crew;
mod daemon;
mod drain;
mod figures;
mod ground;
mod heartbeats;
mod histogram;
mod http;
mod lateness;
mod nodes;
mod plain;
mod report;
mod schedule;
mod standing;
mod stock;
mod targets;
mod usage;
mod watch;
mod workload;

pub use args::Options;

use anyhow::Context;
use args::Phase;
use bar::Bar;
use figures::Figures;
use ground::Ground;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use usage::Server;

/// Runs the phases of the options, and prints the figures on stdout, as a table or as JSON.
///
/// The process must be the `keyfall` command: phases that need a daemon start it as `keyfall
/// serve`. The first Ctrl-C ends the run after a clean-up, a second one ends the process.
///
/// # Errors
/// If a server or a phase fails, or on Ctrl-C.
pub async fn run(options: Options) -> anyhow::Result<()> {
    if let Some(workload) = options.workload {
        return workload::run(workload, &options).await;
    }
    let interrupted = interruption();
    if cfg!(debug_assertions) {
        eprintln!("this build is not optimized: its figures say little");
    }
    let bar = Bar::new();
    let mut figures = Figures::default();
    let mut server = None;
    for run in 1..=options.runs {
        for phase in options.phases() {
            let name = format!("{phase:?}").to_lowercase();
            bar.title(format!("run {run} of {}, {name}:", options.runs));
            let ground = Ground::new(options.url.as_deref()).await?;
            let measured = async {
                ground.prepare(&options, phase.kinds(&options)).await?;
                measure(phase, &ground, &options, &bar, &mut figures).await
            };
            let measured = tokio::select! {
                biased;
                () = interrupted.cancelled() => Err(anyhow::anyhow!("interrupted")),
                measured = measured => measured,
            };
            if measured.is_ok() && server.is_none() {
                server = Some(ground.server().await?);
            }
            let refused = measured.as_ref().is_err_and(|error| ground.refuses(error));
            let ended = ground.end().await;
            match measured {
                Err(error) if refused && options.only.is_empty() => {
                    bar.warn(&format!("{name} is left out: {error:#}"));
                }
                measured => measured?,
            }
            ended?;
        }
    }
    drop(bar);
    let server = server.context("nothing was measured")?;
    if options.json {
        println!("{}", figures.to_json(settings(&options, &server)));
    } else {
        print!("{}", report::table(&options, &server, &figures));
    }
    Ok(())
}

/// Runs one phase.
async fn measure(
    phase: Phase,
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    match phase {
        Phase::Schedule => schedule::one_by_one(ground, options, bar, figures).await,
        Phase::Bulk => schedule::in_bulk(ground, options, bar, figures).await,
        Phase::Bare => bare::measure(ground, options, bar, figures).await,
        Phase::Memory => standing::memory(ground, options, bar, figures).await,
        Phase::Lateness => lateness::measure(ground, options, bar, figures).await,
        Phase::Burst => burst::measure(ground, options, bar, figures).await,
        Phase::Idle => standing::idle(ground, options, bar, figures).await,
        Phase::Claims => claims::measure(ground, options, bar, figures).await,
        Phase::Heartbeats => heartbeats::measure(ground, options, bar, figures).await,
        Phase::Http => http::measure(ground, options, bar, figures).await,
        Phase::Targets => targets::measure(ground, options, bar, figures).await,
        Phase::Plain => plain::measure(ground, options, bar, figures).await,
    }
}

/// A token that the first Ctrl-C cancels, after which all is cleaned up. A second Ctrl-C ends the
/// process; a private server ends with it even then.
fn interruption() -> CancellationToken {
    let interrupted = CancellationToken::new();
    let token = interrupted.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            if tokio::signal::ctrl_c().await.is_err() {
                return;
            }
            if token.is_cancelled() {
                std::process::exit(130);
            }
            token.cancel();
        }
    });
    interrupted
}

/// The settings that must be equal in two results that are compared.
fn settings(options: &Options, server: &Server) -> Value {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "jobs": options.jobs,
        "window_s": options.window.as_secs_f64(),
        "payload_bytes": options.payload,
        "pending": options.beside(),
        "standing": options.standing(),
        "instances": options.instances,
        "kinds": options.kinds,
        "shards": options.shards,
        "servers": server.count,
        "concurrency": options.concurrency,
        "burst": options.burst,
        "history": options.history,
        "runs": options.runs,
        "embedded": options.url.is_none(),
        "server": server.name,
        "server_version": server.version,
        "keyfall_version": env!("CARGO_PKG_VERSION"),
        "optimized": !cfg!(debug_assertions),
        "cores": cores,
    })
}
