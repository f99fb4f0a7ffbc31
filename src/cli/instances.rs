//! `keyfall instances`: who runs jobs, and which jobs nobody runs.

use serde::Serialize;

use super::connect::Server;
use super::out::{self, Form};
use super::when::shown;
use crate::daemon::shapes::{InstanceOut, UnroutedOut};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(Serialize)]
struct Answer {
    instances: Vec<InstanceOut>,
    unrouted: Vec<UnroutedOut>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let answer = Answer {
        instances: jobs.instances().await?.instances,
        unrouted: jobs.routes().await?.unrouted,
    };
    if options.form.json {
        return Ok(out::json(&answer)?);
    }
    let titles = [
        "host",
        ">pid",
        "version",
        "started",
        "routes",
        "without room",
        "adopts",
    ];
    let rows = answer.instances.into_iter().map(|one| {
        [
            one.host,
            one.pid.to_string(),
            one.version,
            shown(one.started),
            one.routes.join(" "),
            one.saturated.join(" "),
            one.adopts.join(" "),
        ]
    });
    out::table(titles, rows)?;
    for one in &answer.unrouted {
        out::line(format!(
            "nobody has a route for {}; jobs that wait: {}",
            one.kind, one.jobs
        ))?;
    }
    Ok(())
}
