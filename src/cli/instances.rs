//! `keyfall instances`: who runs jobs, and which jobs nobody runs.

use jiff::Timestamp;
use keyfall::Instance;
use serde::Serialize;

use super::connect::Server;
use super::out::{self, Form};
use super::when::{shown, stamp};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(Serialize)]
struct Answer<'a> {
    instances: Vec<InstanceLine<'a>>,
    unrouted: Vec<UnroutedLine<'a>>,
}

#[derive(Serialize)]
struct InstanceLine<'a> {
    id: &'a str,
    host: &'a str,
    pid: u32,
    version: &'a str,
    started: Timestamp,
    seen_ms: u128,
    routes: &'a [String],
    saturated: &'a [String],
    has_fallback: bool,
    hears_events: bool,
}

#[derive(Serialize)]
struct UnroutedLine<'a> {
    kind: &'a str,
    jobs: u64,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let instances = client.instances().await?;
    let unrouted = client.unrouted().await?;
    if options.form.json {
        let unrouted = unrouted.iter().map(|one| UnroutedLine {
            kind: one.kind.as_str(),
            jobs: one.jobs,
        });
        return Ok(out::json(&Answer {
            instances: instances.iter().map(line).collect(),
            unrouted: unrouted.collect(),
        })?);
    }
    let titles = [
        "host",
        ">pid",
        "version",
        "started",
        "routes",
        "without room",
    ];
    let rows = instances.iter().map(|one| {
        [
            one.host.clone(),
            one.pid.to_string(),
            one.version.clone(),
            shown(one.started),
            one.routes.join(" "),
            one.saturated.join(" "),
        ]
    });
    out::table(titles, rows)?;
    for one in &unrouted {
        out::line(format!(
            "nobody has a route for {}: {} jobs wait",
            one.kind, one.jobs
        ))?;
    }
    Ok(())
}

fn line(one: &Instance) -> InstanceLine<'_> {
    InstanceLine {
        id: &one.id,
        host: &one.host,
        pid: one.pid,
        version: &one.version,
        started: stamp(one.started),
        seen_ms: one.seen.as_millis(),
        routes: &one.routes,
        saturated: &one.saturated,
        has_fallback: one.has_fallback,
        hears_events: one.hears_events,
    }
}
