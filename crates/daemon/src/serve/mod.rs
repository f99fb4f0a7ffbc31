//! `keyfall serve`: the daemon.
//!
//! | part | task |
//! |---|---|
//! | [`options`] | the arguments of the command, and the routes that follow from them |
//! | [`reload`] | reads the configuration again on SIGHUP |
//! | [`service_manager`] | tells systemd when the daemon is ready, and that it lives |

mod options;
mod reload;
mod service_manager;

use anyhow::Context;
use axum_server::tls_rustls::RustlsConfig;
use keyfall::target::Pull;
use keyfall::{Client, ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::alerts::Alerts;
use crate::classic::Classic;
use crate::config::{Config, Http, declare, declare_limits, misspelt_variables};
#[cfg(feature = "database")]
use crate::database::DatabaseWork;
use crate::http::{Api, Recorder, Routes, Settings, Ui, allow_connections, bind, serve};
use crate::new_kinds::NewKinds;
use crate::tokens::Tokens;
use options::ClassicRoute;
use reload::Reload;
use service_manager::ServiceManager;

pub use options::Options;

fn settings(http: &Http, tls: Option<RustlsConfig>) -> Settings {
    Settings {
        tls,
        body_limit: http.body_limit.0,
        header_timeout: http.header_timeout,
        body_timeout: http.body_timeout,
        max_connections: http.max_connections,
        requests_per_second: http.requests_per_second,
        trace_url: http.trace_url.clone(),
        access_log: http.access_log,
        grace: http.grace,
    }
}

/// Connects; the error names the remedy if no setting names the place of Redis.
///
/// # Errors
/// If the Redis of the configuration does not answer, or is not fit for Keyfall.
pub async fn connect(config: &Config) -> anyhow::Result<Client> {
    match config.client().connect().await {
        Err(error) if !config.names_redis() && error.kind() == ErrorKind::Unavailable => Err(error)
            .context(
                "no Redis was named, and none answers at redis://127.0.0.1:6379: name one with \
                 `--redis-url`, KEYFALL_REDIS_URL or `redis.url`, or start one with `keyfall dev`",
            ),
        connected => Ok(connected?),
    }
}

/// Logs the given settings with their places, and variables that were meant to be some.
fn log_given(config: &Config) {
    for warning in misspelt_variables() {
        tracing::warn!("{warning}");
    }
    for (field, value, origin) in config.given() {
        tracing::info!("{field} = {value} ({origin})");
    }
    for route in &config.routes {
        tracing::info!("route {}", route.pattern);
    }
}

/// Works and listens until the process is asked to stop by SIGINT or SIGTERM. If the settings allow
/// it, serves this web page beside the API.
///
/// # Errors
/// If it cannot start, or can no longer work.
pub async fn run(options: Options, config: Config, ui: Ui) -> anyhow::Result<()> {
    // From the beginning: an early signal would otherwise end the process.
    let hangups = signal(SignalKind::hangup())?;
    log_given(&config);
    let tls = config.tls().map(RustlsConfig::from_config);
    let http = settings(&config.http, tls.clone());
    let scheme = if tls.is_some() { "https" } else { "http" };
    let tokens = match &config.tokens.file {
        Some(path) => Some(Box::new(Tokens::open(path)?) as _),
        None => None,
    };
    let recorder = Recorder::install()?;
    let (pull, stopping) = (Pull::new(), CancellationToken::new());
    let classic = config.classic();
    // Before any job is claimed: another daemon may have the ports.
    let listener = bind("http", config.http.listen)?;
    let classic_listener = match &classic {
        Some((listen, _)) => Some(bind("classic", *listen)?),
        None => None,
    };
    let classic_route = classic.as_ref().map(|(_, terms)| ClassicRoute {
        terms: terms.clone(),
        pull: Pull::new(),
    });
    let set = options.routes(&config, &pull, classic_route.as_ref())?;
    let servers = 1 + usize::from(classic.is_some());
    allow_connections(http.max_connections.saturating_mul(servers));
    let client = connect(&config).await?;
    #[cfg(feature = "database")]
    let database_work = DatabaseWork::open(&config).await?;
    #[cfg(feature = "database")]
    if let Some(work) = &database_work {
        work.check_data_set(&client).await?;
    }
    #[cfg(feature = "database")]
    let archive = database_work.as_ref().map(DatabaseWork::database);
    declare_limits(&client, &config.limits).await?;
    if let Some(jobs) = &config.recurring {
        declare(&client, &config.worker.declaration, jobs).await?;
    }
    let worker = config.worker(client.clone(), set.router.clone());
    let routes = Routes::new(set);
    let worker = Alerts::new(client.clone(), routes.clone()).told_by(worker);
    let readiness = worker.readiness();
    let service_manager = ServiceManager {
        readiness: readiness.clone(),
    };
    let classic = classic.zip(classic_route.as_ref());
    let new_kinds = NewKinds::an_hour(config.http.new_kinds, config.http.new_kinds_per_token);
    let classic = classic.map(|((_, terms), route)| {
        let settings = settings(&config.http, None);
        let (client, pull) = (new_kinds.limit(&client, None), route.pull.clone());
        Classic::new(client, pull, terms, settings, stopping.clone())
    });
    let reload = Reload {
        options,
        pull: pull.clone(),
        classic: classic_route,
        known: (config.routes, config.alerts),
        client: client.clone(),
        limits: config.limits,
        recurring: config.recurring,
        routes,
        rerouter: worker.rerouter(),
        tls,
    };
    #[cfg(feature = "database")]
    let passing_on = {
        let client = client.clone();
        async move {
            match database_work {
                Some(work) => work.run(client).await,
                None => std::future::pending().await,
            }
        }
    };
    #[cfg(not(feature = "database"))]
    let passing_on = std::future::pending::<()>();
    let api = Api::new(
        client,
        pull,
        reload.routes.clone(),
        readiness,
        stopping.clone(),
        http,
        tokens,
    )
    .new_kinds(new_kinds)
    .recorder(recorder.clone());
    #[cfg(feature = "database")]
    let api = api.database(archive);
    let ui = config.http.ui.then_some(ui);
    let has_ui = ui.is_some();
    let serving = serve(api, ui, listener, move |address| {
        println!("listening on {scheme}://{address}");
        if has_ui {
            tracing::info!("the web page is at {scheme}://{address}/ui");
        }
        tracing::info!(
            "commands reach this daemon by `--api {scheme}://{address}` or KEYFALL_API; its calls are \
             listed at {scheme}://{address}/v1/openapi.json"
        );
    });
    let working = async {
        // It ends when the process is asked to stop; then the daemon serves nothing any more.
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
        let Some((classic, listener)) = classic.zip(classic_listener) else {
            return Ok(());
        };
        let ended = classic.serve(listener, |address| {
            println!("classic interface on http://{address}");
        });
        let ended = ended.await;
        stopping.cancel();
        ended
    };
    // The worker first: it catches the signals that ask for a stop, which can come as soon as the
    // address is announced.
    let both = async { tokio::try_join!(biased; working, serving, serving_classic) };
    tokio::select! {
        biased;
        ended = both => ended?,
        () = reload.run(hangups) => unreachable!("it reloads as long as the process runs"),
        () = passing_on => unreachable!("it passes rows on as long as the process runs"),
        () = recorder.keep_up() => unreachable!("it records as long as the process runs"),
        // After the others: it is ready when they run.
        () = service_manager.keep_informed() => unreachable!("it reports as long as the process runs"),
    };
    Ok(())
}
