//! `keyfall ui`: the web page over a Redis, for the person who starts it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use keyfall_daemon::in_process;
use keyfall_web::Web;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::connect::{Remedy, Server};
use super::out;
use super::stop::Stop;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    server: Server,

    /// Allow changes of jobs; otherwise the page only reads
    #[arg(long)]
    actions: bool,

    /// The port on 127.0.0.1; any free port by default
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let Some(client) = options.server.client(Remedy::Redis).await? else {
        let daemon = options.server.shown()?;
        let daemon = daemon.trim_end_matches('/');
        let why = format!("the daemon has the page itself: open {daemon}/ui in a browser");
        return Err(Stop::wrong(why).into());
    };
    // Other users of this machine reach the port as well, and pages in their browsers do.
    let secret = format!("{:032x}", rand::random::<u128>());
    let mut web = Web::with_secret(in_process(client), secret.clone());
    if options.actions {
        web = web.allow_changes();
    }
    let page = Router::new().nest_service("/ui", web.into_router());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("{address} cannot be listened on: name another `--port`, or none")
    })?;
    let address = listener.local_addr()?;
    out::line(format!("http://{address}/ui/open?secret={secret}"))?;
    let stopped = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    // Open pages that follow changes never end by themselves.
    tokio::select! {
        served = axum::serve(listener, page) => Ok(served?),
        () = stopped => Ok(()),
    }
}
