//! `keyfall instances`: the live workers, and the jobs that no worker runs.

use serde::Serialize;

use super::connect::Server;
use super::out::{self, Form};
use super::unseen;
use super::when::shown;
use keyfall_daemon::shapes::{InstanceOut, UnroutedOut, UnseenOut};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(Serialize)]
struct InstancesTable {
    instances: Vec<InstanceOut>,
    unrouted: Vec<UnroutedOut>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unseen: Vec<UnseenOut>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let (live, routes) = (jobs.instances().await?, jobs.routes().await?);
    let mut unseen = live.unseen;
    UnseenOut::merge(&mut unseen, routes.unseen);
    let answer = InstancesTable {
        instances: live.instances,
        unrouted: routes.unrouted,
        unseen,
    };
    if options.form.json {
        out::json(&answer)?;
        return unseen::told(&answer.unseen);
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
            "no worker has a route for {}; waiting jobs: {}",
            one.kind, one.jobs
        ))?;
    }
    unseen::told(&answer.unseen)
}
