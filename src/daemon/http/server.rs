//! Listens, and stops gracefully.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum_server::tls_rustls::RustlsAcceptor;
use axum_server::{Handle, Server};
use hyper_util::rt::TokioTimer;

use super::connections::Door;
use super::{Api, files, router};

/// What a connection buffers of what it reads; also the largest head of a request.
const BUFFER: usize = 64 * 1024;

/// Serves until told to stop, and until the calls that were under way have ended; pulls end at
/// once. `bound` is told where it listens.
pub(crate) async fn serve(api: Api, bound: impl FnOnce(SocketAddr)) -> anyhow::Result<()> {
    let settings = api.settings.clone();
    let listen = settings.listen;
    let tls = settings.tls.clone();
    let listener = std::net::TcpListener::bind(listen)
        .with_context(|| format!("http.listen: {listen} cannot be listened on"))?;
    listener.set_nonblocking(true)?;
    files::allow(settings.max_connections);
    bound(listener.local_addr()?);
    let (handle, stopping) = (Handle::new(), api.stopping.clone());
    let stop = handle.clone();
    tokio::spawn(async move {
        stopping.cancelled().await;
        stop.graceful_shutdown(Some(settings.grace));
    });
    let service = router(Arc::new(api)).into_make_service_with_connect_info::<SocketAddr>();
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

/// Waits for the head of a request for so long and no longer. Without HTTP/2, or the server would
/// wait without a limit for the first bytes, which say what is spoken. An acceptor that is set
/// afterwards would undo that.
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
