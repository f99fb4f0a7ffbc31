//! `keyfall serve`: the daemon.

use keyfall::Worker;
use keyfall::target::Pull;
use tokio_util::sync::CancellationToken;

use crate::daemon::config::{Args, Config, Http};
use crate::daemon::tokens::Tokens;
use crate::daemon::{Api, Settings, serve};

#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    args: Args,
    /// Let consumers pull the jobs that match this pattern, beside the routes of the file; all
    /// jobs, if there is neither
    #[arg(long = "pull", value_name = "PATTERN")]
    patterns: Vec<String>,
}

impl Options {
    /// # Errors
    /// All that is wrong with the configuration.
    pub(super) fn load(&self) -> anyhow::Result<Config> {
        Config::load(&self.args).map_err(|faults| {
            let s = if faults.len() == 1 { "" } else { "s" };
            anyhow::anyhow!("the configuration has {} fault{s}\n{faults}", faults.len())
        })
    }
}

fn settings(http: &Http, config: &Config) -> Settings {
    Settings {
        listen: http.listen,
        tls: config.tls(),
        body_limit: http.body_limit.0,
        header_timeout: http.header_timeout,
        body_timeout: http.body_timeout,
        max_connections: http.max_connections,
        requests_per_second: http.requests_per_second,
        access_log: http.access_log,
        grace: http.grace,
    }
}

pub(super) async fn run(options: Options, config: Config) -> anyhow::Result<()> {
    let settings = settings(&config.http, &config);
    let scheme = if settings.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let tokens = match &config.tokens.file {
        Some(path) => Some(Box::new(Tokens::open(path)?) as _),
        None => None,
    };
    let (pull, stopping) = (Pull::new(), CancellationToken::new());
    let mut routes = config.router(&pull);
    let all = [String::from("*:*:*:*")];
    let patterns = match options.patterns.as_slice() {
        [] if config.routes.is_empty() => &all,
        patterns => patterns,
    };
    for pattern in patterns {
        routes = routes.try_route(pattern, pull.clone())?;
    }
    let client = config.client().connect().await?;
    let api = Api::new(client.clone(), pull, stopping.clone(), settings, tokens);
    let serving = serve(api, |address| {
        println!("listening on {scheme}://{address}");
    });
    let worker: Worker = config.worker(client, routes);
    let working = async {
        // It ends when the process is asked to stop; nothing is served any more then.
        let ended = worker.run().await;
        stopping.cancel();
        ended.map_err(anyhow::Error::from)
    };
    let serving = async {
        let ended = serving.await;
        stopping.cancel();
        ended
    };
    tokio::try_join!(serving, working)?;
    Ok(())
}
