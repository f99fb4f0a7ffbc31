//! `keyfall serve`: the daemon.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Args};
use jiff::SignedDuration;
use keyfall::target::Pull;
use keyfall::{Client, Router, Worker};
use tokio_util::sync::CancellationToken;

use crate::daemon::{Api, Settings, serve};

#[derive(Args)]
pub(super) struct Options {
    /// The Redis to use
    #[arg(
        long,
        env = "KEYFALL_REDIS_URL",
        default_value = "redis://127.0.0.1:6379"
    )]
    redis_url: String,
    #[command(flatten)]
    http: Http,
    /// Which jobs consumers may pull, as patterns of their keys
    #[arg(long = "pull", value_name = "PATTERN", default_value = "*:*:*:*")]
    patterns: Vec<String>,
}

/// The settings of the HTTP API.
#[derive(Args)]
struct Http {
    /// Where to listen
    #[arg(long, env = "KEYFALL_HTTP_LISTEN", default_value = "127.0.0.1:9276")]
    http_listen: SocketAddr,
    /// The certificate to serve HTTPS with, and its chain, as PEM
    #[arg(
        long,
        env = "KEYFALL_HTTP_TLS_CERT_FILE",
        requires = "http_tls_key_file"
    )]
    http_tls_cert_file: Option<PathBuf>,
    /// Its private key, as PEM
    #[arg(
        long,
        env = "KEYFALL_HTTP_TLS_KEY_FILE",
        requires = "http_tls_cert_file"
    )]
    http_tls_key_file: Option<PathBuf>,
    /// The largest body of a request, in bytes
    #[arg(long, env = "KEYFALL_HTTP_BODY_LIMIT", default_value_t = 4 * 1024 * 1024)]
    http_body_limit: usize,
    /// How long a client may take for the head of a request
    #[arg(long, env = "KEYFALL_HTTP_HEADER_TIMEOUT", default_value = "10s", value_parser = duration)]
    http_header_timeout: Duration,
    /// How long a client may take for the body
    #[arg(long, env = "KEYFALL_HTTP_BODY_TIMEOUT", default_value = "30s", value_parser = duration)]
    http_body_timeout: Duration,
    /// How many connections may be open
    #[arg(long, env = "KEYFALL_HTTP_MAX_CONNECTIONS", default_value_t = 4096)]
    http_max_connections: usize,
    /// How many requests a second one token may make, or one address without a token
    #[arg(long, env = "KEYFALL_HTTP_REQUESTS_PER_SECOND")]
    http_requests_per_second: Option<NonZeroU32>,
    /// Whether to log each request
    #[arg(long, env = "KEYFALL_HTTP_ACCESS_LOG", default_value_t = true, action = ArgAction::Set)]
    http_access_log: bool,
    /// How long a stop lets requests end that have begun
    #[arg(long, env = "KEYFALL_HTTP_GRACE", default_value = "10s", value_parser = duration)]
    http_grace: Duration,
}

fn duration(text: &str) -> Result<Duration, jiff::Error> {
    Duration::try_from(text.parse::<SignedDuration>()?)
}

impl From<Http> for Settings {
    fn from(http: Http) -> Self {
        Settings {
            listen: http.http_listen,
            tls: http.http_tls_cert_file.zip(http.http_tls_key_file),
            body_limit: http.http_body_limit,
            header_timeout: http.http_header_timeout,
            body_timeout: http.http_body_timeout,
            max_connections: http.http_max_connections,
            requests_per_second: http.http_requests_per_second,
            access_log: http.http_access_log,
            grace: http.http_grace,
        }
    }
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let settings = Settings::from(options.http);
    let scheme = if settings.tls.is_some() {
        "https"
    } else {
        "http"
    };
    if !settings.listen.ip().is_loopback() {
        bail!(
            "http.listen: {} can be reached by others, and whoever reaches it could do anything; \
             listen on 127.0.0.1 or [::1]",
            settings.listen
        );
    }
    let client = Client::connect(&options.redis_url).await?;
    let (pull, stopping) = (Pull::new(), CancellationToken::new());
    let mut routes = Router::new();
    for pattern in &options.patterns {
        routes = routes.try_route(pattern, pull.clone())?;
    }
    let stop = stopping.clone();
    let api = Api::new(client.clone(), pull, stop, settings, None);
    let serving = serve(api, |address| {
        println!("listening on {scheme}://{address}");
    });
    let working = async {
        // It ends when the process is asked to stop; nothing is served any more then.
        let ended = Worker::new(client, routes).run().await;
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
