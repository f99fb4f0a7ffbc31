//! `keyfall serve`: the daemon.

use std::collections::HashMap;
use std::net::SocketAddr;

use axum_server::tls_rustls::RustlsConfig;
use keyfall::target::Pull;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::connect::explained;
use super::reload::Reload;
use crate::daemon::classic::{Classic, Terms};
use crate::daemon::config::{Args, Config, Http, RouteConfig};
use crate::daemon::tokens::Tokens;
use crate::daemon::{Api, RouteSet, RouteTerms, Routes, Settings, allow_connections, serve};

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

    /// The routes of the file, those of the command line, and that of the classic interface.
    ///
    /// # Errors
    /// If they clash.
    pub(super) fn routes(
        &self,
        config: &Config,
        pull: &Pull,
        classic: Option<&ClassicRoute>,
    ) -> anyhow::Result<RouteSet> {
        let all = [String::from("*:*:*:*")];
        let patterns = match self.patterns.as_slice() {
            [] if config.routes.is_empty() => &all,
            patterns => patterns,
        };
        let mut router = config.router(pull);
        for pattern in patterns {
            router = router.try_route(pattern, pull.clone())?;
        }
        let mut terms = terms(&config.routes);
        if let Some(classic) = classic {
            let pattern = classic.terms.pattern();
            router = router.try_route(&pattern, classic.terms.route(&classic.pull))?;
            let of_route = RouteTerms {
                retry: Some(classic.terms.retry()),
                payload_limit: Some(config.http.body_limit.0),
            };
            terms.insert(pattern, of_route);
        }
        Ok(RouteSet { router, terms })
    }
}

/// The route of the classic interface, which stays what it is as long as the process.
pub(super) struct ClassicRoute {
    terms: Terms,
    pull: Pull,
}

/// What each pattern says. Of routes with the same one, that of the highest priority has all jobs.
fn terms(routes: &[RouteConfig]) -> HashMap<String, RouteTerms> {
    let mut routes: Vec<&RouteConfig> = routes.iter().collect();
    routes.sort_by_key(|route| route.priority);
    let terms = |route: &RouteConfig| RouteTerms {
        retry: route.retry.clone(),
        payload_limit: route.payload_limit.map(|limit| limit.0),
    };
    let named = routes
        .into_iter()
        .map(|route| (route.pattern.clone(), terms(route)));
    named.collect()
}

fn settings(http: &Http, listen: SocketAddr, tls: Option<RustlsConfig>) -> Settings {
    Settings {
        listen,
        tls,
        body_limit: http.body_limit.0,
        header_timeout: http.header_timeout,
        body_timeout: http.body_timeout,
        max_connections: http.max_connections,
        requests_per_second: http.requests_per_second,
        access_log: http.access_log,
        grace: http.grace,
    }
}

/// Says what it was told, and where.
fn log_given(config: &Config) {
    for (field, value, origin) in config.given() {
        tracing::info!("{field} = {value} ({origin})");
    }
    for route in &config.routes {
        tracing::info!("route {}", route.pattern);
    }
}

pub(super) async fn run(options: Options, config: Config) -> anyhow::Result<()> {
    // From the beginning, or one that comes early would end the process.
    let hangups = signal(SignalKind::hangup())?;
    log_given(&config);
    let tls = config.tls().map(RustlsConfig::from_config);
    let http = settings(&config.http, config.http.listen, tls.clone());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let tokens = match &config.tokens.file {
        Some(path) => Some(Box::new(Tokens::open(path)?) as _),
        None => None,
    };
    let (pull, stopping) = (Pull::new(), CancellationToken::new());
    let classic = config.classic();
    let classic_route = classic.as_ref().map(|(_, terms)| ClassicRoute {
        terms: terms.clone(),
        pull: Pull::new(),
    });
    let set = options.routes(&config, &pull, classic_route.as_ref())?;
    let servers = 1 + usize::from(classic.is_some());
    allow_connections(http.max_connections.saturating_mul(servers));
    let client = explained(config.client().connect().await, config.names_redis())?;
    let worker = config.worker(client.clone(), set.router.clone());
    let readiness = worker.readiness();
    let classic = classic.zip(classic_route.as_ref());
    let classic = classic.map(|((listen, terms), route)| {
        let settings = settings(&config.http, listen, None);
        let (client, pull) = (client.clone(), route.pull.clone());
        Classic::new(client, pull, terms, settings, stopping.clone())
    });
    let reload = Reload {
        options,
        pull: pull.clone(),
        classic: classic_route,
        known: config.routes,
        routes: Routes::new(set),
        rerouter: worker.rerouter(),
        tls,
    };
    let api = Api::new(
        client,
        pull,
        reload.routes.clone(),
        readiness,
        stopping.clone(),
        http,
        tokens,
    );
    let serving = serve(api, |address| {
        println!("listening on {scheme}://{address}");
    });
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
    let serving_classic = async {
        let Some(classic) = classic else {
            return Ok(());
        };
        let ended = classic.serve(|address| {
            println!("classic interface on http://{address}");
        });
        let ended = ended.await;
        stopping.cancel();
        ended
    };
    // The worker first: it catches the signals that ask for a stop, which can come as soon as
    // somebody was told where it listens.
    let both = async { tokio::try_join!(biased; working, serving, serving_classic) };
    tokio::select! {
        biased;
        ended = both => ended?,
        () = reload.run(hangups) => unreachable!("it goes on as long as the process"),
    };
    Ok(())
}
