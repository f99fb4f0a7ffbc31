//! How fast jobs are scheduled that are due in an hour.

use std::time::Instant;

use anyhow::Context;
use tokio::task::JoinSet;

use super::args::Options;
use super::bar::Bar;
use super::figures::Figures;
use super::ground::{self, Ground};
use super::stock::{self, HOUR};

/// How many callers there are at the same time.
const TASKS: usize = 64;

/// Each call schedules one job, and each task waits for the answer before the next call.
pub(super) async fn one_by_one(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    bar.begin("scheduling", TASKS);
    let payload = stock::payload(options.payload);
    let jobs = options.jobs;
    let began = Instant::now();
    let mut tasks = JoinSet::<keyfall::Result<()>>::new();
    for task in 0..TASKS {
        let (client, kind, payload) = (ground.client.clone(), ground.kind(), payload.clone());
        tasks.spawn(async move {
            for number in (task..jobs).step_by(TASKS) {
                let key = ground::key(&kind, number);
                let call = client.schedule_bytes(key, payload.clone());
                call.after(HOUR).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a task panicked")??;
        bar.advance(1);
    }
    let took = began.elapsed().as_secs_f64();
    figures.note("schedule_jobs_per_s", jobs as f64 / took);
    Ok(())
}

pub(super) async fn in_bulk(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let began = Instant::now();
    stock::pend(ground, &ground.kind(), &payload, 0..options.jobs, bar).await?;
    let took = began.elapsed().as_secs_f64();
    figures.note("schedule_bulk_jobs_per_s", options.jobs as f64 / took);
    Ok(())
}
