//! Listens, and stops gracefully.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum_server::tls_rustls::RustlsAcceptor;
use axum_server::{Handle, Server};
use hyper_util::rt::TokioTimer;
use tokio_util::sync::CancellationToken;

use super::connections::Door;
use super::ui::{self, Ui, UiTerms};
use super::{Api, Settings, router};

/// The read buffer of a connection; also the largest head of a request.
const BUFFER: usize = 64 * 1024;

/// Takes a port; `section` is where its address is configured. Clients that connect wait until the port
/// is served.
///
/// # Errors
/// If another process has the port, or the address is not one of this machine.
pub(crate) fn bind(section: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("{section}.listen: {address} cannot be listened on; name another address or port")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves the API until the daemon stops and the calls in progress have ended; pulls end at once.
/// `bound` gets the address.
pub(crate) async fn serve(
    api: Api,
    ui: Option<Ui>,
    listener: TcpListener,
    bound: impl FnOnce(SocketAddr),
) -> anyhow::Result<()> {
    let (settings, stopping) = (api.settings.clone(), api.stopping.clone());
    let terms = UiTerms::of(&settings, api.tokens.is_some(), api.has_archive());
    let calls = router(Arc::new(api));
    let router = match ui {
        Some(ui) => ui::beside(calls, ui, terms),
        None => calls,
    };
    listen(listener, &settings, &stopping, router, bound).await
}

/// Serves other calls in the same way.
pub(crate) async fn listen(
    listener: TcpListener,
    settings: &Settings,
    stopping: &CancellationToken,
    router: Router,
    bound: impl FnOnce(SocketAddr),
) -> anyhow::Result<()> {
    let tls = settings.tls.clone();
    bound(listener.local_addr()?);
    let (handle, stopping) = (Handle::new(), stopping.clone());
    let (stop, grace) = (handle.clone(), settings.grace);
    tokio::spawn(async move {
        stopping.cancelled().await;
        stop.graceful_shutdown(Some(grace));
    });
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let door = Door::new(settings.max_connections, settings.body_timeout);
    let server = axum_server::from_tcp(listener)?.handle(handle);
    match tls {
        None => {
            let server = tuned(server.acceptor(door), settings.header_timeout);
            server.serve(service).await?;
        }
        Some(tls) => {
            let acceptor = RustlsAcceptor::new(tls).handshake_timeout(settings.header_timeout);
            let server = server.acceptor(acceptor.acceptor(door));
            tuned(server, settings.header_timeout)
                .serve(service)
                .await?;
        }
    }
    Ok(())
}

/// Limits the time for the head of a request. HTTP/2 is off, because the server would wait without
/// a limit for the first bytes, which show the protocol. An acceptor that is set afterwards would
/// undo that.
fn tuned<A>(server: Server<SocketAddr, A>, header_timeout: Duration) -> Server<SocketAddr, A> {
    let mut server = server.http1_only();
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(BUFFER);
    server
}
