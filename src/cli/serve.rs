//! `keyfall serve`: the daemon.

use std::net::SocketAddr;

use anyhow::bail;
use clap::Args;
use keyfall::target::Pull;
use keyfall::{Client, Router, Worker};
use tokio_util::sync::CancellationToken;

use crate::daemon::{Api, serve};

#[derive(Args)]
pub(super) struct Options {
    /// The Redis to use
    #[arg(
        long,
        env = "KEYFALL_REDIS_URL",
        default_value = "redis://127.0.0.1:6379"
    )]
    redis_url: String,
    /// Where to listen
    #[arg(long, env = "KEYFALL_HTTP_LISTEN", default_value = "127.0.0.1:9276")]
    http_listen: SocketAddr,
    /// Which jobs consumers may pull, as patterns of their keys
    #[arg(long = "pull", value_name = "PATTERN", default_value = "*:*:*:*")]
    patterns: Vec<String>,
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    if !options.http_listen.ip().is_loopback() {
        bail!(
            "http.listen: {} can be reached by others, and whoever reaches it could do anything; \
             listen on 127.0.0.1 or [::1]",
            options.http_listen
        );
    }
    let client = Client::connect(&options.redis_url).await?;
    let (pull, stopping) = (Pull::new(), CancellationToken::new());
    let mut routes = Router::new();
    for pattern in &options.patterns {
        routes = routes.try_route(pattern, pull.clone())?;
    }
    let api = Api {
        client: client.clone(),
        pull,
        stopping: stopping.clone(),
    };
    let serving = serve(options.http_listen, api, |address| {
        println!("listening on http://{address}");
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
